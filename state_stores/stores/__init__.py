"""Stores for operators and users."""
