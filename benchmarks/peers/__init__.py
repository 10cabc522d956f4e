"""Programs of the measured systems: each job once per system, in its documented style."""
