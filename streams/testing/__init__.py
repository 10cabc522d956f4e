"""Test driver and pytest plugin; users import `tidewheel.testing`."""
