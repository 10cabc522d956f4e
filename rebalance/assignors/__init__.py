"""Where tasks belong."""
