"""Group operations from outside."""
