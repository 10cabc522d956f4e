"""The program of Faust, run by itself and never imported."""
