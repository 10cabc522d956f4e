"""The programs of Quix Streams, run by themselves and never imported."""
