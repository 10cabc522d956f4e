"""The programs of the plain client, run by themselves and never imported."""
