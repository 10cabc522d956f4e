"""What bounds the key ranges of one task."""

import msgspec


class RangeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds the ranges of one task.

    Attributes:
        factor: As many ranges it has at most.
        records: As many records of it may wait in its ranges.
        bytes: As many bytes of records.
        cache_bytes: As much may each range hold back from downstream.
    """

    factor: int
    records: int
    bytes: int
    cache_bytes: int
