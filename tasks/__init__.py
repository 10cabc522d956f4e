"""Runs what was assigned: processing, state, commits."""
