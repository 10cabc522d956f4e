"""Limits of the key ranges of one task."""

import msgspec


class RangeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a task's `factor` ranges; `cache_bytes` is per range, queue limits for all."""

    factor: int
    records: int
    bytes: int
    cache_bytes: int
