"""Backfill: computes the stores and outputs of an application from the records of its topics, on Spark."""
