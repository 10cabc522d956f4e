"""The topology: its nodes, checks and description."""
