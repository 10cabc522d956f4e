"""The program of Bytewax, run by itself and never imported."""
