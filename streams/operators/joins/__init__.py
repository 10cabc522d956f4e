"""Joins: streams, tables, global tables, foreign keys."""
