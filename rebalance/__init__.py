"""Rebalancing: decides which member runs which task."""
