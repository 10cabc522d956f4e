"""A new project: the files that `tidewheel new` writes."""
