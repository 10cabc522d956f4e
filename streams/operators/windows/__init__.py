"""Windowed aggregations."""
