"""What a snapshot of a store holds, as one file of JSON, and whether it may be used. Pure.

A manifest is trusted only if its checksum is right and every number in it makes sense with every other: torn, empty,
foreign and newer ones raise `SnapshotRefused`, and the changelog is used. Every doubt ends at the changelog: that costs
time, the other way would cost data.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.names import check_application_id, check_store_name
from tidewheel.state_stores.restore import TOMBSTONE_MARGIN_MS, StartFrom, StoreTime, restore_start
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec

#: Format of what `encode_manifest` writes; a file of a later one is refused.
FORMAT_VERSION: Final = 1

#: No manifest of ours is larger (ten thousand partitions with sixteen runs each are about 60 MiB).
MANIFEST_BYTES_MAX: Final = 128 * 1024 * 1024

#: Ingesting more overlapping files than this leaves a database that reads slowly for long (DESIGN §8: 60 files left 55
#: in level 0, and reads at a quarter of their speed).
MOST_RUNS: Final = 16

_TOPIC_ID_BYTES: Final = 16
_OFFSETS_END: Final = 1 << 63
_TIMES_END: Final = 1 << 63
_SEQS_END: Final = 1 << 32
_GENERATIONS_END: Final = 10**10
#: Far more than are ever made, and few enough to be looked at.
_RUNS_MAX: Final = 10_000
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RUN_NAME: Final = re.compile(r"\d+-\d+-[0-9a-f]{8,64}\.sst")


class SnapshotRefused(StateStoreError):  # noqa: N818 - it is no fault of the caller: the changelog is used instead
    """A snapshot, or a file of one, is not used: broken, foreign, or of another version.

    >>> raise SnapshotRefused('manifest 0000000001-ab.json is empty; run `tidewheel snapshot` again')
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.bulk_restore.manifest.SnapshotRefused: manifest 0000000001-ab.json is empty; run `tidewheel snapshot` again
    """


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sorted file: the last value per disk key of some offsets of one changelog partition.

    Attributes:
        partition: The partition.
        from_offset: First offset that was read for it.
        to_offset: The offset after the last.
        file: Where it is, below the snapshot location; empty for a file that is on this machine only.
        rows: Rows in it, puts and deletes; never 0 (there is no file then).
        deletes: How many of them are deletes; 0 in a run that begins at the start of the log.
        file_bytes: Size of the file.
        sha256: Hex digest of the file.
        first_key: Its least disk key.
        last_key: Its greatest disk key.
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
    """The runs of one partition, in the order of their offsets.

    Attributes:
        partition: The partition.
        from_offset: Where the first run begins to read.
        to_offset: Where a tail begins: every record before it is in the runs.
        log_start: First offset in the log when the newest run was read.
        caught_up_at_ms: When `to_offset` was the end of the log (ms since the epoch); as old are the runs.
        complete_from_zero: They begin at the start of the log, so an empty store becomes whole by them.
        runs: The files. A stretch without any row has none.
        time: The store's time after all these records.
        expired_by_ms: By what time rows that had expired were left out, where that is not `time`: a key range was behind.
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
    def left_out_by_ms(self) -> int:
        """Return by what time rows that had expired were left out."""
        return self.time.observed_ms if self.expired_by_ms is None else self.expired_by_ms

    @property
    def rows(self) -> int:
        """Return how many rows the files have; keys that are in several count as often."""
        return sum(run.rows for run in self.runs)

    @property
    def file_bytes(self) -> int:
        """Return the size of the files."""
        return sum(run.file_bytes for run in self.runs)


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `fold` depends on beside the kind: with another layout other rows would have been made.

    Attributes:
        segment_interval_ms: Window and session stores: length of a segment; 0 for others.
        kept_ms: Window and session stores: how long rows stay on disk; 0 for others.
        ttl_ms: How long a key lives; None for ever.
    """

    segment_interval_ms: int
    kept_ms: int
    ttl_ms: int | None

    @classmethod
    def of(cls, spec: StoreSpec) -> "Layout":
        """Return the layout of a store."""
        if spec.kind not in SEGMENTED_KINDS:
            return cls(segment_interval_ms=0, kept_ms=0, ttl_ms=spec.ttl_ms)
        layout = SegmentLayout.of(spec)
        kept_ms = layout.retention_ms + layout.kept_longer_ms
        return cls(segment_interval_ms=layout.interval_ms, kept_ms=kept_ms, ttl_ms=None)

    def serves(self, wanted: "Layout") -> bool:
        """Return whether rows made with this layout hold all that are needed with another.

        >>> day = Layout(segment_interval_ms=60_000, kept_ms=86_400_000, ttl_ms=None)
        >>> hour = Layout(segment_interval_ms=60_000, kept_ms=3_600_000, ttl_ms=None)
        >>> day.serves(hour), hour.serves(day)
        (True, False)
        """
        if self.segment_interval_ms != wanted.segment_interval_ms or self.kept_ms < wanted.kept_ms:
            return False
        return self.ttl_ms is None or (wanted.ttl_ms is not None and self.ttl_ms >= wanted.ttl_ms)


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot of one store: what one manifest file says.

    Attributes:
        format_version: `FORMAT_VERSION`.
        application_id: Whose store it is.
        store: Its name.
        kind: What it holds (`StoreKind`).
        layout: With what its rows were made.
        key_serde: What keys were written with; told to people, not judged: the bytes are the changelog's.
        value_serde: What values were written with; likewise.
        topic: The changelog.
        topic_id: Its id (16 bytes), so that a topic made anew is noticed.
        partition_count: Its partitions.
        created_at_ms: When the snapshot was published.
        generation: One more than the snapshot before.
        partitions: The partitions, in their order.
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
        """Return the runs of a partition, or None if the snapshot has none of it."""
        return next((each for each in self.partitions if each.partition == number), None)

    @property
    def runs(self) -> Iterable[Run]:
        """All its files."""
        return (run for partition in self.partitions for run in partition.runs)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The snapshots of an application's stores, by store; what `tidewheel.streams.bulk.snapshot` returns."""

    application_id: str
    stores: dict[str, StoreSnapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogFacts:
    """What the cluster says of one changelog partition at one moment.

    Attributes:
        topic: The topic.
        topic_id: Its id, 16 bytes.
        partition_count: Its partitions.
        partition: The one this is about.
        log_start: First offset in the log.
        log_end: End of the log (high watermark); a position beyond it is wrong.
        stable_end: Last stable offset: all records below it are decided, so reading stops here.
        tombstone_retention_ms: How long deletes can be read (`delete.retention.ms`); very long where nothing is
            compacted.
        now_ms: When that was so.
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
        """Return whether what stands at a position may be gone on from, and why (`restore_start`)."""
        return restore_start(
            position,
            topic_id=self.topic_id,
            log_start=self.log_start,
            log_end=self.log_end,
            tombstone_retention_ms=self.tombstone_retention_ms,
            now_ms=self.now_ms,
        )


class _Envelope(msgspec.Struct):
    """What stands around a manifest: read first, whatever the version of the rest."""

    tidewheel_snapshot: int
    sha256: str
    snapshot: msgspec.Raw


def encode_manifest(snapshot: StoreSnapshot) -> bytes:
    """Return the file of a snapshot.

    Raises:
        SnapshotRefused: It would not be taken by `decode_manifest`: a bug of whoever made it.
    """
    _check(snapshot)
    body = msgspec.json.encode(snapshot)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode(
        _Envelope(
            tidewheel_snapshot=snapshot.format_version, sha256=digest, snapshot=msgspec.Raw(body)
        )
    )


def decode_manifest(data: bytes) -> StoreSnapshot:
    """Return the snapshot that a file describes.

    Raises:
        SnapshotRefused: The file is empty, torn, damaged, of a newer version or of no sense; the text says which.
    """
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
    """Return why a snapshot is not one of this store and this topic, or None if it is.

    It is about the whole snapshot; `may_extend` is about one partition.
    """
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
        return f"store {spec.name} keeps its rows longer, or in other segments, than it did then"
    return None


def may_extend(previous: PartitionRuns, facts: ChangelogFacts) -> str | None:
    """Return why records behind some runs can't be put on top of them, or None if they can.

    That holds for reading a tail into a store, and for the next run of an incremental snapshot. The rules are those of a
    store's own position (`restore_start`): every record behind the runs is there, deletes among them.
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
    """Return why some runs have not all rows that a slow key range still needs, or None if they have.

    Args:
        runs: The runs of a partition.
        spec: The store.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).
    """
    if slowest_ms is None or spec.kind not in SEGMENTED_KINDS:
        return None
    layout = SegmentLayout.of(spec)
    needed = layout.segment(layout.live_from_ms(slowest_ms))
    if layout.first_kept(runs.left_out_by_ms) <= needed:
        return None
    return "it was made when a key range of the task was further ahead than the one that is behind can do without"


def read_too_slowly(began_ms: int, ended_ms: int, tombstone_retention_ms: int) -> str | None:
    """Return why runs read from `began_ms` to `ended_ms` can't be trusted, or None if they can.

    A delete may be compacted away before the range that holds it is read, after another was read that holds its key:
    but not sooner than the topic's tombstone retention after that.
    """
    most_ms = max(tombstone_retention_ms - TOMBSTONE_MARGIN_MS, 0)
    took_ms = ended_ms - began_ms
    if 0 <= took_ms <= most_ms:
        return None
    return (
        f"reading took {took_ms // 1000} s; deletes may be gone after {most_ms // 1000} s (the topic's "
        f"delete.retention.ms less {TOMBSTONE_MARGIN_MS // 60_000} minutes): read in more parts at once, or raise it"
    )


def _check(snapshot: StoreSnapshot) -> None:
    """Raise SnapshotRefused if any number in it makes no sense with the others."""
    try:
        check_application_id(snapshot.application_id)
        check_store_name(snapshot.store)
        StoreKind(snapshot.kind)
    except ValueError as error:
        raise SnapshotRefused(f"the manifest does not describe a snapshot ({error})") from error
    numbers = [each.partition for each in snapshot.partitions]
    _demand(snapshot.format_version == FORMAT_VERSION, "its format is another inside")
    _demand(_is_topic_id(snapshot.topic_id), "its topic id is none")
    _demand(0 <= snapshot.generation < _GENERATIONS_END, "its generation is none")
    _demand(snapshot.partition_count > 0, "it has no partition")
    _demand(numbers == sorted(set(numbers)), "its partitions are not in order")
    _demand(
        all(0 <= number < snapshot.partition_count for number in numbers),
        "it has partitions that the topic has not",
    )
    folder = f"{snapshot.application_id}/{snapshot.store}/runs"
    for partition in snapshot.partitions:
        _check_partition(partition, f"{folder}/{partition.partition}/")


def _check_partition(partition: PartitionRuns, folder: str) -> None:
    which = f"partition {partition.partition}"
    runs = partition.runs
    _demand(
        0 <= partition.from_offset <= partition.to_offset < _OFFSETS_END,
        f"{which}: its offsets are none",
    )
    _demand(
        0 <= partition.caught_up_at_ms < _TIMES_END
        and -1 <= partition.time.observed_ms < _TIMES_END
        and 0 <= partition.time.seq < _SEQS_END
        and -1 <= partition.left_out_by_ms <= partition.time.observed_ms,
        f"{which}: its times are none",
    )
    _demand(len(runs) <= _RUNS_MAX, f"{which} has {len(runs)} runs, more than any of ours")
    bounds = [
        partition.from_offset,
        *(offset for run in runs for offset in (run.from_offset, run.to_offset)),
        partition.to_offset,
    ]
    _demand(bounds == sorted(bounds), f"{which}: its runs are not in order")
    for run in runs:
        name = run.file.removeprefix(folder)
        _demand(run.partition == partition.partition, f"{which} has a run of {run.partition}")
        _demand(
            run.file.startswith(folder) and _RUN_NAME.fullmatch(name) is not None,
            f"{which}: {run.file!r} is no name of a run",
        )
        _demand(0 <= run.deletes <= run.rows, f"{which}: {run.file} has {run.rows} rows")
        _demand(run.rows > 0 and run.file_bytes > 0, f"{which}: {run.file} is empty")
        _demand(run.first_key <= run.last_key, f"{which}: the keys of {run.file} are not in order")
        _demand(_SHA256.fullmatch(run.sha256) is not None, f"{which}: {run.file} has no checksum")
    if partition.complete_from_zero and runs and runs[0].from_offset == partition.from_offset:
        _demand(runs[0].deletes == 0, f"{which}: its first run deletes what can't be there")


def _is_topic_id(topic_id: bytes) -> bool:
    return len(topic_id) == _TOPIC_ID_BYTES and any(topic_id)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SnapshotRefused(f"the manifest makes no sense: {otherwise}")
