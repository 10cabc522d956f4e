"""Limits of the key ranges of one task."""

import msgspec


class RangeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a task: `factor` ranges; `records` and `bytes` queued; `cache_bytes` per range."""

    factor: int
    records: int
    bytes: int
    cache_bytes: int
