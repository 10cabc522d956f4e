"""Refinement: the intermediate assignment on the way to the target."""
