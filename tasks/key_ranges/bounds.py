"""Limits of the key ranges of one task."""

import msgspec


class RangeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one task's ranges.

    Attributes:
        factor: Maximum number of ranges.
        records: Maximum queued records of all ranges.
        bytes: Maximum bytes of queued records.
        cache_bytes: Maximum cache size per range.
    """

    factor: int
    records: int
    bytes: int
    cache_bytes: int
