"""The handwritten program, run by itself and never imported."""
