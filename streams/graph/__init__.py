"""Logical nodes between the DSL's calls and the topology, and their optimisation."""
