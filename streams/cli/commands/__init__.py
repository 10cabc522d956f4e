"""One module per command of `tidewheel`."""
