"""Limits of the key ranges of one task."""

import msgspec


class RangeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one task's ranges.

    Attributes:
        factor: Maximum number of ranges.
        records: Maximum queued records of all ranges.
        cache_bytes: Per range.
    """

    factor: int
    records: int
    bytes: int
    cache_bytes: int
