"""Stores as operators and users hold them."""
