"""Store restore: start offset, records to rows, progress, events and results.

The position, not a record count, shows the end: control records and compaction leave gaps (H29).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StateStoreError, StreamsError
from tidewheel.state_stores.layout.restore import StartFrom, StoreTime, fold, restore_start
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.kafka.ports import TopicDescription
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.shard_rows import rows_of
from tidewheel.tasks.restore.source_restore import SourceRestore
from tidewheel.tasks.restore.start_positions import Grant, StartPosition
from tidewheel.tasks.task.learner_task import CopyProgress, LearnerTask
from tidewheel.tasks.task.task import Task

UpdateKind = Literal["start", "batch", "suspended"]
#: Kafka Streams' SuspendReason: the copy left this worker, or its task will run here.
SuspendReason = Literal["MIGRATED", "PROMOTED"]


#: Seconds over which a rate is averaged.
_WINDOW_S: Final = 10.0
#: Samples of a rate closer than this (s) are merged.
_STEP_S: Final = 0.25
_SAMPLES_MIN: Final = 2


#: Kafka's default of `delete.retention.ms`.
DELETE_RETENTION_MS = 86_400_000

_UNLIMITED_MS: Final = 1 << 62

EventKind = Literal["start", "batch", "end", "suspended"]


class RestoreRate:
    """Records per second over the last ten seconds.

    >>> rate = RestoreRate()
    >>> rate.record(0, 100.0)
    >>> rate.record(5_000, 102.0)
    >>> rate.per_second, rate.seconds_for(10_000)
    (2500.0, 4.0)
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        #: (total, monotonic seconds), the oldest first.
        self._samples: deque[tuple[int, float]] = deque()

    def record(self, total: int, now_s: float) -> None:
        """Record the total of records; a smaller one restarts the measurement."""
        samples = self._samples
        if samples and total < samples[-1][0]:
            samples.clear()
        if len(samples) > 1 and now_s - samples[-2][1] < _STEP_S:
            samples.pop()
        samples.append((total, now_s))
        while len(samples) > _SAMPLES_MIN and now_s - samples[1][1] >= _WINDOW_S:
            samples.popleft()

    @property
    def per_second(self) -> float:
        """Return the rate at the last sample; 0 before there are two."""
        samples = list(self._samples)  # a snapshot: other threads read the rate
        if len(samples) < _SAMPLES_MIN:
            return 0.0
        (first, begin_s), (last, end_s) = samples[0], samples[-1]
        return (last - first) / (end_s - begin_s) if end_s > begin_s else 0.0

    def seconds_for(self, remaining: int) -> float | None:
        rate = self.per_second
        if remaining <= 0:
            return 0.0
        return remaining / rate if rate > 0 else None


