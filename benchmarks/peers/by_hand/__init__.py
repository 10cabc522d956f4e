"""The program written by hand, run by itself and never imported."""
