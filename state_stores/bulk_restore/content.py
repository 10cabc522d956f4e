"""What a store holds, as a reader of it would find: rows without their layout, and without those that have ended.

Two copies of a store need not have the same bytes: one may have swept out an ended row that the other still has. What
counts is what a read returns, and that is what this gives, still as bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidewheel.state_stores.layout import versions
from tidewheel.state_stores.layout.envelope import unseal
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of a store.

    Attributes:
        key: The key's bytes.
        value: The value's bytes.
        timestamp: Of the record that set it (ms since the epoch).
        start: Window and session stores: where it begins; None for others.
        end: Window and session stores: where it ends; versioned stores: until when the version is valid, None for the latest.
        seq: Window stores that keep duplicates: which of them it is.
        place: Its disk key, by which rows are in order.
    """

    key: bytes
    value: bytes
    timestamp: int
    start: int | None = None
    end: int | None = None
    seq: int = 0
    place: bytes = b""


def stored_rows(
    spec: StoreSpec, stored: Iterable[tuple[bytes, bytes]], observed_ms: int
) -> Iterator[StoredRow]:
    """Yield the rows of a store that have not ended.

    Args:
        spec: The store.
        stored: Disk keys and stored values of all its rows, in the order of the disk.
        observed_ms: The store's own time (`tidewheel.state_stores.restore.StoreTime`).
    """
    match spec.kind:
        case StoreKind.VERSIONED:
            return _version_rows(stored, observed_ms - spec.history_retention_ms)
        case kind if kind in SEGMENTED_KINDS:
            return _segment_rows(spec, stored, observed_ms)
        case _:
            return _key_value_rows(spec.ttl_ms, stored, observed_ms)


def _key_value_rows(
    ttl_ms: int | None, stored: Iterable[tuple[bytes, bytes]], observed_ms: int
) -> Iterator[StoredRow]:
    for key, data in stored:
        value, timestamp = unseal(data)
        if ttl_ms is None or timestamp + ttl_ms > observed_ms:
            yield StoredRow(key, value, timestamp, place=key)


def _segment_rows(
    spec: StoreSpec, stored: Iterable[tuple[bytes, bytes]], observed_ms: int
) -> Iterator[StoredRow]:
    layout = SegmentLayout.of(spec)
    alive_from = layout.live_from_ms(observed_ms)
    is_session = spec.kind is StoreKind.SESSION
    for disk_key, data in stored:
        time = layout.time_of(disk_key)
        if time < alive_from:
            continue
        value, timestamp = unseal(data)
        key = layout.key_of(disk_key)
        if is_session:
            start = layout.session_start_of(disk_key)
            yield StoredRow(key, value, timestamp, start, time, place=disk_key)
        else:
            end = time + spec.window_size_ms if spec.window_end is None else spec.window_end(time)
            yield StoredRow(key, value, timestamp, time, end, layout.seq_of(disk_key), disk_key)


def _version_rows(stored: Iterable[tuple[bytes, bytes]], horizon_ms: int) -> Iterator[StoredRow]:
    #: Timestamps of the newer versions of keys whose rows may go on: rows of longer keys stand between those of a key.
    newer: dict[bytes, int] = {}
    for disk_key, data in stored:
        key, timestamp = disk_key[: -versions.TAIL], versions.time_of(disk_key)
        if key not in newer:
            newer = {other: time for other, time in newer.items() if disk_key.startswith(other)}
        valid_to = newer.get(key)
        newer[key] = timestamp
        value = versions.value_of(unseal(data)[0])
        if value is not None and (valid_to is None or valid_to > horizon_ms):
            yield StoredRow(key, value, timestamp, end=valid_to, place=disk_key)
