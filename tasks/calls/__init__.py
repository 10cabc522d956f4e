"""Long calls of user code."""
