"""Snapshots, restore, bootstrap and data frames of state, by Spark; users import `tidewheel.bulk`."""
