"""Kafka Streams' timestamp extractors, for `timestamp_extractor=` and `default_timestamp_extractor`.

Each is called with (record, partition time) and returns milliseconds since the epoch; a negative
result drops the record. A class may be given instead of an object:
`timestamp_extractor=WallclockTimestampExtractor`.
"""

import logging
import time
from typing import Any, Final

from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.processing.api.record import ConsumedRecord

_log = logging.getLogger(__name__)


class FailOnInvalidTimestamp:
    """The record's own timestamp; a negative one stops the worker. This is the default.

    >>> record = ConsumedRecord("orders", 0, 41, "k", 1, 1_000, ())
    >>> FailOnInvalidTimestamp()(record, -1)
    1000
    """

    def __call__(self, record: ConsumedRecord, partition_time_ms: int) -> int:  # noqa: ARG002 - an extractor's signature
        if record.timestamp < 0:
            raise StreamsError(
                f"{_place(record)} has no valid timestamp ({record.timestamp}); give the source another timestamp_extractor, "
                "such as LogAndSkipOnInvalidTimestamp()"
            )
        return record.timestamp


class LogAndSkipOnInvalidTimestamp:
    """The record's own timestamp; a record with a negative one is logged and dropped.

    >>> LogAndSkipOnInvalidTimestamp()(ConsumedRecord("orders", 0, 41, "k", 1, 1_000, ()), -1)
    1000
    """

    def __call__(self, record: ConsumedRecord, partition_time_ms: int) -> int:  # noqa: ARG002 - an extractor's signature
        if record.timestamp < 0:
            _log.warning(
                "%s is dropped: it has no valid timestamp (%d)", _place(record), record.timestamp
            )
        return record.timestamp


class UsePartitionTimeOnInvalidTimestamp:
    """The record's own timestamp, or the partition's largest one in place of a negative one.

    >>> UsePartitionTimeOnInvalidTimestamp()(ConsumedRecord("orders", 0, 41, "k", 1, -1, ()), 5_000)
    5000
    """

    def __call__(self, record: ConsumedRecord, partition_time_ms: int) -> int:
        if record.timestamp >= 0:
            return record.timestamp
        if partition_time_ms < 0:
            raise StreamsError(
                f"{_place(record)} has no valid timestamp ({record.timestamp}), and no earlier record of its partition "
                "had one to use instead"
            )
        return partition_time_ms


class WallclockTimestampExtractor:
    """The wall clock of the machine when the record is processed.

    >>> WallclockTimestampExtractor()(ConsumedRecord("orders", 0, 41, "k", 1, 1_000, ()), -1) > 1_000
    True
    """

    def __call__(self, record: ConsumedRecord, partition_time_ms: int) -> int:  # noqa: ARG002 - an extractor's signature
        return time.time_ns() // 1_000_000


def _place(record: ConsumedRecord) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"


NAMED_EXTRACTORS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        FailOnInvalidTimestamp,
        LogAndSkipOnInvalidTimestamp,
        UsePartitionTimeOnInvalidTimestamp,
        WallclockTimestampExtractor,
    )
}
