"""Uncommitted writes of stores: buffers, caches and indexes in memory."""
