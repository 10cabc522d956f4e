"""Checks of the built wheel and source archive."""
