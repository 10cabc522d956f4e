"""Restoring one store from one partition: where it begins, what of the records read becomes rows, when it is done.

"Done" is judged by position, never by the last record seen, because control records and compaction leave gaps (H29).
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
from tidewheel.state_stores.restore import StartFrom, StoreTime, fold, restore_start
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.ports import TopicDescription
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.start_positions import Grant, StartPosition
from tidewheel.tasks.task.learner_task import CopyProgress, LearnerTask
from tidewheel.tasks.task.source_restore import SourceRestore
from tidewheel.tasks.task.task import Task

UpdateKind = Literal["start", "batch", "suspended"]
#: Why a copy is followed no more, as Kafka Streams' SuspendReason: it has left this worker, or its task is to run here.
SuspendReason = Literal["MIGRATED", "PROMOTED"]


#: The rate is that of the last so many seconds.
_WINDOW_S: Final = 10.0
#: Notes closer together than this are one.
_STEP_S: Final = 0.25
#: A rate lies between two notes.
_SAMPLES_MIN: Final = 2


#: Kafka's default for how long tombstones outlive compaction.
DELETE_RETENTION_MS = 86_400_000

#: Longer than any position is old.
_FOR_EVER_MS: Final = 1 << 62

EventKind = Literal["start", "batch", "end", "suspended"]


class RestoreRate:
    """A rate over the last ten seconds.

    >>> rate = RestoreRate()
    >>> rate.record(0, 100.0)
    >>> rate.record(5_000, 102.0)
    >>> rate.per_second, rate.seconds_for(10_000)
    (2500.0, 4.0)
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        #: (total, when), the oldest first.
        self._samples: deque[tuple[int, float]] = deque()

    def record(self, total: int, now_s: float) -> None:
        """Note how many there are by now, in all; a smaller number than before begins anew."""
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
        """Return the rate as of the last note; 0 before there are two."""
        samples = list(self._samples)  # of one moment: another thread may ask
        if len(samples) < _SAMPLES_MIN:
            return 0.0
        (first, begin_s), (last, end_s) = samples[0], samples[-1]
        return (last - first) / (end_s - begin_s) if end_s > begin_s else 0.0

    def seconds_for(self, remaining: int) -> float | None:
        """Return how long the rest takes at this rate; None if that can't be told."""
        rate = self.per_second
        if remaining <= 0:
            return 0.0
        return remaining / rate if rate > 0 else None


