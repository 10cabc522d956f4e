"""The runtime of a group: election, leadership and the log, on threads."""
