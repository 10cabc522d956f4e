"""Restoring one store from one partition: where it begins, what of the records read becomes rows, when it is done.

"Done" is judged by position, never by the last record seen, because control records and compaction leave gaps (H29).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.restore import StartFrom, StoreTime, fold, restore_start
from tidewheel.tasks.ports import TopicDescription
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.restore_rate import RestoreRate
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.source_restore import SourceRestore

#: Kafka's default for how long tombstones outlive compaction.
DELETE_RETENTION_MS = 86_400_000

#: Longer than any position is old.
_FOR_EVER_MS: Final = 1 << 62

EventKind = Literal["start", "batch", "end", "suspended"]


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

    task: ActiveTask
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
    elsewhere: bool = False
    #: How far those who make them have come.
    ahead: int = 0
    rate: RestoreRate = msgspec.field(default_factory=RestoreRate)
    #: The position that is on disk.
    kept: int | None = None
    #: Whether its start was told, and how many records were when something was told last.
    told: bool = False
    said: int = 0
    _held: deque[SourceRecords] = msgspec.field(default_factory=deque[SourceRecords])

    @property
    def is_done(self) -> bool:
        """Return whether it has come to its end."""
        return self.end is not None and self.position >= self.end

    @property
    def remaining(self) -> int:
        """Return how many offsets are to be read until it is done, here or elsewhere; 0 for a copy."""
        return 0 if self.end is None else max(self.end - max(self.position, self.ahead), 0)

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
            return len(run)
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
        self.restored += len(run)
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
        self.kept = self.position
        return {self.partition: self.position}

    def stands_at(self, position: int, *, at_end: bool, now_ms: int) -> None:
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

    def was_ingested(self, position: int) -> None:
        """Note that runs have brought the store to a position, which is on disk with them."""
        self.ahead = 0
        self.position = self.kept = position
        self.stands_at(position, at_end=False, now_ms=self.known_ms)

    def may_go_to(self, limit: int, now_ms: int) -> int:
        """Raise the limit to what is committed of the input now; return how many records that let in."""
        if self.limit is None or limit <= self.limit:
            return 0
        self.limit = self.milestone = limit
        self.known_ms = now_ms
        return self.apply_held()

    def keep_position(self) -> None:
        """Write the position that is reached, unless it is there."""
        if self.reached_ms is not None and self.kept != self.position:
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
    task: ActiveTask,
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
