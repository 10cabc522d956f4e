"""Snapshot manifest: a JSON file, its checks, and the rules for its use. Pure.

Invalid manifests raise `SnapshotRefused`; the changelog is read instead.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import (
    TOMBSTONE_MARGIN_MS,
    StartFrom,
    StoreTime,
    restore_start,
)
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.names import check_application_id, check_store_name
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec

FORMAT_VERSION: Final = 1

#: Largest manifest read: 10,000 partitions with 16 runs each take about 60 MiB.
MANIFEST_BYTES_MAX: Final = 128 * 1024 * 1024

#: Most runs in a store: more overlapping files slow reads (60 files: a quarter of the speed).
MOST_RUNS: Final = 16

_TOPIC_ID_BYTES: Final = 16
_OFFSETS_END: Final = 1 << 63
_TIMES_END: Final = 1 << 63
_SEQS_END: Final = 1 << 32
_GENERATIONS_END: Final = 10**10
_RUNS_MAX: Final = 10_000
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RUN_NAME: Final = re.compile(r"\d+-\d+-[0-9a-f]{8,64}\.sst")


class SnapshotRefused(StateStoreError):  # noqa: N818 - no fault of the caller: the changelog is used instead
    """A snapshot or one of its files is broken, foreign, or of another version.

    >>> raise SnapshotRefused('manifest 0000000001-ab.json is empty; run `tidewheel snapshot` again')
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.bulk_restore.manifest.SnapshotRefused: manifest 0000000001-ab.json is empty; run `tidewheel snapshot` again
    """


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sorted file: the last value per disk key of an offset range of a changelog partition.

    Attributes:
        to_offset: Offset after the last one.
        file: Path below the snapshot location; empty for a local file.
        rows: Puts and deletes; never 0.
    """

    partition: int
    from_offset: int
    to_offset: int
    file: str
    rows: int
    deletes: int
    file_bytes: int
    sha256: str
    first_key: bytes
    last_key: bytes


