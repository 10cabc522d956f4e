"""Rebalancing: which task moves next, from measured progress."""
