"""The programs of Tidewheel, run by themselves and never imported."""
