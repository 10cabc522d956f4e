"""Logical nodes of the DSL's calls, and their optimisation."""
