"""Conversion between librdkafka's messages and columns.

No Python code runs per record: every column is a C function's `map`.
"""

import logging
from collections.abc import Sequence
from itertools import accumulate, chain, compress, islice
from operator import itemgetter, ne
from typing import Any, Final

from confluent_kafka import Message

from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_log: Final = logging.getLogger(__name__)
_warned: Final[set[tuple[Any, Any]]] = set()

#: Milliseconds of `Message.timestamp()`, which returns (type, ms); -1 without a timestamp.
_TIMESTAMP_MS = itemgetter(1)

#: Bytes of a batch besides its records.
_BATCH_OVERHEAD_BYTES: Final = 61
#: Maximum bytes of a record besides key, value and headers.
_RECORD_OVERHEAD_BYTES: Final = 27
#: Maximum bytes of a header besides name and content.
_HEADER_OVERHEAD_BYTES: Final = 10


def to_runs(
    messages: Sequence[Message], *, topic: str | None = None, with_headers: bool = True
) -> list[SourceRecords]:
    """Return messages as one `SourceRecords` per partition, with its records in order.

    Args:
        messages: At least one; no error messages.
        topic: The topic of all messages, if known.
    """
    partitions: list[Any] = list(map(Message.partition, messages))
    topics: list[Any] | None = list(map(Message.topic, messages)) if topic is None else None
    starts = _starts(partitions)
    if topics is not None:
        starts = sorted({*starts, *_starts(topics)})
    firsts, ends = [0, *starts], [*starts, len(partitions)]
    places: list[tuple[str, int]] = [
        (topic or "" if topics is None else topics[first], partitions[first]) for first in firsts
    ]
    if len(set(places)) < len(places):
        # Several fetches are mixed: join each partition's records, for larger batches.
        counts = dict.fromkeys(sorted(places), 0)
        order = sorted(range(len(places)), key=places.__getitem__)
        for index in order:
            counts[places[index]] += ends[index] - firsts[index]
        messages = list(
            chain.from_iterable(messages[firsts[index] : ends[index]] for index in order)
        )
        places, ends = list(counts), list(accumulate(counts.values()))
        firsts = [0, *ends[:-1]]
    times = list(map(_TIMESTAMP_MS, map(Message.timestamp, messages)))
    # Equal timestamps share one int object: with fewer objects, more of them fit in the CPU cache.
    unique_times: dict[int, int] = {}
    timestamps = list(map(unique_times.setdefault, times, times))
    records = SourceRecords(
        *places[0],
        _offsets(messages, one_run=len(places) == 1),
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        timestamps,
        _headers(messages) if with_headers else None,
    )
    if len(places) == 1:
        return [records]
    return [
        _run(records, first, end, *place)
        for place, first, end in zip(places, firsts, ends, strict=True)
    ]


def _starts(column: list[Any]) -> list[int]:
    if column.count(column[0]) == len(column):
        return []
    return list(compress(range(1, len(column)), map(ne, islice(column, 1, None), column)))


def _run(
    records: SourceRecords, start: int, stop: int, topic: str, partition: int
) -> SourceRecords:
    run = records.slice(start, stop)
    run.topic = topic
    run.partition = partition
    if run.headers is not None and not any(run.headers):
        run.headers = None
    return run


def _offsets(messages: Sequence[Message], *, one_run: bool) -> Sequence[int]:
    first: Any = messages[0].offset()
    last: Any = messages[-1].offset()
    if one_run and last - first + 1 == len(messages):
        return range(first, last + 1)
    offsets: list[Any] = list(map(Message.offset, messages))  # only error messages have None
    return offsets


def _headers(messages: Sequence[Message]) -> list[Headers] | None:
    columns: list[Any] = []
    read = map(Message.headers, messages)
    while len(columns) < len(messages):
        try:
            columns.extend(read)
        except SystemError:  # a name that is not UTF-8; a second call would return a broken list
            _warn_of_headers(messages[len(columns)])
            columns.append(None)
    return [tuple(headers) if headers else () for headers in columns] if any(columns) else None


def _warn_of_headers(message: Message) -> None:
    place = message.topic(), message.partition()
    if place not in _warned:
        _warned.add(place)
        _log.warning(
            "%s-%s offset %s has a header whose name is not UTF-8: this record, and later ones "
            "like it, are read without headers; correct their producer",
            *place,
            message.offset(),
        )


def record_size_bytes(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Return the maximum uncompressed size of a batch of this record.

    >>> record_size_bytes(b"k", b"v" * 10)
    99
    """
    size = _BATCH_OVERHEAD_BYTES + _RECORD_OVERHEAD_BYTES
    size += len(key) if key is not None else 0
    size += len(value) if value is not None else 0
    for name, content in headers:
        size += _HEADER_OVERHEAD_BYTES + len(name.encode())
        size += len(content) if content is not None else 0
    return size


def oversized(columns: OutputColumns, limit_bytes: int) -> list[int]:
    room = limit_bytes - _BATCH_OVERHEAD_BYTES - _RECORD_OVERHEAD_BYTES
    longest = max(map(len, filter(None, columns.values)), default=0)
    longest += max(map(len, filter(None, columns.keys)), default=0)
    if columns.headers is None and longest <= room:
        return []
    headers: Sequence[Headers] = columns.headers or ((),) * len(columns)
    return [
        index
        for index, record in enumerate(zip(columns.keys, columns.values, headers, strict=True))
        if record_size_bytes(*record) > limit_bytes
    ]
