"""Processes beside the worker: supervisor, watchdog, restore helper."""
