"""Spark jobs."""
