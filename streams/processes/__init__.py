"""Processes next to a worker: supervisor, watchdog, restore helper."""
