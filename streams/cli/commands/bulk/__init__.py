"""Commands that run on Spark, and what they share."""
