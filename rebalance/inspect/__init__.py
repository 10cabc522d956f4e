"""Views of the group log: description and history."""
