"""Visible content of a store: the rows that reads return, as bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidewheel.state_stores.layout import versions
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Visible row of a store; `place` is its disk key, which defines the order.

    Attributes:
        end: End of the window, session or version; None for the latest version.
        seq: Sequence number of a window store's duplicate.
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
        value, timestamp = unwrap_value(data)
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
        value, timestamp = unwrap_value(data)
        key = layout.key_of(disk_key)
        if is_session:
            start = layout.session_start_of(disk_key)
            yield StoredRow(key, value, timestamp, start, time, place=disk_key)
        else:
            end = time + spec.window_size_ms if spec.window_end is None else spec.window_end(time)
            yield StoredRow(key, value, timestamp, time, end, layout.seq_of(disk_key), disk_key)


def _version_rows(stored: Iterable[tuple[bytes, bytes]], horizon_ms: int) -> Iterator[StoredRow]:
    #: Timestamp of each key's next newer version. Rows of longer keys can be between a key's rows.
    newer: dict[bytes, int] = {}
    for disk_key, data in stored:
        key, timestamp = disk_key[: -versions.TAIL], versions.time_of(disk_key)
        if key not in newer:
            newer = {
                newer_key: time
                for newer_key, time in newer.items()
                if disk_key.startswith(newer_key)
            }
        valid_to = newer.get(key)
        newer[key] = timestamp
        value = versions.value_of(unwrap_value(data)[0])
        if value is not None and (valid_to is None or valid_to > horizon_ms):
            yield StoredRow(key, value, timestamp, end=valid_to, place=disk_key)
