"""Readers of topics."""
