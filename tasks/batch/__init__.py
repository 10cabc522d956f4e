"""Batch runs of a topology: tasks without a broker, their passes and the order of records."""
