"""One worker inside a process: its threads, wiring, queries and metrics."""
