"""Generated changelogs of every kind of store, and the result of their replay."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import strategies as st

from tidewheel import Serdes
from tidewheel.state_stores.buffers.commit_buffer import write_rows
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.restore import StoreTime, fold
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.state_stores.stores.factory import make_store
from tidewheel.streams.serdes.buffered import BufferedSerde

STORE: Final = "store"

_WINDOW_TAIL: Final = struct.Struct(">QI")
_SESSION_TAIL: Final = struct.Struct(">QQ")

_PLAIN: Final = StoreSpec(
    name=STORE, kind=StoreKind.KEY_VALUE, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
)

#: One store of every kind with a changelog.
SPECS: Final = {
    "key-value": _PLAIN,
    "timestamped": replace(_PLAIN, kind=StoreKind.TIMESTAMPED_KEY_VALUE),
    "suppress buffer": replace(_PLAIN, value_serde=BufferedSerde(Serdes.bytes())),
    "lru": replace(_PLAIN, max_entries=3),
    "ttl": replace(_PLAIN, kind=StoreKind.TIMESTAMPED_KEY_VALUE, ttl_ms=50),
    "versioned": replace(_PLAIN, kind=StoreKind.VERSIONED, history_retention_ms=1_000),
    "window": replace(_PLAIN, kind=StoreKind.WINDOW, retention_ms=100_000),
    "window with duplicates": replace(
        _PLAIN, kind=StoreKind.WINDOW, retention_ms=100_000, retain_duplicates=True
    ),
    "timestamped window": replace(
        _PLAIN, kind=StoreKind.TIMESTAMPED_WINDOW, retention_ms=100_000, kept_longer_ms=70_000
    ),
    "session": replace(_PLAIN, kind=StoreKind.SESSION, retention_ms=100_000),
}


@dataclass(frozen=True, slots=True)
class Logged:
    """One changelog record; missing offsets were compacted, aborted, or are markers."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


def row_key(spec: StoreSpec, key: bytes, time: int, seq: int = 0) -> bytes:
    if spec.kind not in SEGMENTED_KINDS:
        return key
    if spec.kind is StoreKind.SESSION:
        return key + _SESSION_TAIL.pack(time + 9, time)
    return key + _WINDOW_TAIL.pack(time, seq)


def _keys(spec: StoreSpec) -> st.SearchStrategy[bytes]:
    times = st.integers(0, 30).map(lambda step: step * 17_000)
    seqs = st.integers(0, 3) if spec.retain_duplicates else st.just(0)
    return st.builds(row_key, st.just(spec), st.binary(max_size=2), times, seqs)


def logs(spec: StoreSpec, *, first: int = 0) -> st.SearchStrategy[list[Logged]]:
    """Make changelogs: few keys, many deletes, gaps between offsets, records without a key."""
    record = st.tuples(
        st.integers(0, 3),
        st.one_of(*[_keys(spec)] * 9, st.none() | st.binary(max_size=1)),
        st.none() | st.binary(max_size=3),
        st.integers(0, 400),
    )

    def numbered(rows: list[tuple[int, bytes | None, bytes | None, int]]) -> list[Logged]:
        offset = first - 1
        found: list[Logged] = []
        for gap, key, value, timestamp in rows:
            offset += 1 + gap
            found.append(Logged(offset, key, value, timestamp))
        return found

    return st.lists(record, max_size=40).map(numbered)


def columns(records: Sequence[Logged]) -> tuple[list[Any], list[Any], list[int]]:
    return (
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
    )


def replay(
    spec: StoreSpec,
    database: Database,
    records: Iterable[Logged],
    *,
    slowest_ms: int | None = None,
) -> StoreTime:
    """Restore like `tidewheel.tasks.restore.store_restore`, record by record."""
    buffer: Any = make_store(
        spec, database, topic="changelog", read_cache_bytes=0, now=lambda: 0, is_cached=False
    ).buffer
    time = StoreTime()
    for record in records:
        keys, values, timestamps = columns([record])
        rows = fold(spec, keys, values, timestamps, slowest_ms=slowest_ms)
        if spec.ttl_ms is not None:
            buffer.observe(StoreTime.of(spec, keys, timestamps).observed_ms)
        restored = buffer.restored(rows, slowest_ms=slowest_ms)
        write_rows(database, {STORE: rows}, {}, {STORE: restored})
        time = time.later(StoreTime.of(spec, keys, timestamps))
    return time


def replayed(
    spec: StoreSpec, records: Iterable[Logged], *, slowest_ms: int | None = None
) -> tuple[InMemoryDatabase, StoreTime]:
    database = InMemoryDatabase([STORE])
    return database, replay(spec, database, records, slowest_ms=slowest_ms)


def visible(
    spec: StoreSpec, database: Database, now: StoreTime, *, slowest_ms: int | None = None
) -> dict[bytes, bytes]:
    rows = dict(database.iterate(STORE, None, None))
    if spec.kind in SEGMENTED_KINDS:
        layout = SegmentLayout.of(spec)
        kept = layout.first_restored(now.observed_ms, slowest_ms)
        return {key: value for key, value in rows.items() if layout.segment_of(key) >= kept}
    if spec.ttl_ms is not None:
        ended = now.observed_ms - spec.ttl_ms
        return {key: value for key, value in rows.items() if unwrap_value(value)[1] > ended}
    return rows


def noted(database: Database) -> StoreTime:
    return StoreTime(*read_store_time(database, STORE))


def compacted(records: Sequence[Logged], *, before: int, deletes_before: int) -> list[Logged]:
    """Return a log compacted below `before`, without deletes below `deletes_before`."""
    last = {record.key: record.offset for record in records if record.offset < before}
    return [
        record
        for record in records
        if record.offset >= before
        or (
            last[record.key] == record.offset
            and (record.value is not None or record.offset >= deletes_before)
        )
    ]
