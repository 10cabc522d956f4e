"""Keeps the worker processes of `tidewheel run` alive, and ends them in order."""
