"""Commits: schedule, contents and order of their parts."""
