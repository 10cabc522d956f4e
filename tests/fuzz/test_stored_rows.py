"""Changelog records and stored rows: read, skipped, or an error that names the store."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.damage import NOISE, bounded, hostile
from tests.state_stores.bulk_restore.logs import SPECS
from tidewheel.state_stores.buffers.timed_buffer import decode_store_time, encode_store_time
from tidewheel.state_stores.errors import StoreCorruptedError, StoredRowError
from tidewheel.state_stores.layout.envelope import (
    unwrap_batch_with_headers,
    unwrap_value,
    unwrap_with_headers,
    wrap_value,
    wrap_with_headers,
)
from tidewheel.state_stores.layout.headers import encode_headers, headers_size, split_headers
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import StoreTime, fold
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.streams.operators.joins.join_buffer import BufferedRecord, JoinBuffer
from tidewheel.streams.operators.joins.non_joined import (
    NonJoinedSettings,
    NonJoinedStore,
    SharedTime,
)
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.serdes.buffered import Buffered, Context, decode_buffered, encode_buffered

pytestmark = pytest.mark.fault("DOORS")

_HEADERS = encode_headers((("trace", b"1"), ("none", None)))
_STORED = [
    wrap_value(b"value", 5),
    *(stored for stored in wrap_with_headers([_HEADERS + b"value"], [5]) if stored is not None),
    struct.pack(">Bqq", 0x11, 7, 9) + b"value",
]
_TIMES = st.integers(-(2**63), 2**63 - 1)
_WINDOW_KEYS = [
    b"key" + struct.pack(">QI", 120_000, 3),
    b"key" + struct.pack(">QQ", 90_000, 60_000),
]
_POSITION = Position(offset=7, topic_id=b"topic id 16 byte", written_at_ms=9).encode()


_READERS: list[Callable[[bytes], object]] = [
    unwrap_value,
    unwrap_with_headers,
    lambda stored: unwrap_batch_with_headers([stored]),
]


@given(hostile(_STORED))
@example(b"\x21" + bytes(8) + b"\xff" * 200_000)
def test_a_stored_value_is_read_or_corrupt(stored: bytes) -> None:
    for read in _READERS:
        with bounded(), contextlib.suppress(StoreCorruptedError):
            read(stored)


@given(hostile([_HEADERS + b"value"]))
@example(b"\xff" * 200_000)
@example(b"\x80\x80\x80\x80\x10" * 2 + b"x")
@example(b"\x02\x00value")
def test_headers_of_a_value_are_read_or_corrupt(data: bytes) -> None:
    with bounded(), contextlib.suppress(StoreCorruptedError):
        _, value = split_headers(data)
        assert len(value) + headers_size(data) == len(data)


@given(hostile([_POSITION, encode_store_time(5, 1)]))
def test_a_position_or_time_is_read_or_absent(data: bytes) -> None:
    position = Position.decode(data)
    assert position is None or position.encode() == data
    observed_ms, seq = decode_store_time(data)
    encode_store_time(observed_ms, seq)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@given(
    records=st.lists(
        st.tuples(st.none() | hostile(_WINDOW_KEYS), st.none() | NOISE, _TIMES), max_size=6
    )
)
@example(records=[(b"key" + b"\xff" * 16, b"v", -5), (b"\xff" * 12, b"v", 2**63 - 1)])
def test_a_restore_survives_any_changelog_record(
    spec: StoreSpec, records: list[tuple[bytes | None, bytes | None, int]]
) -> None:
    good = _WINDOW_KEYS[spec.kind is StoreKind.SESSION]
    keys: list[bytes | None] = [good, *(key for key, _, _ in records)]
    values: list[bytes | None] = [b"good", *(value for _, value, _ in records)]
    times = [120_000, *(time for _, _, time in records)]
    with bounded():
        rows = dict(fold(spec, keys, values, times))
        time = StoreTime.of(spec, keys, times)
    encode_store_time(time.observed_ms, time.seq)
    if spec.kind in SEGMENTED_KINDS:
        # A foreign record without a time expires no row.
        fresh = fold(spec, keys[:1], values[:1], times[:1])
        later = [key for key in keys[1:] if key is not None and len(key) >= 12]
        assert any(_is_valid(key, spec) for key in later) or fresh[0] in rows.items()


def _is_valid(key: bytes, spec: StoreSpec) -> bool:
    size = 16 if spec.kind is StoreKind.SESSION else 12
    return len(key) >= size and key[-size] < 0x80


# -- stores of joins ---------------------------------------------------------------------------------


class _Rows:
    """A commit buffer's reading side over given rows."""

    topic = "app-join-changelog"
    spec = SimpleNamespace(name="join-store")

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows

    def iterate(
        self, _low: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes, int]]:
        for key in sorted(self._rows, reverse=reverse):
            if end is None or key < end:
                yield key, self._rows[key], 0

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes | None, _time: int) -> None:
        self._rows.pop(key, None)
        if value is not None:
            self._rows[key] = value


def _list_of(*entries: bytes) -> bytes:
    parts = [struct.pack(">i", len(each)) + each for each in entries]
    return b"\x01" + struct.pack(">i", len(entries)) + b"".join(parts)


_ROWS_OF_JOINS = [struct.pack(">q?", 5, True) + b"key", struct.pack(">q?", 6, False) + b"key"]
_LISTS = [_list_of(b"\x01left"), _list_of(b"\x00right", b"\x00more")]


@given(st.dictionaries(hostile(_ROWS_OF_JOINS), hostile(_LISTS), max_size=3), st.booleans())
@example({_ROWS_OF_JOINS[0]: b"\x01" + struct.pack(">i", 1) + struct.pack(">i", -4)}, True)
@example({b"short": _LISTS[0]}, False)
def test_unmatched_records_are_read_or_unreadable(rows: dict[bytes, bytes], is_left: bool) -> None:
    settings = NonJoinedSettings("join-store", SharedTime(), 10, 10, is_outer=True)
    serdes = (Serdes.bytes(),) * 3
    store: Any = _Holder(rows)
    joined = NonJoinedStore(settings, store, serdes, is_left=is_left)
    with bounded(), contextlib.suppress(StoredRowError):
        joined.begin()
        joined.tracker.stream_time_ms = 2**62
        for record in joined.due(2**62):
            assert (record.left is None) is not (record.right is None)
        joined.keep(b"key", b"value", 5)


class _Holder:
    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.buffer = _Rows(dict(rows))


_BUFFERED = encode_buffered(
    Buffered(0, Context(5, "in", 0, 7, (("trace", b"1"), ("x", None))), None, b"old", b"new")
)
_BUFFER_KEYS = [b"\x00" + struct.pack(">q", 5) + b"key" + struct.pack(">i", 1)]


@given(st.dictionaries(hostile(_BUFFER_KEYS), hostile([_BUFFERED]), max_size=3))
@example({b"\x00\x01": _BUFFERED})
@example({_BUFFER_KEYS[0]: _BUFFERED[:-1]})
def test_records_in_a_grace_period_are_read_or_unreadable(rows: dict[bytes, bytes]) -> None:
    buffer = JoinBuffer(_Holder(rows), 10, Serdes.bytes(), Serdes.bytes())
    with bounded(), contextlib.suppress(StoredRowError):
        buffer.begin(2**62)
        buffer.put(BufferedRecord(b"key", b"value", 2**62, ()), None)
        buffer.release()
        buffer.end(2**62)


@given(hostile([_BUFFERED]))
def test_a_buffered_row_is_read_or_refused(data: bytes) -> None:
    with bounded(), contextlib.suppress(ValueError):
        decode_buffered(data)
