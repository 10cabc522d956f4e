"""Group operations for processes that are no members: status, recovery, reset."""
