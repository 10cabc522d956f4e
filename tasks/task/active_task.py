"""A task that processes: its input buffers, its graph, its stores, and how far it has come.

The worker's loop tells it what arrived and when to work; it never polls, produces or reads a clock by itself.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.internal_topics import SubtopologyPlan
from tidewheel.tasks.key_ranges.done_ranges import OldMap
from tidewheel.tasks.key_ranges.key_ranges import key_hash, key_hashes
from tidewheel.tasks.key_ranges.keyed_analysis import counted
from tidewheel.tasks.key_ranges.progress_vector import RangeProgress
from tidewheel.tasks.key_ranges.seal_barrier import Cut
from tidewheel.tasks.processing.api.app_configs import NO_CONFIGS, AppConfigs
from tidewheel.tasks.processing.api.coroutines import close_loop
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.topology_spec import (
    ProcessorSpec,
    SourceSpec,
    TimestampExtractor,
)
from tidewheel.tasks.processing.engine.drops import Drop
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy, input_failure
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.position_clock import PositionClock
from tidewheel.tasks.processing.engine.record_batch import JointRecords, RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.sink import Collector
from tidewheel.tasks.processing.engine.source import SourceNode
from tidewheel.tasks.processing.engine.task_processing import (
    TaskCounters,
    TaskProcessing,
    TaskSetting,
)
from tidewheel.tasks.question import Question
from tidewheel.tasks.task.lifecycle import TaskState, moved
from tidewheel.tasks.task.partition_group import NEVER_IDLE, PartitionGroup
from tidewheel.tasks.task.source_restore import SourceRestore
from tidewheel.tasks.task.state_manager import StateManager

_log = logging.getLogger(__name__)

#: Why a store drops a processor's put.
_EXPIRED_PUT: Final = "put with a time that its store does not keep any more"
_NO_MAPS: Final[Mapping[TopicPartition, OldMap]] = {}


class ActiveTask:
    """One sub-topology on one partition, processing.

    Attributes:
        state: Moves only through `tidewheel.tasks.task.lifecycle`.
        next_offsets: Per input partition the offset of the next record to process: what a commit commits.
        partition_times_ms: Largest timestamp processed per input partition, -1 before the first.
        setting: What its nodes and processors are told of the application.
    """

    def __init__(  # noqa: PLR0913 - what a task is made of; a bundle would only move the list
        self,
        task_id: TaskId,
        plan: SubtopologyPlan,
        state_manager: StateManager,
        *,
        application_id: str,
        topic_prefix: str,
        state_dir: Path,
        collector: Collector,
        policy: ErrorPolicy,
        now_ms: Callable[[], int],
        app_configs: AppConfigs = NO_CONFIGS,
        default_timestamp_extractor: TimestampExtractor | None = None,
        emit_interval_ms: int = 0,
        max_task_idle_ms: int = NEVER_IDLE,
        global_stores: Mapping[str, Any] | None = None,
        record_by_record: bool = False,
    ) -> None:
        self.task_id = task_id
        self.plan = plan
        self.stores = state_manager
        self.state = TaskState.CREATED
        self.next_offsets: dict[TopicPartition, int] = {}
        self.partition_times_ms: dict[TopicPartition, int] = {}
        self.setting = TaskSetting(
            application_id=application_id,
            topic_prefix=topic_prefix,
            state_dir=state_dir,
            now_ms=now_ms,
            app_configs=app_configs,
            emit_interval_ms=emit_interval_ms,
            global_stores=global_stores or {},
            record_by_record=record_by_record,
        )
        self._collector = collector
        self._policy = policy
        self._default_timestamp_extractor = default_timestamp_extractor
        #: Of partitions that key ranges have worked on: what is done beyond the offset that was committed.
        self._old_maps: dict[TopicPartition, OldMap] = {}
        #: Whether records may come that were done before, and the time of their positions: operators don't see them.
        self._catches_up = False
        self._clock: PositionClock | None = None
        self._restores: list[SourceRestore] = []
        #: Dropped puts that were looked at, and how many of them were of processors.
        self._expired_reported = self._expired_of_processors = 0
        self.inputs = plan.inputs(task_id.partition)
        self.group = PartitionGroup(self.inputs, max_task_idle_ms=max_task_idle_ms)
        self._sources = {
            topic: self._make_source(source)
            for source in plan.spec.sources
            for topic in plan.source_topics[source.name]
        }
        self._order_inputs()

    @cached_property
    def processing(self) -> TaskProcessing:
        """Return what runs the records; made when it is first needed."""
        return TaskProcessing(
            self.task_id,
            self.plan.spec,
            self.setting,
            stores=self.stores.stores,
            collector=self._collector,
            policy=self._policy,
            figures=self.metrics,
        )

    @property
    def graph(self) -> TaskGraph:
        """Return the nodes."""
        return self.processing.graph

    @property
    def counters(self) -> TaskCounters:
        """Return what was done so far."""
        return self.processing.counters

    @property
    def commit_requested(self) -> bool:
        """Return whether a processor asked for a commit."""
        return self.processing.commit_requested

    @commit_requested.setter
    def commit_requested(self, asked: bool) -> None:
        self.processing.commit_requested = asked

    def _make_source(self, source: SourceSpec) -> SourceNode:
        # Internal topics carry timestamps that were extracted when the records came in.
        default = None if source.internal else self._default_timestamp_extractor
        return SourceNode(source, self._corrupt, self._dropped, default)

    def _order_inputs(self) -> None:
        """Merge several inputs by the timestamps that count; a single one needs none before its turn."""
        if len(self.inputs) > 1:
            for partition, buffer in self.group.buffers.items():
                if self._sources[partition.topic].extracts:
                    buffer.decode_ahead = partial(self._decode_ahead, partition)

    def _decode_ahead(
        self, partition: TopicPartition, records: SourceRecords
    ) -> list[SourceRecords]:
        source = self._sources[partition.topic]
        return source.decode_ahead(records, self.partition_times_ms[partition])

    def add_input(self, partition: TopicPartition, source: SourceSpec) -> None:
        """Read one more partition, of a topic that a pattern matches."""
        self.inputs |= {partition}
        self.group.add_partition(partition)
        self._sources[partition.topic] = self._make_source(source)
        self._order_inputs()
        self.next_offsets.setdefault(partition, 0)
        self.partition_times_ms.setdefault(partition, -1)

    # -- life ------------------------------------------------------------------------------------------------------

    def move_to(self, state: TaskState) -> None:
        """Go to another state, if that is a legal move."""
        self.state = moved(str(self.task_id), self.state, state)

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        operator_times_ms: tuple[int, ...] = (),
        old_maps: Mapping[TopicPartition, OldMap] = _NO_MAPS,
    ) -> None:
        """Begin processing at these offsets; the stores are restored.

        Args:
            offsets: Per input the offset to begin at.
            partition_times_ms: Per input the largest timestamp before that offset.
            operator_times_ms: What `operator_times_ms` returned at the commit of those offsets; () if that is not known.
            old_maps: How far each key range was at that commit, of the inputs where that is known.
        """
        assert set(offsets) == set(self.inputs), "every input has an offset"
        self.stores.reject_unsorted_keys()
        self.next_offsets = dict(offsets)
        self.partition_times_ms = {
            partition: partition_times_ms.get(partition, -1) for partition in self.inputs
        }
        self._old_maps = {
            each: old for each, old in old_maps.items() if old.highest > offsets[each]
        }
        self._catches_up = bool(self._old_maps)
        self._end_restores()
        self._begin(max(self.partition_times_ms.values(), default=-1), operator_times_ms)
        self.move_to(TaskState.RUNNING)

    def _begin(self, stream_time_ms: int, operator_times_ms: tuple[int, ...]) -> None:
        self.processing.begin(stream_time_ms, operator_times_ms)
        if self._old_maps and len(self.processing.stream_schedules):
            _log.warning(
                "task %s: its key ranges were unevenly far at the last commit and are one now, so until the slowest is where the "
                "furthest was, callbacks of stream time see keys for which that time had passed; to avoid it, go back to factor 1 "
                "at a lag of 0",
                self.task_id,
            )
        counts = counted(self.plan.spec) if self._old_maps else None
        if counts is not None:
            for store in self.stores.stores.values():
                store.divide()
            self._clock = PositionClock(counts, self.processing.position_time_ms(stream_time_ms))

    def suspend(self) -> None:
        """Stop processing; legal while restoring or running."""
        self.move_to(TaskState.SUSPENDED)

    def close(self) -> None:
        """Close processors and stores; what was not committed is forgotten. Never fails half-way."""
        if self.state is TaskState.CLOSED:
            return
        try:
            self.retire()
        finally:
            self.stores.close()

    def retire(self) -> None:
        """Close the processors and be over; the stores stay open, for a copy or for whoever closes them elsewhere."""
        if self.state in (TaskState.RESTORING, TaskState.RUNNING):
            self.suspend()
        self.report_expired_puts()
        try:
            self._end_restores()
            if self.next_offsets:
                self._end()
        finally:
            self.move_to(TaskState.CLOSED)
            close_loop()

    def _end(self) -> None:
        self.graph.close()

    # -- work ------------------------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> bool:
        """Return whether something is buffered and no input is waited for (`max_task_idle_ms`)."""
        return self.group.records > 0 and self.group.ready(now_ms)

    def process(self, limit: int, late: Callable[[], bool] = lambda: False) -> int:
        """Process the next run of at most `limit` records; return how many were done, 0 if nothing is buffered.

        Stops early when a processor asks for a commit or, between single records, when `late()` says so. Runs of several
        inputs are processed as one where the graph takes them so.
        """
        if len(self.inputs) > 1 and self.graph.takes_joint and not self._catches_up:
            return self._process_together(limit)
        records = self.group.take(limit)
        return 0 if records is None else self.process_taken(records, late)

    def process_taken(
        self, records: SourceRecords, late: Callable[[], bool] = lambda: False
    ) -> int:
        """Process records that were taken from the buffers, as `process` does."""
        if self.graph.batched:
            self._process_run(records)
            done = len(records)
        else:
            done = self._process_singly(records, late)
        self.counters.processed += done
        return done

    def _process_together(self, limit: int) -> int:
        taken = self.group.take_together(limit)
        if len(taken) == 1:
            return self.process_taken(taken[0][0])
        decoded: list[tuple[str, RecordBatch, list[int]]] = []
        sources: list[SourceRecords] = []
        for records, places in taken:
            name, batch = self._decoded(records)
            if len(batch):
                assert batch.source is not None, "a source batch has a source"
                # What was decoded ahead is a part of more records.
                first = bisect_left(batch.source.offsets, records.offsets[0])
                sources.append(batch.source)
                decoded.append((name, batch, [places[row - first] for row in batch.rows]))
        if decoded:
            joint = JointRecords(sources)
            for (_, batch, _), start in zip(decoded, joint.starts, strict=True):
                batch.rows = [row + start for row in batch.rows]
                batch.source = joint
            self.graph.run_together(decoded)
        for records, _ in taken:
            self._passed(records)
        done = sum(len(records) for records, _ in taken)
        self.counters.processed += done
        return done

    def _decoded(self, records: SourceRecords) -> tuple[str, RecordBatch]:
        """Return records as a batch and the name of its source; its times are known from now on."""
        partition = TopicPartition(records.topic, records.partition)
        source = self._sources[records.topic]
        batch = source.decode(records, self.partition_times_ms[partition])
        if len(batch):
            latest = max(batch.timestamps)
            self.partition_times_ms[partition] = max(self.partition_times_ms[partition], latest)
            processing = self.processing
            processing.stream_time_ms = max(processing.stream_time_ms, latest)
        return source.spec.name, batch

    def _passed(self, records: SourceRecords) -> None:
        partition = TopicPartition(records.topic, records.partition)
        self.next_offsets[partition] = records.offsets[-1] + 1

    def _process_run(self, records: SourceRecords) -> None:
        name, batch = self._decoded(records)
        if len(batch):
            if self._catches_up:
                batch = self._catch_up(name, records, batch)
            self.graph.run(name, batch)
        self._passed(records)

    def _process_singly(self, records: SourceRecords, late: Callable[[], bool]) -> int:
        processing = self.processing
        for row in range(len(records)):
            # Decoded one by one too, so that a commit in between has asked no handler about records after it.
            self._process_run(records.slice(row, row + 1))
            processing.punctuate_stream_time()
            if row + 1 < len(records) and (processing.commit_requested or late()):
                self.group.put_back(records.slice(row + 1, len(records)))
                return row + 1
        return len(records)

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        """Call what is due by the wall clock; return whether anything was."""
        return self.processing.punctuate_wall_clock(now_ms)

    def next_wall_clock_ms(self) -> int | None:
        """Return when the next wall-clock callback is due."""
        return self.processing.wall_clock_schedules.next_due_ms()

    def erase(self, erasure: Erasure) -> None:
        """Delete a key's rows from a store; with key ranges it is over when their thread has done it."""
        with self.stores.trusted():
            self.processing.erase(erasure)

    # -- what key ranges have done before --------------------------------------------------------------------------

    def _catch_up(self, name: str, records: SourceRecords, batch: RecordBatch) -> RecordBatch:
        """Return the records that no key range has done before, with the times of their positions."""
        # Once more behind the last of them, so that operators see the time that has come.
        self._catches_up = bool(self._old_maps)
        if self._clock is not None and not self._catches_up:
            for store in self.stores.stores.values():
                store.unite()
        if self._clock is not None and batch.source is records:
            records.position_times = self._clock.times(name, records, batch)
        return self._to_do(TopicPartition(records.topic, records.partition), batch)

    def _to_do(self, partition: TopicPartition, batch: RecordBatch) -> RecordBatch:
        """Return the records that no key range has done before."""
        old, source = self._old_maps.get(partition), batch.source
        if old is None or source is None:
            return batch
        raw_keys = [source.raw_keys[row] for row in batch.rows]
        offsets = [source.offsets[row] for row in batch.rows]
        left = old.to_do(key_hashes(raw_keys, offsets), offsets)
        return batch if len(left) == len(batch) else batch.take(left)

    def _is_done(self, records: SourceRecords, row: int) -> bool:
        """Return whether a record was done before, so that its handlers were asked."""
        old = self._old_maps.get(TopicPartition(records.topic, records.partition))
        offset = records.offsets[row]
        return old is not None and not old.to_do(
            [key_hash(records.raw_keys[row], offset)], [offset]
        )

    # -- what a commit asks ----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Return whether records wait or are being processed."""
        return self.group.records > 0

    @property
    def uncommitted_bytes(self) -> int:
        """Return about how much memory the uncommitted changes hold."""
        return self.stores.uncommitted_bytes

    @property
    def expired_puts(self) -> int:
        """Return how many puts the stores have dropped because their time was over."""
        return self.stores.expired_puts

    def cached_bytes(self) -> int:
        """Return what the caches hold back from downstream."""
        return self.graph.cached_bytes()

    @property
    def held_stores(self) -> frozenset[str]:
        """The names of the stores whose changes a cache holds back from downstream."""
        stores = self.stores.stores.items()
        return frozenset(name for name, store in stores if getattr(store, "held", None) is not None)

    def shrink(self, excess_bytes: int) -> None:
        """Forward the least recently changed keys of the caches until `excess_bytes` are free."""
        self.graph.shrink(excess_bytes)

    def flush_caches(self) -> None:
        """Forward what the caches hold back; the first step of a commit."""
        self.graph.flush()

    def answer(self, question: Question) -> None:
        """Answer a question about uncommitted rows (see `ParallelTask`)."""
        question.answer(self.stores.uncommitted(question.store))

    def ask_for_cut(self) -> Cut | None:
        """Ask key ranges to hand over what they have done; return what tells when they have. None if there are none."""
        return None

    def rest(self, resting: bool) -> None:
        """Rest in other threads, or go on there (see `ParallelTask`)."""

    def check(self) -> None:
        """Raise what went wrong in another thread, if anything did."""

    def settle(self, until_s: float, tick: Callable[[], None]) -> None:
        """Stop working in other threads, after the records at hand (see `ParallelTask`)."""

    @property
    def may_be_ahead(self) -> bool:
        """Return whether processing may go on while a commit is under way (see `StateManager.may_be_ahead`)."""
        return self.stores.may_be_ahead

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None:
        """Go on as if what `drain` has returned were in the databases: a commit is under way that writes it.

        `joins`: it is what was staged for that commit already and what was drained since, as one.
        """
        self.stores.stage(drained, joins=joins)

    def applied(self) -> None:
        """Note that what `drain` has returned is in the databases."""

    def drain(self) -> dict[str, Drained]:
        """Return the changes of every store since the last commit."""
        return self.stores.drain()

    def offset_to_commit(self, partition: TopicPartition, position: int) -> int:
        """Return the lowest offset that is not processed.

        Args:
            partition: One of the inputs.
            position: Where its reader is: where everything was processed, control records are behind us, too (H32).
        """
        if not self.group.buffers[partition].records:
            self.next_offsets[partition] = max(self.next_offsets[partition], position)
        return self.next_offsets[partition]

    def progress(self, partition: TopicPartition, offset: int) -> tuple[RangeProgress, ...]:
        """Return how far each key range is, when `offset_to_commit` has returned `offset`."""
        old = self._old_maps.get(partition)
        if old is None:
            return (RangeProgress(0, offset),)
        if old.highest <= offset:
            del self._old_maps[partition]
        return old.after(offset).ranges

    def committed_time_ms(self, partition: TopicPartition) -> int:
        """Return the largest timestamp before the offset that `offset_to_commit` has returned."""
        return self.partition_times_ms[partition]

    def operator_times_ms(self) -> tuple[int, ...]:
        """Return the stream times of operators and stores as they are now, for the commit of what was processed."""
        if self._clock is not None and self._catches_up:
            # The operators have not seen the records that were done before.
            return self.processing.operator_times_at(self._clock.time_ms)
        return self.processing.operator_times_ms()

    # -- tables that are restored from their topic -----------------------------------------------------------------

    @property
    def source_stores(self) -> dict[TopicPartition, str]:
        """Return the store of each input that is its changelog as well."""
        sources = self.stores.sources
        return {partition: sources[partition] for partition in self.inputs if partition in sources}

    def source_restore(self, partition: TopicPartition) -> SourceRestore:
        """Return what restores the store of such an input, until the task starts or closes."""
        store = self.source_stores[partition]
        source = self._sources[partition.topic].spec
        table = next(
            node
            for node in self.plan.spec.nodes
            if isinstance(node, ProcessorSpec)
            and node.parents == (source.name,)
            and store in node.stores
            and store not in node.reads
        )
        made = SourceRestore(
            task_id=str(self.task_id),
            source=source,
            table=table,
            store=self.stores.scratch_store(store),
            policy=self._policy,
            default_timestamp_extractor=self._default_timestamp_extractor,
            application_id=self.setting.application_id,
            state_dir=self.setting.state_dir,
            app_configs=self.setting.app_configs,
            now_ms=self.setting.now_ms,
        )
        self._restores.append(made)
        return made

    def _end_restores(self) -> None:
        with ExitStack() as closing:  # all of them, whatever fails
            for made in self._restores:
                closing.callback(made.close)
            self._restores = []

    # -- what others ask -------------------------------------------------------------------------------------------

    @property
    def stream_time_ms(self) -> int:
        """Return the largest timestamp processed, -1 before the first record."""
        return self.processing.stream_time_ms

    def record_timestamp(self) -> int:
        """Return the timestamp that plain key-value stores give their changelog records."""
        return self.processing.record_timestamp()

    @property
    def dropped(self) -> int:
        """Return how many records rules have dropped, and puts that came too late for their store."""
        return self.counters.dropped + self.expired_puts

    @property
    def skipped(self) -> int:
        """Return how many records exception handlers have skipped, outputs included."""
        return self.counters.skipped + self._policy.skipped_outputs[str(self.task_id)]

    def report_expired_puts(self) -> None:
        """Report puts of processors that stores have dropped since the last call; operators report their own."""
        expired = self.expired_puts
        if expired == self._expired_reported:
            return
        own = expired - self.counters.expired - self._expired_of_processors
        self._expired_reported = expired
        if own > 0:
            self._expired_of_processors += own
            drop = Drop(own, None)
            self._policy.drops.add(f"a processor of task {self.task_id}", _EXPIRED_PUT, drop)

    def metrics(self) -> dict[str, float]:
        """Return the task's figures."""
        return {
            "process-total": float(self.counters.processed),
            "dropped-records-total": float(self.dropped),
            "skipped-records-total": float(self.skipped),
            "punctuate-total": float(self.counters.punctuations),
            "buffered-records": float(self.group.records),
            "enforced-processing-total": float(self.group.enforced),
        }

    def _corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        if self._old_maps and self._is_done(records, row):
            return
        self._refuse(self._policy, records, row, error)
        self.counters.skipped += 1

    def _refuse(
        self, policy: ErrorPolicy, records: SourceRecords, row: int, error: Exception
    ) -> None:
        """Ask the handler about a record that can't be read; returns if it is skipped."""
        node = self._sources[records.topic].spec.name
        context, record = input_failure(records, row, node=node, task_id=str(self.task_id))
        policy.apply(context, record, error, raw=(context.raw_key, context.raw_value))

    def _dropped(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        self._count_dropped(self.counters, node, count, reason, first)

    def _count_dropped(
        self,
        counters: TaskCounters,
        node: str,
        count: int,
        reason: str,
        first: RecordMetadata | None,
    ) -> None:
        counters.dropped += count
        counters.record_drop(node, reason, Drop(count, first))
        self._policy.drops.add(node, reason, Drop(count, first))
