"""The restore helper: processes of their own that make sorted runs, so that running tasks keep their interpreter."""
