"""Parallel task: key ranges process its records in a thread pool; the loop distributes and commits.

The loop decodes the records in their order, asks the handlers about those that can't be read, and gives each range those
of its keys. At a commit it takes what the ranges have sealed by then. For the loop it is a `Task` that is never in the middle
of a record.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.expiry import StoreExpiry
from tidewheel.state_stores.buffers.merged_changes import merge_changes
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import SEGMENTED_KINDS
from tidewheel.state_stores.stores.factory import Store
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.key_ranges.bounds import RangeBounds
from tidewheel.tasks.key_ranges.dealer import Dealer, Share, noting_passed, time_passes
from tidewheel.tasks.key_ranges.done_ranges import OldMap
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges, key_hash
from tidewheel.tasks.key_ranges.keyed_analysis import (
    counted,
    keyedness,
    runs_users_objects,
    scanned_stores,
)
from tidewheel.tasks.key_ranges.ledger import Chunk, Ledger, RunMemory, first_open, offsets_of
from tidewheel.tasks.key_ranges.own_keys import OwnKeys
from tidewheel.tasks.key_ranges.progress_merge import first_cut, level, together
from tidewheel.tasks.key_ranges.progress_vector import AHEAD_MAX, RangeProgress
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.key_ranges.range_worker import (
    RangeCollector,
    RangeSetting,
    RangeWorker,
    Scheduling,
)
from tidewheel.tasks.key_ranges.repartitioning import Repartitioning
from tidewheel.tasks.key_ranges.seal_barrier import SealBarrier
from tidewheel.tasks.key_ranges.sealed_work import Seal, by_store
from tidewheel.tasks.key_ranges.shared_loop import Shared
from tidewheel.tasks.key_ranges.staged_database import StagedDatabase
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.topology_spec import SourceSpec
from tidewheel.tasks.processing.engine.output import OutputColumns, OutputRuns
from tidewheel.tasks.processing.engine.position_clock import Counted, PositionClock
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.processing.engine.task_processing import TaskCounters, TaskProcessing
from tidewheel.tasks.question import Question
from tidewheel.tasks.task.lifecycle import TaskLifecycle, TaskState
from tidewheel.tasks.task.source_restores import SourceRestores
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.task_figures import TaskFigures
from tidewheel.tasks.task.task_inputs import TaskInputs
from tidewheel.tasks.task.task_parts import TaskParts

_log = logging.getLogger(__name__)

_NO_MAPS: Final[Mapping[TopicPartition, OldMap]] = {}

#: A commit does not wait for a unit of work that takes longer.
_UNIT_MAX_S: Final = 0.02
#: Seconds that closing waits for running calls, and for `close` of users' processors.
_IN_PROGRESS_S: Final = 0.1
_CLOSING_S: Final = 10.0
#: A repartitioning does not wait for a unit of work that takes longer.
_HANGS_S: Final = 1.0
#: Total seconds that coroutines may block the shared event loop before a warning.
_KEPT_S: Final = 1.0
#: Seconds between calls of `tick` while `settle` waits.
_TICK_S: Final = 0.01


class ParallelTask:
    """A `Task` that processes in key ranges; `join` comes before `start`."""

    def __init__(self, parts: TaskParts, *, bounds: RangeBounds) -> None:
        self.task_id = parts.task_id
        self.plan = parts.plan
        self.stores = parts.stores
        self._parts = parts
        self._lifecycle = TaskLifecycle(str(parts.task_id))
        self._inputs = TaskInputs(parts, self._corrupt, self._dropped)
        self.group = self._inputs.group
        self.next_offsets = self._inputs.next_offsets
        self.partition_times_ms = self._inputs.partition_times_ms
        self.source_restores = SourceRestores(parts, self._inputs)
        self.figures = TaskFigures(
            parts,
            self.group,
            lambda: self.counters,
            lambda: sum(each.expired_puts for each in self.ranges),
        )
        self.bounds = bounds
        self.ranges: list[RangeWorker] = []
        self._ledgers: list[Ledger] = []
        self._wanted = KeyRanges()
        self._fitting = 1
        self._repartitioning = Repartitioning()
        self._pool: RangePool | None = None
        self._dealer = Dealer(KeyRanges(), None, -1)
        self._own_counters = TaskCounters()
        #: What was done by ranges that are over.
        self._past = TaskCounters()
        #: Next offset to hand out, per input.
        self._handed_out: dict[TopicPartition, int] = {}
        self._vectors: dict[TopicPartition, tuple[RangeProgress, ...]] = {}
        self._letters: dict[int, list[OutputColumns]] = {}
        self._bytes_given = 0
        self._runs = RunMemory(0)
        #: Number of the last seal that was taken of each range, and the sum of the sizes of all taken.
        self._taken: list[int] = []
        self._bytes_taken = 0
        self._operator_times: tuple[int, ...] = ()
        self._expiries: dict[str, StoreExpiry] = {}
        #: Some rows on disk may be those of faster ranges, of this life or of a former one.
        self._divided = False
        #: Which records make the time, until there is a clock for it.
        self._counted: Counted | None = None
        self.has_reported_blocking = False

    @property
    def state(self) -> TaskState:
        return self._lifecycle.state

    @property
    def inputs(self) -> frozenset[TopicPartition]:
        return self._inputs.partitions

    @cached_property
    def calls_batches(self) -> bool:
        return self._parts.make_processing(self.figures.metrics).graph.calls_batches

    @property
    def caches(self) -> None:
        return None

    @cached_property
    def ranges_max(self) -> int:
        """Return the maximum number of ranges: 1 if the sub-topology is not keyed."""
        if self.bounds.factor == 1:
            return 1
        return self.bounds.factor if keyedness(self.plan.spec).keyed else 1

    @cached_property
    def _by_time(self) -> bool:
        """Return True if users' objects may have callbacks on stream time."""
        return runs_users_objects(self.plan.spec)

    def join(self, pool: RangePool, cut: KeyRanges, fitting: int) -> None:
        """Set the pool and the key ranges; commit metadata holds the progress of `fitting` ranges."""
        self._pool = pool
        self._wanted = cut
        self._fitting = fitting

    # -- life ------------------------------------------------------------------------------------------------------

    def move_to(self, state: TaskState) -> None:
        self._lifecycle.move_to(state)

    def add_input(self, partition: TopicPartition, source: SourceSpec) -> None:
        self._inputs.add(partition, source)

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        operator_times_ms: tuple[int, ...] = (),
        old_maps: Mapping[TopicPartition, OldMap] = _NO_MAPS,
    ) -> None:
        self.stores.reject_unsorted_keys()
        stream_time_ms = self._inputs.start(offsets, partition_times_ms, old_maps)
        self.source_restores.close()
        self._begin(stream_time_ms, operator_times_ms)
        self.move_to(TaskState.RUNNING)

    def _begin(self, stream_time_ms: int, operator_times_ms: tuple[int, ...]) -> None:
        self._handed_out = dict(self.next_offsets)
        self._operator_times = operator_times_ms
        before = [each.cut for each in self._inputs.old_maps.values()]
        cut = first_cut(self._wanted, before, self._fitting, as_before=self._by_time)
        self._make_ranges(cut, stream_time_ms, operator_times_ms)

    def _make_ranges(
        self, cut: KeyRanges, stream_time_ms: int, operator_times_ms: tuple[int, ...]
    ) -> None:
        self._dealer = Dealer(cut, None, stream_time_ms)
        # A task in one piece has operators that note the time themselves, but not that of records done before.
        self._divided = len(cut) > 1 or bool(self._inputs.old_maps)
        self._counted = counted(self.plan.spec) if self._divided else None
        self.ranges = [
            self._make_range(cut, index, stream_time_ms, operator_times_ms)
            for index in range(len(cut))
        ]
        self._ledgers = [Ledger(by_time=self._by_time) for _ in self.ranges]
        self._taken = [0] * len(self.ranges)
        self._bytes_given = self._bytes_taken = 0
        self._runs = RunMemory(len(self.ranges))
        self._expiries = {
            name: StoreExpiry(spec, self.stores.database(name))
            for name, spec in self.stores.specs.items()
            if self._divided and spec.kind in SEGMENTED_KINDS
        }
        self._wake(self.ranges)

    def _has_clock(self) -> bool:
        """Return whether times of positions can be told, if anybody goes by them: the operators know the first one."""
        if self._counted is None:
            return True
        processing = self.ranges[0].processing
        if processing is None:
            return False
        begin_ms = processing.position_time_ms(self._dealer.stream_time_ms)
        self._dealer.clock = PositionClock(self._counted, begin_ms)
        self._counted = None
        return True

    def _make_range(
        self, cut: KeyRanges, index: int, stream_time_ms: int, operator_times_ms: tuple[int, ...]
    ) -> RangeWorker:
        divided = self._divided
        return RangeWorker(
            RangeSetting(
                task=str(self.task_id),
                index=index,
                first_hash=cut.first_hashes[index],
                end_hash=cut.end_of(index),
                cache_bytes=self.bounds.cache_bytes,
                stream_time_ms=stream_time_ms,
                operator_times_ms=operator_times_ms,
            ),
            lambda collector: self._make_range_parts(collector, cut, index, divided=divided),
            collector=RangeCollector(self._parts.collector.partition_count),
            trusted=self.stores.trusted,
            share=self._share,
        )

    def _make_range_parts(
        self, collector: RangeCollector, cut: KeyRanges, index: int, *, divided: bool
    ) -> tuple[TaskProcessing, Mapping[str, Store], Sequence[StagedDatabase]]:
        """Make the graph, stores and databases of one range. Called in its thread."""
        databases: list[StagedDatabase] = []
        own = None
        if len(cut) > 1 and (users := scanned_stores(self.plan.spec)):
            own = OwnKeys(cut.first_hashes[index], cut.end_of(index), users)

        def over(database: Database, families: Sequence[str]) -> Database:
            databases.append(StagedDatabase(database, families, own))
            return databases[-1]

        stores = self.stores.stores_of_range(
            over,
            lambda: processing.record_timestamp(),  # noqa: PLW0108 - made below
            ranges=len(cut),
            divided=divided,
        )
        policy = self._parts.policy
        processing = self._parts.make_processing(
            self.figures.metrics,
            stores=stores,
            collector=collector,
            policy=policy.emitting(lambda columns: collector.add(columns, internal=False)),
        )
        return processing, stores, databases

    def _share(self) -> Shared:
        assert self._pool is not None, "a task joins a pool before it starts"
        return self._pool.share()

    def _wake(self, ranges: Sequence[RangeWorker]) -> None:
        assert self._pool is not None, "a task joins a pool before it starts"
        self._pool.wake(ranges)

    def close(self) -> None:
        if self.state is TaskState.CLOSED:
            return
        try:
            self.retire()
        finally:
            self.stores.close()

    def retire(self) -> None:
        self.figures.report_expired_puts()
        self._lifecycle.end(self._close_processing)

    def _close_processing(self) -> None:
        self.source_restores.close()
        if self.next_offsets:
            self._end()

    def _end(self) -> None:
        """Close the ranges: those in a call that does not return are left behind."""
        pool = self._pool
        assert pool is not None, "it has started"
        over = SealBarrier(self.ranges)
        for each in self.ranges:
            each.close(over)
        self._wake(self.ranges)
        if not over.wait(_IN_PROGRESS_S):
            for each in self.ranges:
                if not each.ended and (each.unit_since_s is not None or pool.is_blocked(each)):
                    pool.leave_behind(each)
                    over.sealed(each)
            over.wait(_CLOSING_S)
        for each in self.ranges:
            if each.closing_error is not None:
                raise each.closing_error

    def settle(self, until_s: float, tick: Callable[[], None]) -> None:
        """Stop working, after the records at hand; coroutines that don't end by then are cancelled.

        Args:
            until_s: When to wait no longer for calls in hand (`time.monotonic`).
            tick: Called now and then while it waits.
        """
        for each in self.ranges:
            each.halt()
        working = [
            each
            for each in self.ranges
            if each.error is None and (each.dirty or each.scheduling is not Scheduling.IDLE)
        ]
        barrier = SealBarrier(working)
        for each in working:
            each.request_seal(barrier)
        self._wake(working)
        while not barrier.wait(min(_TICK_S, until_s - time.monotonic())):
            tick()
            if time.monotonic() >= until_s:
                break
        else:
            return
        for each in working:
            each.cancel()
        barrier.wait(_IN_PROGRESS_S)

    # -- work ------------------------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> bool:
        """Return whether records can be handed out: some are buffered, and the ranges have room for them."""
        may = self.group.records > 0 and self.group.ready(now_ms) and not self._repartitioning.holds
        return may and self._has_room() and self._has_clock()

    def _has_room(self) -> bool:
        waiting = sum(self._waiting())
        used = max(waiting / self.bounds.records, self._bytes_held() / self.bounds.bytes)
        full = self._repartitioning.is_full(self._backlogs(), waiting, used, len(self.ranges))
        return not full and self._is_near()

    def _waiting(self) -> list[int]:
        """Return the rows of each range that are queued or in progress."""
        pairs = zip(self._ledgers, self.ranges, strict=True)
        return [ledger.waiting(each.rows_done, each.passes_done) for ledger, each in pairs]

    def _backlogs(self) -> Iterator[tuple[int, float]]:
        """Yield per range its queued and running rows, and the seconds that one row takes."""
        yield from zip(self._waiting(), (each.mean_s for each in self.ranges), strict=True)

    def _bytes_held(self) -> int:
        """Return the approximate memory of records queued in the ranges."""
        for index, each in enumerate(self.ranges):
            self._runs.let_go(index, each.items_done)
        own = self._bytes_given - sum(each.bytes_done for each in self.ranges)
        return own + self._runs.bytes

    def _is_near(self) -> bool:
        """Return False if a stuck range is so far behind that commit metadata can't hold the distance."""
        return all(
            end - self.next_offsets[partition] < AHEAD_MAX
            for partition, end in self._handed_out.items()
        )

    def rest(self, resting: bool) -> None:
        """Pause after the current records, or resume."""
        for each in self.ranges:
            if resting:
                each.halt()
            else:
                each.resume()
        self._wake(self.ranges)

    # -- another cut -----------------------------------------------------------------------------------------------

    @property
    def has_fixed_ranges(self) -> bool:
        """Return True if ranges must not change: one hangs, or earlier ranges were unevenly far."""
        now_s = time.monotonic()
        hangs = any(
            (since_s := each.unit_since_s) is not None and now_s - since_s > _HANGS_S
            for each in self.ranges
        )
        return bool(self._inputs.old_maps) or hangs

    def wish(self, cut: KeyRanges) -> None:
        """Request other key ranges, for a moment without work in progress."""
        self._tell_of_blocking()
        self._repartitioning.ask(None if cut == self._dealer.ranges else cut)

    def _tell_of_blocking(self) -> None:
        if not self.has_reported_blocking and sum(each.kept_s for each in self.ranges) > _KEPT_S:
            self.has_reported_blocking = True
            _log.warning(
                "task %s: its coroutines block the event loop instead of awaiting, so its key ranges wait for each other; "
                "await what takes long, give it to asyncio.to_thread(), or make the functions plain ones, which run in threads",
                self.task_id,
            )

    @property
    def can_repartition(self) -> bool:
        """Return True if a repartitioning is due and no range has work in progress."""
        if self._repartitioning.wish is None:
            return False
        if self.has_fixed_ranges:
            self._repartitioning.ask(None)
            return False
        quiet = all(each.is_quiet for each in self.ranges)
        return self._repartitioning.is_due(self._backlogs(), quiet=quiet, now_s=time.monotonic())

    def repartition(self) -> None:
        """Change the key ranges as requested, if all work is committed."""
        quiet = all(each.is_quiet and not each.dirty and not each.seals for each in self.ranges)
        if self._repartitioning.wish is None or not quiet:
            return
        times, stream_time_ms = self.operator_times_ms(), self.stream_time_ms
        cut = self._repartitioning.take()
        _log.info("task %s: %d key ranges become %d", self.task_id, len(self.ranges), len(cut))
        for each in self.ranges:
            if each.processing is not None:
                self._past.add(each.processing.counters)
        self._end()
        self._make_ranges(cut, stream_time_ms, times)

    # -- handing out -----------------------------------------------------------------------------------------------

    def process(self, limit: int, late: Callable[[], bool] = lambda: False) -> int:  # noqa: ARG002 - handing out is fast
        """Hand out the next run of at most `limit` records; return how many, 0 if nothing is buffered."""
        waiting = sum(self._waiting())
        records = self.group.take(self._repartitioning.rows_max(limit, waiting, len(self.ranges)))
        if records is None:
            return 0
        partition = TopicPartition(records.topic, records.partition)
        source = self._inputs.sources[records.topic]
        self._letters = {}
        before_ms = self.partition_times_ms[partition]
        batch = source.decode(records, before_ms)
        chunk, shares, times_ms = self._dealer.deal(
            source.spec.name,
            records,
            batch,
            time_before_ms=before_ms,
            old=self._inputs.old_maps.get(partition),
            letters=self._letters,
            others={
                each: (offset, self.partition_times_ms[each])
                for each, offset in self._handed_out.items()
                if each != partition
            },
        )
        self.partition_times_ms[partition] = chunk.partition_times_ms[-1]
        self._handed_out[partition] = records.offsets[-1] + 1
        self._give(chunk, shares, times_ms)
        if self._repartitioning.wish is not None:
            waiting += len(records)
            self._repartitioning.given(len(records), waiting, full=not self._has_room())
        return len(records)

    def _give(self, chunk: Chunk, shares: Sequence[Share], times_ms: Sequence[int]) -> None:
        old = self._inputs.old_maps.get(chunk.partition) if self._by_time else None
        ends: dict[int, int] = {}
        for share in shares:
            index, each = share.index, self.ranges[share.index]
            item = noting_passed(share.item, chunk, old, each.setting)
            self._ledgers[index].give(chunk, item.rows, max(item.passed, ends.get(index, 0)))
            ends[index] = item.end
            self._bytes_given += item.size_bytes
            each.queue.append(item)
        passing = [
            index
            for index, each in enumerate(self.ranges)
            if self._by_time and index not in ends and each.goes_by_time
        ]
        if passing:
            time_only = time_passes(times_ms)
            for index in passing:
                each = self.ranges[index]
                item = noting_passed(time_only, chunk, old, each.setting)
                self._ledgers[index].give_time(chunk, item.passed)
                each.queue.append(item)
        self._runs.give(len(times_ms), [*(share.index for share in shares), *passing])
        self._wake([self.ranges[index] for index in (*ends, *passing)])

    def _corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        if self._inputs.is_processed(records, row):
            return
        letters: list[OutputColumns] = []
        self._inputs.refuse(self._parts.policy.emitting(letters.append), records, row, error)
        self._letters[row] = letters
        self._own_counters.skipped += 1

    def _dropped(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        self.figures.count_drop(self._own_counters, node, count, reason, first)

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        """Have the ranges call what is due by the wall clock; return whether anything is."""
        due = [
            each
            for each in self.ranges
            if each.next_wall_clock_ms is not None and each.next_wall_clock_ms <= now_ms
        ]
        for each in due:
            each.punctuate(now_ms)
        if due:
            self._wake(due)
        return bool(due)

    def next_wall_clock_ms(self) -> int | None:
        dues = [each.next_wall_clock_ms for each in self.ranges]
        return min((due for due in dues if due is not None), default=None)

    def check(self) -> None:
        """Raise the error that ended a range, if any."""
        for each in self.ranges:
            if each.error is not None and not each.cancelled:
                raise each.error

    def erase(self, erasure: Erasure) -> None:
        """Have the range of a key delete its rows; what it did is sealed when the erasure is over."""
        # Where a task is cut, the keys of its rows are those of the records.
        index = self._dealer.ranges.index_of(key_hash(erasure.key, 0))
        self.ranges[index].erase(erasure)
        self._wake([self.ranges[index]])

    # -- commits ---------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.group.records > 0 or any(
            each.scheduling is not Scheduling.IDLE or each.dirty or each.seals
            for each in self.ranges
        )

    @property
    def uncommitted_bytes(self) -> int:
        """Return about how much memory the uncommitted changes and outputs hold."""
        made = sum(each.unsealed_bytes + each.sealed_bytes for each in self.ranges)
        return made - self._bytes_taken

    @property
    def commit_requested(self) -> bool:
        return any(each.commit_requested for each in self.ranges)

    @commit_requested.setter
    def commit_requested(self, asked: bool) -> None:
        for each in self.ranges:
            each.commit_requested = asked

    def answer(self, question: Question) -> None:
        """Have each range answer after its current unit."""
        question.expect(len(self.ranges))
        for each in self.ranges:
            each.ask(question)
        self._wake(self.ranges)

    def request_seals(self) -> SealBarrier:
        """Request seals from all ranges; the barrier awaits those that will seal soon."""
        asked = [each for each in self.ranges if each.dirty and each.error is None]
        now_s = time.monotonic()
        barrier = SealBarrier(each for each in asked if self._seals_soon(each, now_s))
        for each in asked:
            each.request_seal(barrier)
        self._wake(asked)
        return barrier

    def _seals_soon(self, each: RangeWorker, now_s: float) -> bool:
        if each.scheduling is Scheduling.RUNNING:
            since_s = each.unit_since_s
            return each.mean_s < _UNIT_MAX_S and (since_s is None or now_s - since_s < _UNIT_MAX_S)
        return each.awaits or (self._pool is not None and self._pool.may_soon_be_free)

    def drain(self) -> dict[str, Drained]:
        """Take what the ranges have sealed: outputs go to the collector, changes are returned by store."""
        seals: list[Seal] = []
        outputs = OutputRuns()
        for index, each in enumerate(self.ranges):
            while each.seals:
                seal = each.seals.popleft()
                seals.append(seal)
                self._ledgers[index].seal(seal.rows_done)
                self._taken[index] = seal.number
                self._bytes_taken += seal.size_bytes
                if len(self.ranges) == 1:
                    self._operator_times = seal.operator_times_ms
                for columns in seal.outputs:
                    outputs.add(columns)
        for columns in outputs.take():
            self._parts.collector.add(columns, internal=columns.internal)
        return self._changes(by_store(seals))

    def _changes(self, of_ranges: Mapping[str, Sequence[Drained]]) -> dict[str, Drained]:
        """Return the changes of the ranges, and delete with them what has expired for the last of the ranges."""
        changes = {store: merge_changes(each) for store, each in of_ranges.items()}
        for store, expiry in self._expiries.items():
            if store in changes:
                extras = expiry.extras(of_ranges[store], self._open_position_ms())
                changes[store] = replace(
                    changes[store], delete_range=extras.delete_range, notes=extras.notes
                )
        return changes

    @property
    def may_be_ahead(self) -> bool:
        """Return False: ranges run during a commit, and the loop has little other work."""
        return False

    def applied(self) -> None:
        """Notify the ranges that drained changes are in the databases."""
        for each, number in zip(self.ranges, self._taken, strict=True):
            each.applied(number)

    def offset_to_commit(self, partition: TopicPartition, position: int) -> int:
        """Return the lowest offset that no range has sealed; see `Task.offset_to_commit`.

        Ranges of a former life may have been further, all of them: it is where the inputs are to be read from, so that they
        are merged as they were.
        """
        end = self._handed_out[partition]
        offsets = offsets_of(self._ledgers, partition, end)
        if min(offsets) == end and not self.group.buffers[partition].records:
            end = self._handed_out[partition] = max(end, position)
            offsets = [end] * len(offsets)
        vector = tuple(map(RangeProgress, self._dealer.ranges.first_hashes, offsets))
        self._vectors[partition] = self._with_old(partition, vector)
        self.next_offsets[partition] = lowest = min(entry.offset for entry in vector)
        return lowest

    def _with_old(
        self, partition: TopicPartition, vector: tuple[RangeProgress, ...]
    ) -> tuple[RangeProgress, ...]:
        """Return how far each range is, with what ranges of a former life had done."""
        old = self._inputs.old_maps.get(partition)
        if old is not None and min(entry.offset for entry in vector) < old.highest:
            return together(vector, old.ranges)
        self._inputs.old_maps.pop(partition, None)
        return level(vector)

    def progress(self, partition: TopicPartition, offset: int) -> tuple[RangeProgress, ...]:  # noqa: ARG002 - it is known
        return self._vectors[partition]

    def committed_time_ms(self, partition: TopicPartition) -> int:
        first = first_open(self._ledgers)
        return self.partition_times_ms[partition] if first is None else first.time_ms_of(partition)

    def operator_times_ms(self) -> tuple[int, ...]:
        begun = next((each.processing for each in self.ranges if each.processing), None)
        whole = len(self.ranges) == 1 and self._dealer.clock is None
        if whole or begun is None or self._counted is not None:
            return self._operator_times
        return begun.operator_times_at(self._open_position_ms())

    def _open_position_ms(self) -> int:
        """Return the time of the position of the first record that is not sealed."""
        first = first_open(self._ledgers)
        return self._dealer.position_ms if first is None else first.position_ms

    # -- what others ask -------------------------------------------------------------------------------------------

    @property
    def counters(self) -> TaskCounters:
        total = TaskCounters()
        of_ranges = [each.processing.counters for each in self.ranges if each.processing]
        for part in (self._own_counters, self._past, *of_ranges):
            total.add(part)
        return total

    @property
    def stream_time_ms(self) -> int:
        return self._dealer.stream_time_ms

    def record_timestamp(self) -> int:
        return max(self.stream_time_ms, 0)


def parallel_tasks(tasks: Iterable[Task]) -> list[ParallelTask]:
    """Return those of `tasks` that have key ranges."""
    return [task for task in tasks if isinstance(task, ParallelTask)]
