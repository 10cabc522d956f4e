"""The suite `backfill`: a backfill by Spark and two live workers over the same input."""
