"""Restore rules: fold changelog records into rows, and choose the start position. Pure."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from tidewheel.state_stores.layout import versions
from tidewheel.state_stores.layout.envelope import wrap_batch, wrap_value, wrap_with_headers
from tidewheel.state_stores.layout.headers import NO_HEADERS, Headers, encode_headers
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.layout.versions import version_key
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec

_log: Final = logging.getLogger(__name__)

#: A restore continues at a stored position only if its age is below `delete.retention.ms` minus
#: this margin (ms). Compaction may have removed the tombstones after an older position, so keys
#: deleted since would stay in the store.
TOMBSTONE_MARGIN_MS = 3_600_000


def fold(
    spec: StoreSpec,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    headers: Sequence[Headers] | None = None,
    *,
    slowest_ms: int | None = None,
) -> list[tuple[bytes, bytes | None]]:
    """Reduce changelog records in offset order to their last row per key (disk key, bytes or None).

    `headers` None means no record has any. Expired rows are left out, or become deletes (None)
    where the database may have an older row. Records without a key are skipped, as in Kafka
    Streams.
    """
    if spec.keeps_headers:
        values = _behind_headers(values, headers)
    match spec.kind:
        case StoreKind.KEY_VALUE | StoreKind.TIMESTAMPED_KEY_VALUE:
            return _fold_key_values(spec, keys, values, timestamps)
        case StoreKind.VERSIONED:
            return _fold_versions(spec, keys, values, timestamps)
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW | StoreKind.SESSION:
            return _fold_segments(spec, keys, values, timestamps, slowest_ms)
        case StoreKind.CUSTOM:
            return _fold_nothing(keys, values, timestamps)


def _behind_headers(
    values: Sequence[bytes | None], headers: Sequence[Headers] | None
) -> list[bytes | None]:
    if headers is None:
        return [None if value is None else NO_HEADERS + value for value in values]
    return [
        None if value is None else encode_headers(record_headers) + value
        for value, record_headers in zip(values, headers, strict=True)
    ]


def _fold_key_values(
    spec: StoreSpec,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
) -> list[tuple[bytes, bytes | None]]:
    # Two dictionaries, not one of tuples, which the garbage collector would visit repeatedly.
    last_values = dict(zip(keys, values, strict=True))
    last_times = dict(zip(keys, timestamps, strict=True))
    last_values.pop(None, None)
    last_times.pop(None, None)
    disk_keys = cast("dict[bytes, bytes | None]", last_values)
    wrap_all = wrap_with_headers if spec.keeps_headers else wrap_batch
    wrapped = wrap_all(list(last_values.values()), list(last_times.values()))
    if spec.ttl_ms is None:
        return list(zip(disk_keys, wrapped, strict=True))
    ended_at = StoreTime.of(spec, keys, timestamps).observed_ms - spec.ttl_ms
    return [
        (key, None if timestamp <= ended_at else value)
        for key, value, timestamp in zip(disk_keys, wrapped, last_times.values(), strict=True)
    ]


def _fold_versions(
    spec: StoreSpec,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
) -> list[tuple[bytes, bytes | None]]:
    # Expired versions stay: a batch has only some of a key's versions, too few to judge.
    rows = [
        (version_key(key, timestamp), (value, timestamp))
        for key, value, timestamp in zip(keys, values, timestamps, strict=True)
        if key is not None and timestamp >= 0
    ]
    _warn_of_foreign(spec, keys, len(rows))
    last = dict(rows)
    return [
        (key, wrap_value(versions.payload(value), timestamp))
        for key, (value, timestamp) in last.items()
    ]


def _fold_nothing(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]
) -> list[tuple[bytes, bytes | None]]:
    # All records stay: only the user's code can interpret those of a custom store.
    return [
        (key, wrap_value(versions.payload(value), timestamp))
        for key, value, timestamp in zip(keys, values, timestamps, strict=True)
        if key is not None
    ]


def _fold_segments(
    spec: StoreSpec,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    slowest_ms: int | None,
) -> list[tuple[bytes, bytes | None]]:
    layout = SegmentLayout.of(spec)
    valid = [
        (layout.disk_key(key), (value, timestamp))
        for key, value, timestamp in zip(keys, values, timestamps, strict=True)
        if key is not None and layout.is_row(key)
    ]
    _warn_of_foreign(spec, keys, len(valid))
    last = dict(valid)
    observed_ms = max(map(layout.time_of, last), default=-1)
    first_live_segment = layout.first_restored(observed_ms, slowest_ms)
    rows = {key: row for key, row in last.items() if layout.segment_of(key) >= first_live_segment}
    wrap_all = wrap_with_headers if spec.keeps_headers else wrap_batch
    wrapped = wrap_all([value for value, _ in rows.values()], [time for _, time in rows.values()])
    return list(zip(rows, wrapped, strict=True))


def _warn_of_foreign(spec: StoreSpec, keys: Sequence[bytes | None], valid: int) -> None:
    foreign = len(keys) - keys.count(None) - valid
    if foreign:
        _log.warning(
            "store %s: %d records of its changelog have no valid time and were skipped; another program writes there",
            spec.name,
            foreign,
        )


@dataclass(frozen=True, slots=True)
class StoreTime:
    """A store's stream time and last duplicate number (`seq`), derived from changelog records.

    >>> StoreTime(5, 2).later(StoreTime(7, 1))
    StoreTime(observed_ms=7, seq=2)
    """

    observed_ms: int = -1
    seq: int = 0

    @classmethod
    def of(
        cls, spec: StoreSpec, keys: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> "StoreTime":
        if spec.kind in SEGMENTED_KINDS:
            layout = SegmentLayout.of(spec)
            rows = [key for key in keys if key is not None and layout.is_row(key)]
            seqs = map(layout.seq_of, rows) if spec.retain_duplicates else ()
            return cls(max(map(layout.time_of, rows), default=-1), max(seqs, default=0))
        if spec.kind is StoreKind.VERSIONED or spec.ttl_ms is not None:
            if None not in keys:
                return cls(max(timestamps, default=-1))
            timed = (time for key, time in zip(keys, timestamps, strict=True) if key is not None)
            return cls(max(timed, default=-1))
        return cls()

    def later(self, other: "StoreTime") -> "StoreTime":
        return StoreTime(max(self.observed_ms, other.observed_ms), max(self.seq, other.seq))


class StartFrom(StrEnum):
    POSITION = "position"
    BEGINNING = "beginning"


def restore_start(  # noqa: PLR0911 - a list of rules, each with its answer
    position: Position | None,
    *,
    topic_id: bytes,
    log_start: int,
    log_end: int,
    tombstone_retention_ms: int,
    now_ms: int,
) -> tuple[StartFrom, str]:
    """Return where a restore starts, at the stored position or the log's beginning, and the reason.

    Every doubt leads to the beginning: a wrong position would lose rows.
    """
    if position is None:
        return StartFrom.BEGINNING, "no position on disk"
    if position.topic_id != topic_id:
        return StartFrom.BEGINNING, "the changelog topic was recreated"
    if position.offset > log_end:
        return (
            StartFrom.BEGINNING,
            f"position {position.offset} is beyond the end of the log, {log_end}",
        )
    if position.offset == log_end:
        return StartFrom.POSITION, "nothing to read"
    if position.offset < log_start:
        return (
            StartFrom.BEGINNING,
            f"position {position.offset} is before the start of the log, {log_start}",
        )
    age_ms = now_ms - position.written_at_ms
    if age_ms < -TOMBSTONE_MARGIN_MS:
        return (
            StartFrom.BEGINNING,
            f"position was written {-age_ms // 1000} s in the future, so its age is not known",
        )
    if age_ms > max(tombstone_retention_ms - TOMBSTONE_MARGIN_MS, 0):
        return (
            StartFrom.BEGINNING,
            f"position is {age_ms // 1000} s old, tombstones behind it may be gone",
        )
    return StartFrom.POSITION, f"{log_end - position.offset} offsets to read"


def is_usable_position(
    position: Position, *, topic_id: bytes, tombstone_retention_ms: int, now_ms: int
) -> bool:
    begin, _ = restore_start(
        position,
        topic_id=topic_id,
        log_start=0,
        log_end=position.offset + 1,
        tombstone_retention_ms=tombstone_retention_ms,
        now_ms=now_ms,
    )
    return begin is StartFrom.POSITION


def position_name(topic: str, partition: int) -> str:
    """Return the name under which the database stores a changelog's position.

    >>> position_name("app-counts-changelog", 0)
    'changelog:app-counts-changelog-0'
    """
    return f"changelog:{topic}-{partition}"
