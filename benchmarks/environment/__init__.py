"""Where the systems run: broker, machine, Java, Python environments, child processes."""
