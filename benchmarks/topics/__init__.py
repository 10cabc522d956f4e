"""Input and output topics of a run: made, read, counted."""
