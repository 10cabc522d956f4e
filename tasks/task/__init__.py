"""Tasks: their kinds, state, inputs and life cycle."""
