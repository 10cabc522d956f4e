"""Group runtime: election, leadership and group log access, with threads."""