def progress_text(restored: int, remaining: int, rate: RestoreRate) -> str:
    """Return the log text of a restore's progress.

    >>> progress_text(5_000, 10_000, RestoreRate())
    'restoring: 5,000 records so far, 10,000 to go'
    """
    text = f"restoring: {restored:,} records so far, {remaining:,} to go"
    left_s = rate.seconds_for(remaining)
    if left_s is None:
        return text
    return f"{text}, {rate.per_second:,.0f} records/s, about {left_s:,.0f} s left"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreEvent:
    """Progress of restoring one store from one changelog partition.

    `start` and `end` are offsets; `restored` counts the records read so far (0 in "start"). `rate`
    is in records per second over the last ten seconds. `eta_s` estimates the seconds left; None
    while unknown.

    >>> event = RestoreEvent(
    ...     kind="batch", store="counts", topic="app-counts-changelog", partition=0,
    ...     start=0, end=200, restored=50,
    ... )
    >>> f"{event.restored / (event.end - event.start):.0%}"
    '25%'
    """

    kind: EventKind
    store: str
    topic: str
    partition: int
    start: int
    end: int
    restored: int
    rate: float = 0.0
    eta_s: float | None = None


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a partition that a store is restored from, at one moment.

    Attributes:
        stable: Last stable offset: all records below it are decided.
    """

    topic: TopicDescription
    start: int
    end: int
    stable: int
    now_ms: int


RESTORE_SETTINGS: Final = ("delete.retention.ms", "cleanup.policy")


class StoreRestore(msgspec.Struct, eq=False):
    """Restore of one store from one partition: its changelog, or the input that its table reads.

    Attributes:
        position: All records below it are in the store.
        end: Offset where the restore is done; None for a copy.
        known_ms: Time at which `milestone` was the end of the log.
        milestone: A known end of the log; positions are stored once it is reached.
        reached_ms: Last time when the store had all records of the log; None before.
        limit: Committed offset of an input: records from it on are buffered, not applied.
        source: Processes records of an input through the table's operator; None for a changelog.
    """

    task: Task
    store: str
    partition: TopicPartition
    start: int
    position: int
    end: int | None
    known_ms: int
    milestone: int
    reached_ms: int | None = None
    limit: int | None = None
    restored: int = 0
    source: SourceRestore | None = None
    #: Sorted runs are being built: the reader skips the store until they are ingested.
    awaits_runs: bool = False
    #: Offset that the builder of the runs has reached.
    built_to: int = 0
    rate: RestoreRate = msgspec.field(default_factory=RestoreRate)
    stored_position: int | None = None
    is_announced: bool = False
    #: `restored` at the last event for the listener.
    announced_records: int = 0
    _buffered: deque[SourceRecords] = msgspec.field(default_factory=deque[SourceRecords])

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end

    @property
    def remaining(self) -> int:
        """Return the offsets left to read until the end; 0 for a copy."""
        return 0 if self.end is None else max(self.end - max(self.position, self.built_to), 0)

    @property
    def held(self) -> int:
        """Return the number of buffered records beyond the limit."""
        return sum(map(len, self._buffered))

    @property
    def needs_headers(self) -> bool:
        return self.source is not None or self.task.stores.specs[self.store].keeps_headers

    def apply(self, run: SourceRecords) -> int:
        """Write records to the store; return how many were below the limit."""
        if self.limit is None:
            self._write(run)
            return len(run.offsets)
        self._buffered.append(run)
        return self.apply_buffered()

    def apply_buffered(self) -> int:
        applied = 0
        while self._buffered and (self.limit is None or self._buffered[0].offsets[0] < self.limit):
            run = self._buffered.popleft()
            stop = len(run) if self.limit is None else bisect_left(run.offsets, self.limit)
            self._write(run.slice(0, stop))
            applied += stop
            if stop < len(run):
                self._buffered.appendleft(run.slice(stop, len(run)))
                break
        return applied

    def _write(self, run: SourceRecords) -> None:
        # Stores no position before the milestone, so an interrupted restore starts again: meanwhile
        # tombstones of rows read so far may be compacted away.
        self.position = run.offsets[-1] + 1
        self.restored += len(run.offsets)
        stores = self.task.stores
        with stores.trusted():
            stores.write_restored(
                {self.store: self._rows(run)},
                self._position_to_store(),
                now_ms=self.reached_ms or 0,
                times=self._times(run),
            )

    def _rows(self, run: SourceRecords) -> Sequence[tuple[bytes, bytes | None]]:
        if self.source is not None:
            return self.source.rows(run)
        stores = self.task.stores
        shard = self.partition.shard
        if not shard.is_whole:
            run = run.take(rows_of(shard, stores.specs[self.store], run))
        return fold(
            stores.specs[self.store],
            run.raw_keys,
            run.raw_values,
            run.timestamps,
            run.headers,
            slowest_ms=stores.slowest_ms(self.store),
        )

    def _times(self, run: SourceRecords) -> dict[str, StoreTime]:
        """Return a TTL store's stream time; deleted and overwritten rows don't show it."""
        spec = self.task.stores.specs[self.store]
        if spec.ttl_ms is None or self.source is not None:
            return {}
        return {self.store: StoreTime.of(spec, run.raw_keys, run.timestamps)}

    def _position_to_store(self) -> dict[TopicPartition, int]:
        if self.reached_ms is None:
            return {}
        self.stored_position = self.position
        return {self.partition: self.position}

    def advance_to(self, position: int, *, at_end: bool, now_ms: int) -> None:
        """Advance past control records to the reader's position.

        `at_end`: it was the end of the log at `now_ms`.
        """
        if self._buffered:
            position = self._buffered[0].offsets[0]
        if self.limit is not None:
            position = min(position, self.limit)
        self.position = max(self.position, position)
        if at_end and self.limit is None:
            self.milestone, self.known_ms = self.position, now_ms
        if self.position >= self.milestone:
            first = self.reached_ms is None
            self.reached_ms = self.known_ms
            if first:
                self.store_position()

    def finish_runs(self, position: int) -> None:
        self.built_to = 0
        self.position = self.stored_position = position
        self.advance_to(position, at_end=False, now_ms=self.known_ms)

    def raise_limit(self, limit: int, now_ms: int) -> int:
        if self.limit is None or limit <= self.limit:
            return 0
        self.limit = self.milestone = limit
        self.known_ms = now_ms
        return self.apply_buffered()

    def store_position(self) -> None:
        if self.reached_ms is not None and self.stored_position != self.position:
            self.task.stores.write_restored({}, self._position_to_store(), now_ms=self.reached_ms)

    def event(self, kind: EventKind) -> RestoreEvent:
        return RestoreEvent(
            kind=kind,
            store=self.store,
            topic=self.partition.topic,
            partition=self.partition.partition,
            start=self.start,
            end=self.milestone if self.end is None else self.end,
            restored=self.restored,
            rate=self.rate.per_second,
            eta_s=self.rate.seconds_for(self.remaining),
        )


def start_of(
    task: Task,
    store: str,
    facts: LogFacts,
    *,
    end: int,
    extracts: bool,
    follows: bool,
    open_before: bool,
) -> tuple[int, str]:
    """Return the start offset of a restore and the reason: the stored position, or the log's start.

    A store that restarts at the log's start is emptied.

    Args:
        extracts: A timestamp extractor's results depend on all earlier records. With records after
            the position, the restore starts at the log's start.
        follows: A copy, which has no end.
        open_before: The store has stayed open in this worker, so its position is right.
    """
    position = task.stores.position(store)
    if (
        open_before
        and not extracts
        and position is not None
        and position.topic_id == facts.topic.topic_id
    ):
        return position.offset, "it was open here"
    begin, reason = restore_start(
        position,
        topic_id=facts.topic.topic_id,
        log_start=facts.start,
        log_end=end,
        tombstone_retention_ms=tombstone_retention_ms(facts.topic),
        now_ms=facts.now_ms,
    )
    if extracts and position is not None and (follows or position.offset < end):
        begin, reason = StartFrom.BEGINNING, "extracted timestamps depend on all records"
    if begin is StartFrom.POSITION and position is not None:
        return position.offset, reason
    with task.stores.trusted():
        task.stores.forget(store)
    return facts.start, reason


def tombstone_retention_ms(topic: TopicDescription) -> int:
    if "compact" not in topic.config.get("cleanup.policy", "compact"):
        return _UNLIMITED_MS
    return int(topic.config.get("delete.retention.ms", DELETE_RETENTION_MS))


class RestoringTask(msgspec.Struct, eq=False):
    """Task that the loop gets once restored (`grant`), or copy to follow (`copy`)."""

    task: Task
    grant: Grant | None = None
    copy: LearnerTask | None = None
    entries: dict[TopicPartition, StoreRestore] = msgspec.field(
        default_factory=dict[TopicPartition, StoreRestore]
    )
    starts: Mapping[TopicPartition, StartPosition] | None = None
    topic_ids: Mapping[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    #: The task's stores are open and agree with their positions.
    complete: bool = False
    #: Records read since the grant.
    restored: int = 0
    wiped: bool = False
    #: The task may not start under its grant, and waits for the loop's next order.
    refused: bool = False
    #: The task was a copy here, and the previous owner has released it.
    promoted: bool = False

    @property
    def is_awaited(self) -> bool:
        """Return True if the task pauses (now or soon) until it runs here: reads must be short."""
        return self.promoted or (
            self.copy is not None and self.copy.role == "learner" and self.copy.is_ready
        )

    def progress(self, ends: Mapping[TopicPartition, int]) -> CopyProgress:
        return CopyProgress(
            positions={partition: entry.position for partition, entry in self.entries.items()},
            ends={partition: _end_of(entry, ends) for partition, entry in self.entries.items()},
        )


def _end_of(entry: StoreRestore, ends: Mapping[TopicPartition, int]) -> int | None:
    if entry.limit is not None:
        return entry.limit
    # The reader does not read stores that await runs: report at least one record left.
    return (
        max(entry.milestone, entry.position + 1) if entry.awaits_runs else ends.get(entry.partition)
    )


class RestoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task that is ready to run. `restored` counts changelog records read."""

    task: Task
    grant: Grant
    starts: Mapping[TopicPartition, StartPosition]
    topic_ids: Mapping[str, bytes]
    restored: int


class FailedTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task or copy (without a grant) that can't be restored here; it is closed."""

    task: Task
    grant: Grant | None
    error: StateStoreError | TaskCorruptedError


class RefusedTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task that may not start under its grant; its databases stay open until the next order."""

    task: Task
    grant: Grant
    error: StreamsError


class ClosedTask(msgspec.Struct, frozen=True, kw_only=True):
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyUpdateEvent:
    """Progress of a copy of one store that follows one changelog partition (KIP-988).

    `start`, `position` and `end` are offsets: the start of following, the copy's position (the
    store has all records below it), and the known end of the changelog. `restored` counts the
    records since the start, `batch` those since the last event. `role` is "standby" or "learner";
    `reason` is set in "suspended".

    >>> event = StandbyUpdateEvent(
    ...     kind="batch", task_id="0_1", role="standby", store="counts",
    ...     topic="app-counts-changelog", partition=1,
    ...     start=0, position=90, end=100, restored=90, batch=40,
    ... )
    >>> event.end - event.position
    10
    """

    kind: UpdateKind
    task_id: str
    role: str
    store: str
    topic: str
    partition: int
    start: int
    position: int
    end: int
    restored: int
    batch: int = 0
    reason: SuspendReason | None = None


RestoreResult = RestoredTask | FailedTask | RefusedTask | ClosedTask


class RestoreEvents:
    def __init__(
        self,
        on_restore: Callable[[RestoreEvent], None],
        on_standby_update: Callable[[StandbyUpdateEvent], None],
    ) -> None:
        self._on_restore = on_restore
        self._on_standby_update = on_standby_update

    def started(self, restoring: RestoringTask) -> None:
        for entry in restoring.entries.values():
            if restoring.copy is not None:
                entry.is_announced, entry.announced_records = True, entry.restored
                self._on_standby_update(self._update(restoring, entry, "start"))
            elif not entry.is_done:
                entry.is_announced = True
                self._on_restore(entry.event("start"))

    def loaded(self, restoring: RestoringTask, entry: StoreRestore) -> None:
        if not entry.is_announced:
            return
        if restoring.copy is None:
            self._on_restore(entry.event("batch"))
        elif entry.restored > entry.announced_records:
            event = self._update(restoring, entry, "batch")
            entry.announced_records = entry.restored
            self._on_standby_update(event)

    def ended(self, entry: StoreRestore) -> None:
        if entry.is_announced:
            self._on_restore(entry.event("end"))
            entry.is_announced = False

    def suspended(self, restoring: RestoringTask, reason: SuspendReason = "MIGRATED") -> None:
        for report in self._suspensions(restoring, reason):
            report()

    @contextmanager
    def leaving(self, restoring: RestoringTask) -> Generator[None]:
        """Report the end of reading. As in Kafka Streams, a copy's follows its task's close."""
        reports = self._suspensions(restoring, "MIGRATED")
        if restoring.copy is None:
            for report in reports:
                report()
        yield
        if restoring.copy is not None:
            for report in reports:
                report()

    def _suspensions(
        self, restoring: RestoringTask, reason: SuspendReason
    ) -> list[Callable[[], None]]:
        reports: list[Callable[[], None]] = []
        for entry in restoring.entries.values():
            if entry.is_announced:
                entry.is_announced = False
                reports.append(self._suspension(restoring, entry, reason))
        return reports

    def _suspension(
        self, restoring: RestoringTask, entry: StoreRestore, reason: SuspendReason
    ) -> Callable[[], None]:
        if restoring.copy is None:
            event = entry.event("suspended")
            return lambda: self._on_restore(event)
        update = self._update(restoring, entry, "suspended", reason)
        return lambda: self._on_standby_update(update)

    def _update(
        self,
        restoring: RestoringTask,
        entry: StoreRestore,
        kind: UpdateKind,
        reason: SuspendReason | None = None,
    ) -> StandbyUpdateEvent:
        copy = restoring.copy
        assert copy is not None, "only a copy is followed"
        end = None if copy.progress is None else copy.progress.ends.get(entry.partition)
        return StandbyUpdateEvent(
            kind=kind,
            task_id=str(restoring.task.task_id),
            role=copy.role,
            store=entry.store,
            topic=entry.partition.topic,
            partition=entry.partition.partition,
            start=entry.start,
            position=entry.position,
            end=max(end or 0, entry.milestone, entry.position),
            restored=entry.restored,
            batch=max(entry.restored - entry.announced_records, 0),
            reason=reason,
        )
