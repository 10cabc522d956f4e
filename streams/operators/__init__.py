"""Processors of the DSL, as operators on record batches."""
