"""Parallel task: key ranges process in a thread pool; the loop distributes and commits.

The loop decodes records in order, calls error handlers, and queues the rest by key. A commit
contains the work that the ranges have sealed (handed over as finished).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.expiry import StoreExpiry
from tidewheel.state_stores.buffers.merged_changes import merge_changes
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import SEGMENTED_KINDS
from tidewheel.state_stores.stores.factory import Store
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.key_ranges.bounds import RangeBounds
from tidewheel.tasks.key_ranges.dealer import Dealer, Share, time_passes, with_passed_row
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges, key_hash, starting_ranges
from tidewheel.tasks.key_ranges.keyed_analysis import (
    counted,
    keyedness,
    overlaps_calls,
    runs_users_objects,
    scanned_stores,
)
from tidewheel.tasks.key_ranges.ledger import (
    Chunk,
    Ledger,
    RunMemory,
    first_restart_point,
    offsets_of,
)
from tidewheel.tasks.key_ranges.loop_watch import Sight
from tidewheel.tasks.key_ranges.own_keys import OwnKeys
from tidewheel.tasks.key_ranges.progress_vector import AHEAD_MAX
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.key_ranges.range_worker import (
    RangeCollector,
    RangeSetting,
    RangeWorker,
    Scheduling,
)
from tidewheel.tasks.key_ranges.repartitioning import Repartitioning
from tidewheel.tasks.key_ranges.sealed_work import Seal, SealBarrier, by_store
from tidewheel.tasks.key_ranges.shared_loop import SharedRunner
from tidewheel.tasks.key_ranges.staged_database import StagedDatabase
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.api.call_window import CallPlaces
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.engine.output import OutputColumns, OutputRuns
from tidewheel.tasks.processing.engine.position_clock import Counted, PositionClock
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.processing.engine.task_processing import TaskCounters, TaskProcessing
from tidewheel.tasks.question import Question
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.task_inputs import TaskInputs
from tidewheel.tasks.task.task_life import TaskLife
from tidewheel.tasks.task.task_parts import TaskParts

_log = logging.getLogger(__name__)

_NO_MAPS: Final[Mapping[TopicPartition, Vector]] = {}

#: A commit does not wait for key ranges whose unit of work takes longer (s).
_UNIT_MAX_S: Final = 0.02
#: Seconds that closing waits for running calls of user code.
_IN_PROGRESS_S: Final = 0.1
#: Seconds that closing waits then for `close` of users' processors.
_CLOSING_S: Final = 10.0
#: Maximum key ranges of a task that calls coroutine functions with batches. Above it, calls of one
#: range overlap: a record then costs a third, but a call that hangs stops more keys.
_OVERLAPPED_RANGES_MAX: Final = 32
#: A range whose unit of work takes longer (s) hangs: the task gets no new key ranges meanwhile.
_HANGS_S: Final = 1.0
#: Seconds that a task's coroutines may block the shared event loop, beyond 2 ms a record, before
#: its only warning.
_BLOCKING_MAX_S: Final = 1.0
#: Checks that must find a step at the same place, a quarter of a second apart, to call it blocking.
_SIGHTS_MIN: Final = 3
_TICK_S: Final = 0.01


class ParallelTask:
    """A `Task` with key ranges; call `set_ranges` before `start`."""

    awaits_commit = False

    def __init__(self, parts: TaskParts, *, bounds: RangeBounds) -> None:
        self.task_id = parts.task_id
        self.plan = parts.plan
        self.stores = parts.stores
        self._inputs = TaskInputs(parts, self._skip_corrupt, self._count_dropped)
        self.life = TaskLife(
            parts, self._inputs, lambda: self.counters, self._expired_puts, self._close_ranges
        )
        self.group = self._inputs.group
        self.next_offsets = self._inputs.next_offsets
        self.partition_times_ms = self._inputs.partition_times_ms
        self.figures = self.life.figures
        self.figures.in_hand = lambda: sum(self._queued_rows())
        self.bounds = bounds
        self.ranges: list[RangeWorker] = []
        self._ledgers: list[Ledger] = []
        self._requested_ranges = KeyRanges()
        self._ranges_in_metadata = 1
        self._repartitioning = Repartitioning()
        self._pool: RangePool | None = None
        self._dealer = Dealer(KeyRanges(), None, -1)
        self._task_counters = TaskCounters()
        self._closed_counters = TaskCounters()
        #: Next offset of each input to distribute to key ranges.
        self._distributed_offsets: dict[TopicPartition, int] = {}
        self._vectors: dict[TopicPartition, Vector] = {}
        self._dead_letters: dict[int, list[OutputColumns]] = {}
        self._distributed_bytes = 0
        self._runs = RunMemory(0)
        #: By range, number of its last seal (finished work for a commit) that `drain` received.
        self._drained_seal_numbers: list[int] = []
        #: Bytes of all seals that `drain` received; `sealed_bytes` of the ranges includes them.
        self._drained_bytes = 0
        self._operator_times: tuple[int, ...] = ()
        self._expiries: dict[str, StoreExpiry] = {}
        #: True if ranges, now or before the start, may have written rows ahead of slower ones.
        self._is_divided = False
        #: Rule that selects records that advance stream time; None if the dealer's clock has it, or
        #: no clock is needed.
        self._counted: Counted | None = None
        self.has_reported_blocking = False
        #: Last place where the event loop was found in a step, and how often in a row.
        self._sight: Sight | None = None
        self._sights = 0
        #: Function that was found in the same call again and again; "": none.
        self._blocks_in = ""

    def _expired_puts(self) -> int:
        return sum(key_range.expired_puts for key_range in self.ranges)

    @property
    def inputs(self) -> frozenset[TopicPartition]:
        return self._inputs.partitions

    @property
    def is_dealt(self) -> bool:
        return self._inputs.is_dealt

    @cached_property
    def calls_batches(self) -> bool:
        return self.life.parts.make_processing(self.figures.metrics).graph.calls_batches

    @property
    def caches(self) -> None:
        return None

    @cached_property
    def ranges_max(self) -> int:
        if self.bounds.factor == 1 or not keyedness(self.plan.spec).keyed:
            return 1
        if self._overlaps_calls:
            return min(self.bounds.factor, _OVERLAPPED_RANGES_MAX)
        return self.bounds.factor

    @cached_property
    def _overlaps_calls(self) -> bool:
        return overlaps_calls(self.plan.spec)

    @cached_property
    def _has_time_callbacks(self) -> bool:
        return runs_users_objects(self.plan.spec)

    def set_ranges(self, pool: RangePool, key_ranges: KeyRanges, ranges_max: int) -> None:
        """Set pool and key ranges; the progress of at most `ranges_max` fits into commit metadata."""
        self._pool = pool
        self._requested_ranges = key_ranges
        self._ranges_in_metadata = ranges_max

    # -- life ------------------------------------------------------------------------------------------------------

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        operator_times_ms: tuple[int, ...] = (),
        old_maps: Mapping[TopicPartition, Vector] = _NO_MAPS,
    ) -> None:
        self.stores.reject_unsorted_keys()
        stream_time_ms = self._inputs.start(offsets, partition_times_ms, old_maps)
        self.life.restore_resources.close()
        self._start_ranges(stream_time_ms, operator_times_ms)
        self.life.cycle.move_to(TaskState.RUNNING)

    def _start_ranges(self, stream_time_ms: int, operator_times_ms: tuple[int, ...]) -> None:
        self._distributed_offsets = dict(self.next_offsets)
        self._operator_times = operator_times_ms
        old_ranges = [old.key_ranges for old in self._inputs.progress_before]
        key_ranges = starting_ranges(
            self._requested_ranges,
            old_ranges,
            self._ranges_in_metadata,
            as_before=self._has_time_callbacks,
        )
        self._make_ranges(key_ranges, stream_time_ms, operator_times_ms)

    def _make_ranges(
        self, key_ranges: KeyRanges, stream_time_ms: int, operator_times_ms: tuple[int, ...]
    ) -> None:
        self._dealer = Dealer(key_ranges, None, stream_time_ms)
        # A range that does not see all records judges lateness by the task's stream time. A single
        # range misses those that earlier ranges processed, and those of other shards.
        self._is_divided = len(key_ranges) > 1 or bool(self._inputs.old_maps)
        self._counted = counted(self.plan.spec) if self._is_divided else None
        factor, count = self.bounds.factor, len(key_ranges)
        places = CallPlaces(factor, count) if factor > count else None
        self.ranges = [
            self._make_range(key_ranges, index, stream_time_ms, operator_times_ms, places)
            for index in range(len(key_ranges))
        ]
        self._ledgers = [Ledger(by_time=self._has_time_callbacks) for _ in self.ranges]
        self._drained_seal_numbers = [0] * len(self.ranges)
        self._distributed_bytes = self._drained_bytes = 0
        self._runs = RunMemory(len(self.ranges))
        self._expiries = {
            name: StoreExpiry(spec, self.stores.database(name))
            for name, spec in self.stores.specs.items()
            if self._is_divided and spec.kind in SEGMENTED_KINDS
        }
        self._wake_ranges(self.ranges)

    def _ensure_clock(self) -> bool:
        """Create the position clock; return False until range 0 restored its operators' time."""
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
        self,
        key_ranges: KeyRanges,
        index: int,
        stream_time_ms: int,
        operator_times_ms: tuple[int, ...],
        places: CallPlaces | None,
    ) -> RangeWorker:
        divided = self._is_divided
        return RangeWorker(
            RangeSetting(
                task=str(self.task_id),
                index=index,
                first_hash=key_ranges.first_hashes[index],
                end_hash=key_ranges.end_of(index),
                cache_bytes=self.bounds.cache_bytes,
                call_places=places,
                stream_time_ms=stream_time_ms,
                operator_times_ms=operator_times_ms,
            ),
            lambda collector: self._make_range_parts(collector, key_ranges, index, divided=divided),
            collector=RangeCollector(self.life.parts.collector.partition_count),
            trusted=self.stores.trusted,
            share=self._shared_loop,
        )

    def _make_range_parts(
        self, collector: RangeCollector, key_ranges: KeyRanges, index: int, *, divided: bool
    ) -> tuple[TaskProcessing, Mapping[str, Store], Sequence[StagedDatabase]]:
        """Return a range's graph, stores and databases; the range's thread calls it."""
        databases: list[StagedDatabase] = []
        own_keys = None
        if len(key_ranges) > 1 and (users := scanned_stores(self.plan.spec)):
            own_keys = OwnKeys(key_ranges.first_hashes[index], key_ranges.end_of(index), users)

        def over(database: Database, families: Sequence[str]) -> Database:
            databases.append(StagedDatabase(database, families, own_keys))
            return databases[-1]

        stores = self.stores.stores_of_range(
            over,
            lambda: processing.record_timestamp(),  # noqa: PLW0108 - made below
            ranges=len(key_ranges),
            divided=divided,
        )
        policy = self.life.parts.policy
        processing = self.life.parts.make_processing(
            self.figures.metrics,
            stores=stores,
            collector=collector,
            policy=policy.emitting(lambda columns: collector.add(columns, internal=False)),
        )
        return processing, stores, databases

    def _shared_loop(self) -> SharedRunner:
        assert self._pool is not None, "a task joins a pool before it starts"
        return self._pool.share()

    def _wake_ranges(self, ranges: Sequence[RangeWorker]) -> None:
        assert self._pool is not None, "a task joins a pool before it starts"
        self._pool.wake(ranges)

    def _close_ranges(self) -> None:
        """Close the ranges; abandon those in a user call that does not return."""
        pool = self._pool
        assert pool is not None, "the task has started"
        closed = SealBarrier(self.ranges)
        for key_range in self.ranges:
            key_range.close(closed)
        self._wake_ranges(self.ranges)
        if not closed.wait(_IN_PROGRESS_S):
            for key_range in self.ranges:
                if not key_range.ended and (
                    key_range.unit_since_s is not None or pool.is_blocked(key_range)
                ):
                    pool.abandon(key_range)
                    closed.sealed(key_range)
            closed.wait(_CLOSING_S)
        for key_range in self.ranges:
            if key_range.closing_error is not None:
                raise key_range.closing_error

    def wind_down(self) -> bool:
        return True

    def halt(self, until_s: float, tick: Callable[[], None]) -> None:
        """Stop the ranges after their records in progress; meanwhile call `tick` every 10 ms.

        Coroutines that still run at `until_s` (monotonic) are cancelled.
        """
        for key_range in self.ranges:
            key_range.halt()
        working = [
            key_range
            for key_range in self.ranges
            if key_range.error is None
            and (key_range.dirty or key_range.scheduling is not Scheduling.IDLE)
        ]
        barrier = SealBarrier(working)
        for key_range in working:
            key_range.request_seal(barrier)
        self._wake_ranges(working)
        while not barrier.wait(min(_TICK_S, until_s - time.monotonic())):
            tick()
            if time.monotonic() >= until_s:
                break
        else:
            return
        for key_range in working:
            key_range.cancel()
        barrier.wait(_IN_PROGRESS_S)

    # -- work ------------------------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> bool:
        if not self.group.records or not self.group.ready(now_ms) or self._repartitioning.is_paused:
            return False
        return self._has_room() and self._ensure_clock()

    def _has_room(self) -> bool:
        waiting = sum(self._queued_rows())
        used = max(waiting / self.bounds.records, self._buffered_bytes() / self.bounds.bytes)
        full = self._repartitioning.is_full(self._backlogs(), waiting, used, len(self.ranges))
        return not full and self._fits_into_metadata()

    def _queued_rows(self) -> list[int]:
        pairs = zip(self._ledgers, self.ranges, strict=False)  # another thread may see new ranges
        return [
            ledger.waiting(key_range.rows_done, key_range.passes_done)
            for ledger, key_range in pairs
        ]

    def _backlogs(self) -> Iterator[tuple[int, float]]:
        yield from zip(
            self._queued_rows(), (key_range.mean_s for key_range in self.ranges), strict=True
        )

    def _buffered_bytes(self) -> int:
        for index, key_range in enumerate(self.ranges):
            self._runs.release(index, key_range.items_done)
        distributed_bytes = self._distributed_bytes - sum(
            key_range.bytes_done for key_range in self.ranges
        )
        return distributed_bytes + self._runs.bytes

    def _fits_into_metadata(self) -> bool:
        """Return False if a range lags by more offsets than commit metadata can encode."""
        return all(
            end - self.next_offsets[partition] < AHEAD_MAX
            for partition, end in self._distributed_offsets.items()
        )

    def set_paused(self, paused: bool) -> None:
        for key_range in self.ranges:
            if paused:
                key_range.halt()
            else:
                key_range.resume()
        self._wake_ranges(self.ranges)

    # -- repartitioning --------------------------------------------------------------------------------------------

    @property
    def has_fixed_ranges(self) -> bool:
        """Return True while the ranges must stay: one hangs, or inputs have records to skip.

        Ranges before the task's start had finished these records.
        """
        now_s = time.monotonic()
        hangs = any(
            (since_s := key_range.unit_since_s) is not None and now_s - since_s > _HANGS_S
            for key_range in self.ranges
        )
        return bool(self._inputs.progress_before) or hangs

    def request_ranges(self, key_ranges: KeyRanges) -> None:
        self._warn_of_blocking()
        self._repartitioning.request(None if key_ranges == self._dealer.ranges else key_ranges)

    def record_sight(self, sight: Sight | None) -> None:
        """Record where the event loop was found in a step of this task, if it was in one."""
        if sight is None:
            return
        self._sights = self._sights + 1 if sight == self._sight else 1
        self._sight = sight
        if sight.can_block and self._sights >= _SIGHTS_MIN:
            self._blocks_in = sight.text

    def _warn_of_blocking(self) -> None:
        if self.has_reported_blocking:
            return
        used_s = sum(key_range.loop_used_s for key_range in self.ranges)
        blocked_s = sum(key_range.loop_blocked_s for key_range in self.ranges)
        if used_s > _BLOCKING_MAX_S or (self._blocks_in and blocked_s > _BLOCKING_MAX_S):
            self.has_reported_blocking = True
            _log.warning(
                "task %s: its coroutines block the event loop instead of awaiting%s, so its key ranges wait for each other; "
                "await long calls, pass them to asyncio.to_thread(), or use plain functions, which run in threads",
                self.task_id,
                f", often in {plain_text(self._blocks_in)}" if self._blocks_in else "",
            )

    @property
    def can_repartition(self) -> bool:
        if self._repartitioning.requested is None:
            return False
        if self.has_fixed_ranges:
            self._repartitioning.request(None)
            return False
        quiet = all(key_range.is_quiet for key_range in self.ranges)
        return self._repartitioning.is_due(self._backlogs(), quiet=quiet, now_s=time.monotonic())

    def repartition(self) -> None:
        quiet = all(
            key_range.is_quiet and not key_range.dirty and not key_range.seals
            for key_range in self.ranges
        )
        if self._repartitioning.requested is None or not quiet:
            return
        times, stream_time_ms = self.operator_times_ms(), self.stream_time_ms
        key_ranges = self._repartitioning.pop()
        _log.info(
            "task %s: %d key ranges become %d", self.task_id, len(self.ranges), len(key_ranges)
        )
        for key_range in self.ranges:
            if key_range.processing is not None:
                self._closed_counters.add(key_range.processing.counters)
        self._close_ranges()
        self._make_ranges(key_ranges, stream_time_ms, times)

    # -- distribution ----------------------------------------------------------------------------------------------

    def process(self, limit: int, late: Callable[[], bool] = lambda: False) -> int:  # noqa: ARG002 - distribution is fast
        waiting = sum(self._queued_rows())
        records = self.group.pop(self._repartitioning.rows_max(limit, waiting, len(self.ranges)))
        if records is None:
            return 0
        partition = self._inputs.input_of(records)
        source = self._inputs.sources[records.topic]
        self._dead_letters = {}
        before_ms = self.partition_times_ms[partition]
        batch = source.decode(records, before_ms)
        chunk, shares, times_ms = self._dealer.deal(
            source.spec.name,
            records,
            batch,
            partition=partition,
            time_before_ms=before_ms,
            old=self._inputs.skipping(records),
            letters=self._dead_letters,
            others={
                other: (offset, self.partition_times_ms[other])
                for other, offset in self._distributed_offsets.items()
                if other != partition
            },
        )
        self.partition_times_ms[partition] = chunk.partition_times_ms[-1]
        if self._inputs.is_dealt:
            self._observe_time(partition, records.latest_ms)
        self._distributed_offsets[partition] = records.end_offset
        self._distribute(chunk, shares, times_ms)
        if self._repartitioning.requested is not None:
            waiting += len(records)
            self._repartitioning.record_rows(len(records), waiting, full=not self._has_room())
        return len(records)

    def _observe_time(self, partition: TopicPartition, latest_ms: int) -> None:
        times, dealer = self.partition_times_ms, self._dealer
        times[partition] = max(times[partition], latest_ms)
        dealer.stream_time_ms = max(dealer.stream_time_ms, latest_ms)

    def _distribute(self, chunk: Chunk, shares: Sequence[Share], times_ms: Sequence[int]) -> None:
        old = self._inputs.old_maps.get(chunk.partition) if self._has_time_callbacks else None
        ends: dict[int, int] = {}
        for share in shares:
            index, key_range = share.index, self.ranges[share.index]
            item = with_passed_row(share.item, chunk, old, key_range.setting)
            self._ledgers[index].add(chunk, item.rows, max(item.passed, ends.get(index, 0)))
            ends[index] = item.end
            self._distributed_bytes += item.size_bytes
            key_range.queue.append(item)
        passing = [
            index
            for index, key_range in enumerate(self.ranges)
            if self._has_time_callbacks and index not in ends and key_range.needs_all_times
        ]
        if passing:
            time_only = time_passes(times_ms)
            for index in passing:
                key_range = self.ranges[index]
                item = with_passed_row(time_only, chunk, old, key_range.setting)
                self._ledgers[index].add_time(chunk, item.passed)
                key_range.queue.append(item)
        self._runs.add(len(times_ms), [*(share.index for share in shares), *passing])
        self._wake_ranges([self.ranges[index] for index in (*ends, *passing)])

    def _skip_corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        if self._inputs.is_processed(records, row):
            return
        letters: list[OutputColumns] = []
        self._inputs.refuse(self.life.parts.policy.emitting(letters.append), records, row, error)
        self._dead_letters[row] = letters
        self._task_counters.skipped += 1

    def _count_dropped(
        self, node: str, count: int, reason: str, first: RecordMetadata | None
    ) -> None:
        self.figures.count_drop(self._task_counters, node, count, reason, first)

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        due = [
            key_range
            for key_range in self.ranges
            if key_range.next_wall_clock_ms is not None and key_range.next_wall_clock_ms <= now_ms
        ]
        for key_range in due:
            key_range.punctuate(now_ms)
        if due:
            self._wake_ranges(due)
        return bool(due)

    def next_wall_clock_ms(self) -> int | None:
        dues = [key_range.next_wall_clock_ms for key_range in self.ranges]
        return min((due for due in dues if due is not None), default=None)

    def check(self) -> None:
        for key_range in self.ranges:
            if key_range.error is not None and not key_range.cancelled:
                raise key_range.error

    def erase(self, erasure: Erasure) -> None:
        # The hash finds the range: with several ranges, a row's key is its record's key.
        index = self._dealer.ranges.index_of(key_hash(erasure.key, 0))
        self.ranges[index].erase(erasure)
        self._wake_ranges([self.ranges[index]])

    # -- commits ---------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.group.records > 0 or any(
            key_range.scheduling is not Scheduling.IDLE or key_range.dirty or key_range.seals
            for key_range in self.ranges
        )

    @property
    def uncommitted_bytes(self) -> int:
        total = sum(key_range.unsealed_bytes + key_range.sealed_bytes for key_range in self.ranges)
        return total - self._drained_bytes

    @property
    def commit_requested(self) -> bool:
        return any(key_range.commit_requested for key_range in self.ranges)

    @commit_requested.setter
    def commit_requested(self, requested: bool) -> None:
        for key_range in self.ranges:
            key_range.commit_requested = requested

    def answer(self, question: Question) -> None:
        question.expect(len(self.ranges))
        for key_range in self.ranges:
            key_range.add_question(question)
        self._wake_ranges(self.ranges)

    def request_seals(self) -> SealBarrier:
        unsealed = [
            key_range for key_range in self.ranges if key_range.dirty and key_range.error is None
        ]
        now_s = time.monotonic()
        barrier = SealBarrier(
            key_range for key_range in unsealed if self._can_seal_soon(key_range, now_s)
        )
        for key_range in unsealed:
            key_range.request_seal(barrier)
        self._wake_ranges(unsealed)
        return barrier

    def _can_seal_soon(self, key_range: RangeWorker, now_s: float) -> bool:
        if key_range.scheduling is Scheduling.RUNNING:
            since_s = key_range.unit_since_s
            return key_range.mean_s < _UNIT_MAX_S and (
                since_s is None or now_s - since_s < _UNIT_MAX_S
            )
        return key_range.awaits or (self._pool is not None and self._pool.may_soon_be_free)

    def drain(self) -> dict[str, Drained]:
        """Pass the ranges' sealed outputs to the collector; return sealed changes by store."""
        seals: list[Seal] = []
        outputs = OutputRuns()
        for index, key_range in enumerate(self.ranges):
            while key_range.seals:
                seal = key_range.seals.popleft()
                seals.append(seal)
                self._ledgers[index].seal(seal.rows_done)
                self._drained_seal_numbers[index] = seal.number
                self._drained_bytes += seal.size_bytes
                if len(self.ranges) == 1:
                    self._operator_times = seal.operator_times_ms
                for columns in seal.outputs:
                    outputs.add(columns)
        for columns in outputs.pop():
            self.life.parts.collector.add(columns, internal=columns.internal)
        return self._merged_changes(by_store(seals))

    def _merged_changes(self, of_ranges: Mapping[str, Sequence[Drained]]) -> dict[str, Drained]:
        """Merge the ranges' changes; add deletes of rows that expired for all of them."""
        changes = {store: merge_changes(drained) for store, drained in of_ranges.items()}
        for store, expiry in self._expiries.items():
            if store in changes:
                extras = expiry.extras(of_ranges[store], self._open_position_ms())
                changes[store] = replace(
                    changes[store], delete_range=extras.delete_range, metadata=extras.metadata
                )
        return changes

    @property
    def may_be_ahead(self) -> bool:
        return False

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None: ...

    def applied(self) -> None:
        for key_range, number in zip(self.ranges, self._drained_seal_numbers, strict=True):
            key_range.applied(number)

    def offset_to_commit(self, partition: TopicPartition, position: int) -> int:
        """Return the lowest unsealed offset, even if its record was done before the task's start.

        A restart skips such records, but must read them to merge the inputs in the same order.
        """
        end = self._distributed_offsets[partition]
        offsets = offsets_of(self._ledgers, partition, end)
        if min(offsets) == end and not self.group.buffers[partition].records:
            end = self._distributed_offsets[partition] = max(end, position)
            offsets = [end] * len(offsets)
        vector = Vector(
            self._dealer.ranges.first_hashes, tuple(offsets), self._dealer.ranges.end_hash
        )
        self._vectors[partition] = self._merge_old_progress(partition, vector)
        self.next_offsets[partition] = lowest = vector.lowest
        return lowest

    def _merge_old_progress(self, partition: TopicPartition, vector: Vector) -> Vector:
        old = self._inputs.old_maps.get(partition)
        self._inputs.settle(partition, vector.lowest)
        if old is not None and vector.lowest < old.highest:
            return vector.together(old)
        return vector.level()

    def progress(self, partition: TopicPartition, offset: int) -> Vector:  # noqa: ARG002 - already in the vector
        return self._vectors[partition]

    def committed_time_ms(self, partition: TopicPartition) -> int:
        first = first_restart_point(self._ledgers)
        return self.partition_times_ms[partition] if first is None else first.time_ms_of(partition)

    def operator_times_ms(self) -> tuple[int, ...]:
        processing = next(
            (key_range.processing for key_range in self.ranges if key_range.processing), None
        )
        is_whole = len(self.ranges) == 1 and self._dealer.clock is None
        if is_whole or processing is None or self._counted is not None:
            return self._operator_times
        return processing.operator_times_at(self._open_position_ms())

    def _open_position_ms(self) -> int:
        first = first_restart_point(self._ledgers)
        return self._dealer.position_ms if first is None else first.position_ms

    # -- figures ---------------------------------------------------------------------------------------------------

    @property
    def counters(self) -> TaskCounters:
        total = TaskCounters()
        of_ranges = [
            key_range.processing.counters for key_range in self.ranges if key_range.processing
        ]
        for part in (self._task_counters, self._closed_counters, *of_ranges):
            total.add(part)
        return total

    @property
    def stream_time_ms(self) -> int:
        return self._dealer.stream_time_ms

    def record_timestamp(self) -> int:
        return max(self.stream_time_ms, 0)


def parallel_tasks(tasks: Iterable[Task]) -> list[ParallelTask]:
    return [task for task in tasks if isinstance(task, ParallelTask)]