class PartitionRuns(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The runs (sorted files) of one changelog partition, in offset order.

    Attributes:
        to_offset: Offset after the last record in the runs.
        log_start: The log's first offset when the newest run was read.
        caught_up_at_ms: Time at which `to_offset` was the log's end (ms since the epoch).
        complete_from_zero: The runs begin at the log's start, so they fill an empty store.
        expired_by_ms: Rows expired at this store time are not in the runs; None: at field `time`.
    """

    partition: int
    from_offset: int
    to_offset: int
    log_start: int
    caught_up_at_ms: int
    complete_from_zero: bool
    runs: tuple[Run, ...]
    time: StoreTime
    expired_by_ms: int | None = None

    @property
    def expired_until_ms(self) -> int:
        return self.time.observed_ms if self.expired_by_ms is None else self.expired_by_ms

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    @property
    def file_bytes(self) -> int:
        return sum(run.file_bytes for run in self.runs)


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that `fold` uses besides the store's kind; 0 for a kind without the setting."""

    segment_interval_ms: int
    kept_ms: int
    ttl_ms: int | None

    @classmethod
    def of(cls, spec: StoreSpec) -> "Layout":
        if spec.kind not in SEGMENTED_KINDS:
            return cls(segment_interval_ms=0, kept_ms=0, ttl_ms=spec.ttl_ms)
        layout = SegmentLayout.of(spec)
        kept_ms = layout.retention_ms + layout.kept_longer_ms
        return cls(segment_interval_ms=layout.interval_ms, kept_ms=kept_ms, ttl_ms=None)

    def serves(self, wanted: "Layout") -> bool:
        """Return True if rows built with this layout suffice for the wanted one.

        >>> day = Layout(segment_interval_ms=60_000, kept_ms=86_400_000, ttl_ms=None)
        >>> hour = Layout(segment_interval_ms=60_000, kept_ms=3_600_000, ttl_ms=None)
        >>> day.serves(hour), hour.serves(day)
        (True, False)
        """
        if self.segment_interval_ms != wanted.segment_interval_ms or self.kept_ms < wanted.kept_ms:
            return False
        return self.ttl_ms is None or (wanted.ttl_ms is not None and self.ttl_ms >= wanted.ttl_ms)


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot of one store.

    `topic_id` (16 bytes) detects a recreated topic.
    """

    format_version: int
    application_id: str
    store: str
    kind: str
    layout: Layout
    key_serde: str
    value_serde: str
    topic: str
    topic_id: bytes
    partition_count: int
    created_at_ms: int
    generation: int
    partitions: tuple[PartitionRuns, ...]

    def partition(self, number: int) -> PartitionRuns | None:
        return next(
            (partition for partition in self.partitions if partition.partition == number), None
        )

    @property
    def runs(self) -> Iterable[Run]:
        return (run for partition in self.partitions for run in partition.runs)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Snapshots of an application's stores; result of `tidewheel.bulk.snapshot`."""

    application_id: str
    stores: dict[str, StoreSnapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogFacts:
    """State of one changelog partition in the cluster at `now_ms`.

    Attributes:
        log_end: High watermark; a position beyond it is wrong.
        stable_end: Last stable offset; reading stops here.
        tombstone_retention_ms: Time deletes stay readable (`delete.retention.ms`).
    """

    topic: str
    topic_id: bytes
    partition_count: int
    partition: int
    log_start: int
    log_end: int
    stable_end: int
    tombstone_retention_ms: int
    now_ms: int

    def start_from(self, position: Position | None) -> tuple[StartFrom, str]:
        return restore_start(
            position,
            topic_id=self.topic_id,
            log_start=self.log_start,
            log_end=self.log_end,
            tombstone_retention_ms=self.tombstone_retention_ms,
            now_ms=self.now_ms,
        )


class _Envelope(msgspec.Struct):
    tidewheel_snapshot: int
    sha256: str
    snapshot: msgspec.Raw


def encode_manifest(snapshot: StoreSnapshot) -> bytes:
    _check(snapshot)
    body = msgspec.json.encode(snapshot)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode(
        _Envelope(
            tidewheel_snapshot=snapshot.format_version, sha256=digest, snapshot=msgspec.Raw(body)
        )
    )


def decode_manifest(data: bytes) -> StoreSnapshot:
    if not data:
        raise SnapshotRefused("the manifest is empty")
    if len(data) > MANIFEST_BYTES_MAX:
        raise SnapshotRefused(f"the manifest has {len(data)} bytes, more than any of ours")
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotRefused(f"the manifest is torn or no manifest at all ({error})") from error
    if envelope.tidewheel_snapshot != FORMAT_VERSION:
        raise SnapshotRefused(
            f"the manifest has format {envelope.tidewheel_snapshot}, this version of Tidewheel reads {FORMAT_VERSION}"
        )
    body = bytes(envelope.snapshot)
    if hashlib.sha256(body).hexdigest() != envelope.sha256:
        raise SnapshotRefused("the manifest's checksum is wrong")
    try:
        snapshot = msgspec.json.decode(body, type=StoreSnapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotRefused(f"the manifest does not describe a snapshot ({error})") from error
    _check(snapshot)
    return snapshot


def validate(  # noqa: PLR0911 - a list of rules, each with its answer
    snapshot: StoreSnapshot, spec: StoreSpec, facts: ChangelogFacts
) -> str | None:
    """Return the reason why a snapshot does not fit this store and topic, or None."""
    if snapshot.store != spec.name:
        return f"it is one of store {snapshot.store}, not of {spec.name}"
    if snapshot.topic != facts.topic:
        return f"it is one of topic {snapshot.topic}, not of {facts.topic}"
    if snapshot.topic_id != facts.topic_id:
        return f"topic {facts.topic} was recreated since"
    if snapshot.partition_count != facts.partition_count:
        return (
            f"topic {facts.topic} had {snapshot.partition_count} partitions then and has "
            f"{facts.partition_count} now"
        )
    if snapshot.kind != spec.kind:
        return f"it holds a {snapshot.kind} store, and {spec.name} is a {spec.kind} store now"
    if not snapshot.layout.serves(Layout.of(spec)):
        return f"store {spec.name} keeps its rows longer, or in other segments, than the snapshot"
    return None


def may_extend(previous: PartitionRuns, facts: ChangelogFacts) -> str | None:
    """Return the reason why later records can't be applied on top of the runs, or None.

    The log must still have all later records, deletes included.
    """
    assert previous.partition == facts.partition, "facts of another partition"
    if not previous.complete_from_zero:
        return f"the runs begin at offset {previous.from_offset}, not at the start of the log"
    start, reason = facts.start_from(
        Position(
            offset=previous.to_offset,
            topic_id=facts.topic_id,
            written_at_ms=previous.caught_up_at_ms,
        )
    )
    return None if start is StartFrom.POSITION else reason


def leaves_out_needed(runs: PartitionRuns, spec: StoreSpec, slowest_ms: int | None) -> str | None:
    """Return the reason why runs lack rows that a slow key range needs, or None."""
    if slowest_ms is None or spec.kind not in SEGMENTED_KINDS:
        return None
    layout = SegmentLayout.of(spec)
    needed = layout.segment(layout.live_from_ms(slowest_ms))
    if layout.first_live_segment(runs.expired_until_ms) <= needed:
        return None
    return "it lacks rows that the slowest key range or shard of the partition still needs"


def read_too_slowly(began_ms: int, ended_ms: int, tombstone_retention_ms: int) -> str | None:
    """Return the reason why runs read from `began_ms` to `ended_ms` are unsafe, or None.

    A slow job may read a key and miss its later delete, which compaction removes after the
    tombstone retention.
    """
    most_ms = max(tombstone_retention_ms - TOMBSTONE_MARGIN_MS, 0)
    took_ms = ended_ms - began_ms
    if 0 <= took_ms <= most_ms:
        return None
    return (
        f"reading took {took_ms // 1000} s; deletes may be gone after {most_ms // 1000} s (the topic's "
        f"delete.retention.ms less {TOMBSTONE_MARGIN_MS // 60_000} minutes): read with more parallel parts, or raise it"
    )


def _check(snapshot: StoreSnapshot) -> None:
    try:
        check_application_id(snapshot.application_id)
        check_store_name(snapshot.store)
        StoreKind(snapshot.kind)
    except ValueError as error:
        raise SnapshotRefused(f"the manifest does not describe a snapshot ({error})") from error
    numbers = [partition.partition for partition in snapshot.partitions]
    _demand(snapshot.format_version == FORMAT_VERSION, "its inner format version differs")
    _demand(_is_topic_id(snapshot.topic_id), "its topic id is invalid")
    _demand(0 <= snapshot.generation < _GENERATIONS_END, "its generation is invalid")
    _demand(snapshot.partition_count > 0, "it has no partition")
    _demand(numbers == sorted(set(numbers)), "its partitions are not in order")
    _demand(
        all(0 <= number < snapshot.partition_count for number in numbers),
        "it has partitions that the topic lacks",
    )
    folder = f"{snapshot.application_id}/{snapshot.store}/runs"
    for partition in snapshot.partitions:
        _check_partition(partition, f"{folder}/{partition.partition}/")


def _check_partition(partition: PartitionRuns, folder: str) -> None:
    which = f"partition {partition.partition}"
    runs = partition.runs
    _demand(
        0 <= partition.from_offset <= partition.to_offset < _OFFSETS_END,
        f"{which}: its offsets are invalid",
    )
    _demand(
        0 <= partition.caught_up_at_ms < _TIMES_END
        and -1 <= partition.time.observed_ms < _TIMES_END
        and 0 <= partition.time.seq < _SEQS_END
        and -1 <= partition.expired_until_ms <= partition.time.observed_ms,
        f"{which}: its times are invalid",
    )
    _demand(len(runs) <= _RUNS_MAX, f"{which} has {len(runs)} runs, more than any of ours")
    bounds = [
        partition.from_offset,
        *(offset for run in runs for offset in (run.from_offset, run.to_offset)),
        partition.to_offset,
    ]
    _demand(bounds == sorted(bounds), f"{which}: its runs are not in order")
    _demand(len({run.file for run in runs}) == len(runs), f"{which} has a run twice")
    for run in runs:
        name = run.file.removeprefix(folder)
        _demand(run.partition == partition.partition, f"{which} has a run of {run.partition}")
        _demand(
            run.file.startswith(folder) and _RUN_NAME.fullmatch(name) is not None,
            f"{which}: {run.file!r} is not a run's name",
        )
        _demand(0 <= run.deletes <= run.rows, f"{which}: {run.file} has {run.rows} rows")
        _demand(run.rows > 0 and run.file_bytes > 0, f"{which}: {run.file} is empty")
        _demand(run.first_key <= run.last_key, f"{which}: the keys of {run.file} are not in order")
        _demand(_SHA256.fullmatch(run.sha256) is not None, f"{which}: {run.file} has no checksum")
    if partition.complete_from_zero and runs and runs[0].from_offset == partition.from_offset:
        _demand(
            runs[0].deletes == 0, f"{which}: its first run has deletes, but nothing lies below it"
        )


def _is_topic_id(topic_id: bytes) -> bool:
    return len(topic_id) == _TOPIC_ID_BYTES and any(topic_id)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SnapshotRefused(f"the manifest makes no sense: {otherwise}")
