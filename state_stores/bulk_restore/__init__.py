"""Bulk restore from sorted runs and snapshots.

A *run* is one sorted file: the last value per disk key of an offset range. Ingesting runs in offset
order equals a replay. A *snapshot* is the runs of all partitions of a store.
"""
