"""Bulk work on state by Spark; users import `tidewheel.bulk`."""
