"""Who runs which task, and how a group gets there; pure."""
