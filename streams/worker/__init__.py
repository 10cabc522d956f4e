"""One worker of a process."""
