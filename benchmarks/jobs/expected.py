"""Correct result of each job, computed from the records without Kafka or any system.

A result is a number per output key, in the form of `jobs.checks`: a count, or a fingerprint of the
key's values.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from heapq import merge
from itertools import chain
from zlib import crc32

import orjson

from benchmarks.jobs.contents import InputRecord, input_blocks
from benchmarks.topics.generator import InputSpec, direct_counts

WINDOW_MS = 60_000
GAP_MS = 20_000
#: Largest distance of two joined records in the stream-stream join.
WITHIN_MS = 10_000
#: Bits of a fingerprint; higher bits of a sum count its fingerprints.
FINGERPRINT_BITS = 48
#: Lowest amount of a kept event.
LEAST_CENTS = 5_000
TAX_PERCENT = 119

Result = Mapping[bytes, int]


def fingerprint(value: bytes) -> int:
    """Return a value's number for sums: any surplus value changes the sum.

    >>> fingerprint(b"a") + fingerprint(b"b") == fingerprint(b"b") + fingerprint(b"a")
    True
    """
    return (1 << FINGERPRINT_BITS) + crc32(value)


def joined(left: bytes, right: bytes) -> bytes:
    """Return the value of every join: the leading numbers of both values.

    >>> joined(b"000000000007 and more", b"000000000042")
    b'000000000007 000000000042'
    """
    return left[:12] + b" " + right[:12]


def event_form(number: int, kind: str, cents: int) -> bytes:
    """Return the fingerprinted form of an event's result, independent of JSON spacing."""
    return b"%d %b %d" % (number, kind.encode(), cents)


def of_window(key: bytes, start_ms: int) -> bytes:
    return key + start_ms.to_bytes(8, "big")


def start_of(at: bytes) -> int:
    """Return the start (ms) of a window of `of_window`.

    >>> start_of(of_window(b"key", 60_000))
    60000
    """
    return int.from_bytes(at[-8:])


def of_session(count: int, start_ms: int, end_ms: int) -> int:
    """Return the number of a session: from its count and length."""
    return (count << FINGERPRINT_BITS) + end_ms - start_ms


@cache
def expected(job: str, inputs: tuple[InputSpec, ...]) -> Result:
    """Return the correct result of a job for its inputs, computed once.

    Raises:
        KeyError: There is no such job.
    """
    return _DIRECT[job](*inputs)


def _records(spec: InputSpec) -> Iterator[InputRecord]:
    return chain.from_iterable(input_blocks(spec))


def _stateless_json(events: InputSpec) -> Result:
    sums: Counter[bytes] = Counter()
    for _, value, _, _ in _records(events):
        event = orjson.loads(value)
        if event["cents"] >= LEAST_CENTS:
            form = event_form(event["id"], event["kind"], event["cents"] * TAX_PERCENT // 100)
            sums[event["user"].encode()] += fingerprint(form)
    return sums


def _tumbling_count(stream: InputSpec) -> Result:
    counts: Counter[bytes] = Counter()
    for key, _, at_ms, _ in _records(stream):
        counts[of_window(key or b"", at_ms - at_ms % WINDOW_MS)] += 1
    return counts


def _session_count(stream: InputSpec) -> Result:
    found: dict[bytes, int] = {}
    sessions: dict[bytes, tuple[int, int, int]] = {}  # last session of each key: start, end, count
    for some_key, _, at_ms, _ in _records(stream):
        key = some_key or b""
        start_ms, end_ms, count = sessions.get(key, (at_ms, at_ms, 0))
        if at_ms - end_ms > GAP_MS:
            start_ms, count = at_ms, 0
        sessions[key] = start_ms, at_ms, count + 1
        found[of_window(key, start_ms)] = of_session(count + 1, start_ms, at_ms)
    return found


def _stream_table_join(stream: InputSpec, table: InputSpec) -> Result:
    rows = {key: value for key, value, _, _ in _records(table)}
    sums: Counter[bytes] = Counter()
    for key, value, _, _ in _records(stream):
        if key in rows:
            sums[key or b""] += fingerprint(joined(value, rows[key]))
    return sums


def _interleaved_join(stream: InputSpec, table: InputSpec) -> Result:
    """Join each record with the last row before it."""
    events = merge(
        ((at_ms, False, key, value) for key, value, at_ms, _ in _records(stream)),
        ((at_ms, True, key, value) for key, value, at_ms, _ in _records(table)),
    )
    rows: dict[bytes | None, bytes] = {}
    sums: Counter[bytes] = Counter()
    for _, is_row, key, value in events:
        if is_row:
            rows[key] = value
        elif key in rows:
            sums[key or b""] += fingerprint(joined(value, rows[key]))
    return sums


def _stream_stream_join(left: InputSpec, right: InputSpec) -> Result:
    others: dict[bytes | None, tuple[list[int], list[bytes]]] = {}
    for key, value, at_ms, _ in _records(right):
        times, values = others.setdefault(key, ([], []))
        times.append(at_ms)
        values.append(value[:12])
    sums: Counter[bytes] = Counter()
    for key, value, at_ms, _ in _records(left):
        times, values = others.get(key, ([], []))
        first = bisect_left(times, at_ms - WITHIN_MS)
        for other in values[first : bisect_right(times, at_ms + WITHIN_MS)]:
            sums[key or b""] += fingerprint(joined(value, other))
    return sums


def _foreign_key_join(references: InputSpec, table: InputSpec) -> Result:
    rows = {key: value for key, value, _, _ in _records(table)}
    last = {key or b"": value for key, value, _, _ in _records(references)}
    return {key: fingerprint(joined(value, rows[value[12:21]])) for key, value in last.items()}


def _word_count(lines: InputSpec) -> Result:
    counts: Counter[bytes] = Counter()
    for _, value, _, _ in _records(lines):
        counts.update(value.split())
    return counts


_DIRECT: Mapping[str, Callable[..., Result]] = {
    "stateless_json": _stateless_json,
    "count_by_key": direct_counts,
    "count_by_key_hot": direct_counts,
    "count_by_key_large": direct_counts,
    "tumbling_count": _tumbling_count,
    "session_count": _session_count,
    "stream_table_join": _stream_table_join,
    "interleaved_join": _interleaved_join,
    "stream_stream_join": _stream_stream_join,
    "foreign_key_join": _foreign_key_join,
    "word_count": _word_count,
}
