"""Progress of key-range workers inside a task."""
