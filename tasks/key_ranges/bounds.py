"""Limits of the key ranges of one task."""

import msgspec


class RangeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """`records` and `bytes` limit the queues of all ranges; `cache_bytes` is per range."""

    factor: int
    records: int
    bytes: int
    cache_bytes: int