def progress_text(restored: int, remaining: int, rate: RestoreRate) -> str:
    """Return how far a restore is, for people.

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

    `start` and `end` are offsets; `restored` counts the records read so far ("batch", "end") or 0 ("start"). `rate` is how
    many records per second it were of late, and `eta_s` how many seconds the rest takes at that rate (None: not known).

    >>> event = RestoreEvent(
    ...     kind="batch", store="counts", topic="app-counts-changelog", partition=0, start=0, end=200, restored=50
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
    """What the cluster says of the partition that a store is restored from, at one moment.

    Attributes:
        topic: Its topic, with the settings of `RESTORE_SETTINGS`.
        start: First offset in the log.
        end: End of the log (high watermark).
        stable: Last stable offset: all records below it are decided.
        now_ms: When that was so.
    """

    topic: TopicDescription
    start: int
    end: int
    stable: int
    now_ms: int


#: The settings of a topic that restoring asks for.
RESTORE_SETTINGS: Final = ("delete.retention.ms", "cleanup.policy")


class StoreRestore(msgspec.Struct, eq=False):
    """The restore of one store.

    Attributes:
        task: Whose store it is.
        store: Its name.
        partition: What is read: its changelog, or the input that its table reads.
        start: Where reading began.
        position: What is below it is in the store.
        end: Where it is done; None for a copy, which is never done.
        known_ms: When `milestone` was the end of the log.
        milestone: An end of the log that was seen; once it is reached, positions may be kept with the data.
        reached_ms: When all that is in the store was all there was, None before: as old is the position.
        limit: Offsets from here on must not be applied yet (an input of which no more is committed); None: no limit.
        restored: Records applied since `start`.
        source: Set where the partition is an input: its records go through the table's operator.
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
    #: Its sorted runs are being made: it is not read here until they are in the store.
    awaits_runs: bool = False
    #: How far those who make them have come.
    built_to: int = 0
    rate: RestoreRate = msgspec.field(default_factory=RestoreRate)
    #: The position that is on disk.
    stored_position: int | None = None
    #: Whether its start was told, and how many records were when something was told last.
    is_announced: bool = False
    announced_records: int = 0
    _held: deque[SourceRecords] = msgspec.field(default_factory=deque[SourceRecords])

    @property
    def is_done(self) -> bool:
        """Return whether it has come to its end."""
        return self.end is not None and self.position >= self.end

    @property
    def remaining(self) -> int:
        """Return how many offsets are to be read until it is done, here or elsewhere; 0 for a copy."""
        return 0 if self.end is None else max(self.end - max(self.position, self.built_to), 0)

    @property
    def held(self) -> int:
        """Return how many records were read that must not be applied yet."""
        return sum(map(len, self._held))

    @property
    def needs_headers(self) -> bool:
        """Return whether the records' headers are needed, to process them or because the store keeps them."""
        return self.source is not None or self.task.stores.specs[self.store].keeps_headers

    def apply(self, run: SourceRecords) -> int:
        """Write what some records leave behind; return how many were applied (others are kept for later)."""
        if self.limit is None:
            self._write(run)
            return len(run.offsets)
        self._held.append(run)
        return self.apply_held()

    def apply_held(self) -> int:
        """Apply what was read early and is below the limit now; return how many records."""
        applied = 0
        while self._held and (self.limit is None or self._held[0].offsets[0] < self.limit):
            run = self._held.popleft()
            stop = len(run) if self.limit is None else bisect_left(run.offsets, self.limit)
            self._write(run.slice(0, stop))
            applied += stop
            if stop < len(run):
                self._held.appendleft(run.slice(stop, len(run)))
                break
        return applied

    def _write(self, run: SourceRecords) -> None:
        # No position before all there was is read: a restore that is cut short begins where it began, because tombstones
        # for what it has read so far may be compacted away before it goes on.
        self.position = run.offsets[-1] + 1
        self.restored += len(run.offsets)
        stores = self.task.stores
        with stores.trusted():
            stores.write_restored(
                {self.store: self._rows(run)},
                self._position_to_keep(),
                now_ms=self.reached_ms or 0,
                times=self._times(run),
            )

    def _rows(self, run: SourceRecords) -> Sequence[tuple[bytes, bytes | None]]:
        if self.source is not None:
            return self.source.rows(run)
        stores = self.task.stores
        return fold(
            stores.specs[self.store],
            run.raw_keys,
            run.raw_values,
            run.timestamps,
            run.headers,
            slowest_ms=stores.slowest_ms(self.store),
        )

    def _times(self, run: SourceRecords) -> dict[str, StoreTime]:
        """Return what rows don't tell of the records' time: a delete has a time too, and so has what was overwritten."""
        spec = self.task.stores.specs[self.store]
        if spec.ttl_ms is None or self.source is not None:
            return {}
        return {self.store: StoreTime.of(spec, run.raw_keys, run.timestamps)}

    def _position_to_keep(self) -> dict[TopicPartition, int]:
        if self.reached_ms is None:
            return {}
        self.stored_position = self.position
        return {self.partition: self.position}

    def advance_to(self, position: int, *, at_end: bool, now_ms: int) -> None:
        """Note the reader's position, past control records; `at_end`: it was the end of the log at `now_ms`."""
        if self._held:
            position = self._held[0].offsets[0]
        if self.limit is not None:
            position = min(position, self.limit)
        self.position = max(self.position, position)
        if at_end and self.limit is None:
            self.milestone, self.known_ms = self.position, now_ms
        if self.position >= self.milestone:
            first = self.reached_ms is None
            self.reached_ms = self.known_ms
            if first:
                self.keep_position()

    def finish_runs(self, position: int) -> None:
        """Note that runs have brought the store to a position, which is on disk with them."""
        self.built_to = 0
        self.position = self.stored_position = position
        self.advance_to(position, at_end=False, now_ms=self.known_ms)

    def raise_limit(self, limit: int, now_ms: int) -> int:
        """Raise the limit to what is committed of the input now; return how many records that let in."""
        if self.limit is None or limit <= self.limit:
            return 0
        self.limit = self.milestone = limit
        self.known_ms = now_ms
        return self.apply_held()

    def keep_position(self) -> None:
        """Write the position that is reached, unless it is there."""
        if self.reached_ms is not None and self.stored_position != self.position:
            self.task.stores.write_restored({}, self._position_to_keep(), now_ms=self.reached_ms)

    def event(self, kind: EventKind) -> RestoreEvent:
        """Return the event that tells how far it is."""
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
    """Return where restoring a store begins, and why: at its own position, or from the beginning, emptied.

    Args:
        task: Whose store it is, open.
        store: Its name.
        facts: What the cluster says.
        end: Where the log ends for it.
        extracts: Its timestamps depend on all records before, so anything to read means everything.
        follows: There is no end to what will be read.
        open_before: It has been open since its position was right: then it still is.
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
    """Return how long deletes can be read in a topic; where nothing is compacted, as long as anything."""
    if "compact" not in topic.config.get("cleanup.policy", "compact"):
        return _FOR_EVER_MS
    return int(topic.config.get("delete.retention.ms", DELETE_RETENTION_MS))


class RestoringTask(msgspec.Struct, eq=False):
    """A task that is to be handed over (`grant`), or followed as a copy (`copy`)."""

    task: Task
    grant: Grant | None = None
    copy: LearnerTask | None = None
    entries: dict[TopicPartition, StoreRestore] = msgspec.field(
        default_factory=dict[TopicPartition, StoreRestore]
    )
    starts: Mapping[TopicPartition, StartPosition] | None = None
    topic_ids: Mapping[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    #: Its stores are open and are what their positions say.
    complete: bool = False
    #: Records read since the grant.
    restored: int = 0
    wiped: bool = False
    #: It may not start under its grant; nothing is read for it until the next order.
    refused: bool = False
    #: It was a copy, and the owner before has let go.
    promoted: bool = False

    @property
    def is_awaited(self) -> bool:
        """Return whether nobody works on the task until it runs here, or soon nobody will: others make room for it."""
        return self.promoted or (
            self.copy is not None and self.copy.role == "learner" and self.copy.is_ready
        )

    @property
    def is_done(self) -> bool:
        """Return whether all its stores have come to their ends."""
        return all(entry.is_done for entry in self.entries.values())

    def progress(self, ends: Mapping[TopicPartition, int]) -> CopyProgress:
        """Return how far its stores are, given the ends that the reader knows."""
        return CopyProgress(
            positions={each: entry.position for each, entry in self.entries.items()},
            ends={each: _end_of(entry, ends) for each, entry in self.entries.items()},
        )


def _end_of(entry: StoreRestore, ends: Mapping[TopicPartition, int]) -> int | None:
    if entry.limit is not None:
        return entry.limit
    # The reader knows nothing of what is made into runs elsewhere: at least this much is to come.
    return (
        max(entry.milestone, entry.position + 1) if entry.awaits_runs else ends.get(entry.partition)
    )


class RestoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is ready to run.

    Attributes:
        task: The task, its stores open.
        grant: The grant it was restored under.
        starts: Where its inputs begin.
        topic_ids: Ids of its input topics.
        restored: Changelog records that were read since it was asked for.
    """

    task: Task
    grant: Grant
    starts: Mapping[TopicPartition, StartPosition]
    topic_ids: Mapping[str, bytes]
    restored: int


class FailedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task or copy whose state can't be had here; its databases are closed. A copy has no grant."""

    task: Task
    grant: Grant | None
    error: StateStoreError | TaskCorruptedError


class RefusedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that may not start under a grant; its databases stay open until the updater is told what becomes of it."""

    task: Task
    grant: Grant
    error: StreamsError


class ClosedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose databases were closed, as ordered."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyUpdateEvent:
    """Progress of a copy of one store that follows one changelog partition (KIP-988).

    `start`, `position` and `end` are offsets: where following began, where the copy is (all that is below it is in the store),
    and the end of the changelog as far as it is known. `restored` counts the records since the start, `batch` those since
    the last event. `role` is "standby" or "learner"; `reason` is set in "suspended".

    >>> event = StandbyUpdateEvent(
    ...     kind="batch", task_id="0_1", role="standby", store="counts", topic="app-counts-changelog", partition=1,
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


#: Result of an order, for the worker's loop.
RestoreResult = RestoredTask | FailedTask | RefusedTask | ClosedTask


class RestoreEvents:
    """Tells two listeners: one of tasks that are restored to run, one of copies. Called by the updater's thread only.

    Args:
        on_restore: Told of tasks that are to run.
        on_standby_update: Told of copies, learners and standbys alike.
    """

    def __init__(
        self,
        on_restore: Callable[[RestoreEvent], None],
        on_standby_update: Callable[[StandbyUpdateEvent], None],
    ) -> None:
        self._on_restore = on_restore
        self._on_standby_update = on_standby_update

    def started(self, restoring: RestoringTask) -> None:
        """Tell that stores begin to be restored (those that have something to read), or to be followed."""
        for entry in restoring.entries.values():
            if restoring.copy is not None:
                entry.is_announced, entry.announced_records = True, entry.restored
                self._on_standby_update(self._update(restoring, entry, "start"))
            elif not entry.is_done:
                entry.is_announced = True
                self._on_restore(entry.event("start"))

    def loaded(self, restoring: RestoringTask, entry: StoreRestore) -> None:
        """Tell that records were loaded."""
        if not entry.is_announced:
            return
        if restoring.copy is None:
            self._on_restore(entry.event("batch"))
        elif entry.restored > entry.announced_records:
            event = self._update(restoring, entry, "batch")
            entry.announced_records = entry.restored
            self._on_standby_update(event)

    def ended(self, entry: StoreRestore) -> None:
        """Tell that a store of a task that is to run is complete."""
        if entry.is_announced:
            self._on_restore(entry.event("end"))
            entry.is_announced = False

    def suspended(self, restoring: RestoringTask, reason: SuspendReason = "MIGRATED") -> None:
        """Tell that nothing more is read for a task, before all was."""
        for tell in self._suspensions(restoring, reason):
            tell()

    @contextmanager
    def leaving(self, restoring: RestoringTask) -> Generator[None]:
        """Tell that a task leaves, which is closed meanwhile: of a restore before, of a copy after it is closed."""
        told = self._suspensions(restoring, "MIGRATED")
        if restoring.copy is None:
            for tell in told:
                tell()
        yield
        if restoring.copy is not None:
            for tell in told:
                tell()

    def _suspensions(
        self, restoring: RestoringTask, reason: SuspendReason
    ) -> list[Callable[[], None]]:
        tells: list[Callable[[], None]] = []
        for entry in restoring.entries.values():
            if entry.is_announced:
                entry.is_announced = False
                tells.append(self._suspension(restoring, entry, reason))
        return tells

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
        assert copy is not None, "who follows is a copy"
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
