"""Commits: when they happen, what they hold, and in which order they become durable."""
