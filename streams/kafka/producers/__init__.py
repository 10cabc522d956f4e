"""Producers, transactional and idempotent."""
