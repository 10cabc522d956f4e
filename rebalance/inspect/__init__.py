"""Views of a group log: its history, and a description of it."""
