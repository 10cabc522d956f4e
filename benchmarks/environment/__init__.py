"""Environment of the systems: broker, machine, Java, Python environments, child processes."""
