"""A task that processes: its input buffers, its graph, its stores, and how far it has come.

The worker's loop tells it what arrived and when to work; it never polls, produces or reads a clock by itself.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rebalance.model import TaskId, TopicPartition
from tasks.internal_topics import SubtopologyPlan
from tasks.lifecycle import TaskState, moved
from tasks.operator_times import KeepsTimes, OperatorTimes
from tasks.partition_group import NEVER_IDLE, PartitionGroup
from tasks.processing.coroutines import close_loop
from tasks.processing.error_policy import ErrorPolicy, input_failure, node_failure
from tasks.processing.graph import TaskGraph
from tasks.processing.operator import Operator
from tasks.processing.processor import PunctuationType
from tasks.processing.processor_node import DownstreamError
from tasks.processing.punctuation import Punctuated, PunctuationQueue, Schedule
from tasks.processing.record_batch import RecordBatch, SourceRecords
from tasks.processing.sink import Collector, Sink
from tasks.processing.source import SourceNode
from tasks.processing.topology_spec import (
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    TimestampExtractor,
)
from tasks.source_restore import SourceRestore
from tasks.state_manager import StateManager


class TaskCounters:
    """What a task has done since it was created; read by the metrics."""

    __slots__ = ("dropped", "processed", "punctuations", "skipped")

    def __init__(self) -> None:
        self.processed = 0
        self.dropped = 0
        self.skipped = 0
        self.punctuations = 0


class ActiveTask:
    """One sub-topology on one partition, processing.

    Attributes:
        state: Moves only through `tasks.lifecycle`.
        next_offsets: Per input partition the offset of the next record to process: what a commit commits.
        partition_times_ms: Largest timestamp processed per input partition, -1 before the first.
        commit_requested: A processor asked for a commit.
        emit_interval_ms: See `NodeContext`.
        topic_prefix: What stands in front of the bare names of internal topics.
    """

    def __init__(
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
        self.counters = TaskCounters()
        self.next_offsets: dict[TopicPartition, int] = {}
        self.partition_times_ms: dict[TopicPartition, int] = {}
        self.commit_requested = False
        self.emit_interval_ms = emit_interval_ms
        self.topic_prefix = topic_prefix
        self._global_stores = global_stores or {}
        self._application_id = application_id
        self._state_dir = state_dir
        self._policy = policy
        self._now_ms = now_ms
        self._default_timestamp_extractor = default_timestamp_extractor
        self._record_timestamp = -1
        self._stream_time_ms = -1
        self._operator_times = OperatorTimes({})
        self._restores: list[SourceRestore] = []
        self._stream_schedules = PunctuationQueue()
        self._wall_clock_schedules = PunctuationQueue()
        self.inputs = plan.inputs(task_id.partition)
        self.group = PartitionGroup(self.inputs, max_task_idle_ms=max_task_idle_ms)
        self._sources = {
            topic: self._make_source(source)
            for source in plan.spec.sources
            for topic in plan.source_topics[source.name]
        }
        self._order_inputs()
        self.graph = TaskGraph(
            plan.spec,
            make_sink=lambda spec: self._make_sink(spec, topic_prefix, collector),
            make_context=lambda name: _NodeContext(self, name),
            host=self,
            record_by_record=record_by_record,
        )

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

    def _make_sink(self, spec: SinkSpec, topic_prefix: str, collector: Collector) -> Sink:
        def unserializable(node: str, batch: RecordBatch, index: int, error: Exception) -> None:
            self.failed(node, batch, index, error, stage="production", internal=spec.internal)

        return Sink(spec, topic_prefix, collector, unserializable)

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
    ) -> None:
        """Begin processing at these offsets; the stores are restored.

        Args:
            offsets: Per input the offset to begin at.
            partition_times_ms: Per input the largest timestamp before that offset.
            operator_times_ms: What `operator_times_ms` returned at the commit of those offsets; () if that is not known.
        """
        assert set(offsets) == set(self.inputs), "every input has an offset"
        self.next_offsets = dict(offsets)
        self.partition_times_ms = {
            partition: partition_times_ms.get(partition, -1) for partition in self.inputs
        }
        self._stream_time_ms = max(self.partition_times_ms.values(), default=-1)
        self._end_restores()
        self.graph.init()
        self._operator_times = OperatorTimes(self._keepers())
        if operator_times_ms:
            self._operator_times.restore(operator_times_ms, str(self.task_id))
        self.move_to(TaskState.RUNNING)

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
        try:
            self._end_restores()
            if self.next_offsets:
                self.graph.close()
        finally:
            self.move_to(TaskState.CLOSED)
            close_loop()

    # -- work ------------------------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> bool:
        """Return whether something is buffered and no input is waited for (`max_task_idle_ms`)."""
        return self.group.records > 0 and self.group.ready(now_ms)

    def process(self, limit: int, late: Callable[[], bool] = lambda: False) -> int:
        """Process the next run of at most `limit` records; return how many were done, 0 if nothing is buffered.

        Stops early when a processor asks for a commit or, between single records, when `late()` says so.
        """
        records = self.group.take(limit)
        if records is None:
            return 0
        if self.graph.batched:
            self._process_run(records)
            done = len(records)
        else:
            done = self._process_singly(records, late)
        self.counters.processed += done
        return done

    def _process_run(self, records: SourceRecords) -> None:
        partition = TopicPartition(records.topic, records.partition)
        source = self._sources[records.topic]
        batch = source.decode(records, self.partition_times_ms[partition])
        if len(batch):
            latest = max(batch.timestamps)
            self.partition_times_ms[partition] = max(self.partition_times_ms[partition], latest)
            self._stream_time_ms = max(self._stream_time_ms, latest)
            self.graph.run(source.spec.name, batch)
        self.next_offsets[partition] = records.offsets[-1] + 1

    def _process_singly(self, records: SourceRecords, late: Callable[[], bool]) -> int:
        for row in range(len(records)):
            # Decoded one by one too, so that a commit in between has asked no handler about records after it.
            self._process_run(records.slice(row, row + 1))
            if len(self._stream_schedules):
                self._punctuate(self._stream_schedules, self._stream_time_ms)
            if row + 1 < len(records) and (self.commit_requested or late()):
                self.group.put_back(records.slice(row + 1, len(records)))
                return row + 1
        return len(records)

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        """Call what is due by the wall clock; return whether anything was."""
        return len(self._wall_clock_schedules) > 0 and self._punctuate(
            self._wall_clock_schedules, now_ms
        )

    def next_wall_clock_ms(self) -> int | None:
        """Return when the next wall-clock callback is due."""
        return self._wall_clock_schedules.next_due_ms()

    def _punctuate(self, queue: PunctuationQueue, now_ms: int) -> bool:
        if now_ms < 0:
            return False
        due = queue.take_due(now_ms)
        for schedule in due:
            if schedule.cancelled:  # by one that was called before it
                continue
            node = self.graph.nodes[schedule.node].operator
            assert isinstance(node, Punctuated), "only users' objects schedule"
            try:
                node.punctuate(schedule, now_ms)
            except DownstreamError as error:
                raise error.cause from error.cause.__cause__
            self.counters.punctuations += 1
        return bool(due)

    def operator_times_ms(self) -> tuple[int, ...]:
        """Return the stream times of operators and stores as they are now, for the commit of what was processed."""
        return self._operator_times.collect()

    def _keepers(self) -> dict[str, KeepsTimes]:
        """Return what keeps stream times: the operators in topology order, then the stores in the spec's."""
        keepers: dict[str, KeepsTimes] = {
            name: node.operator
            for name, node in self.graph.nodes.items()
            if node.operator is not None
        }
        for name in self.stores.specs:
            keepers[f"store {name}"] = self.stores.stores[name]
        return keepers

    def flush_caches(self) -> None:
        """Forward what the caches hold back; the first step of a commit."""
        self.graph.flush()

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
            application_id=self._application_id,
            state_dir=self._state_dir,
            now_ms=self._now_ms,
        )
        self._restores.append(made)
        return made

    def _end_restores(self) -> None:
        with ExitStack() as closing:  # all of them, whatever fails
            for made in self._restores:
                closing.callback(made.close)
            self._restores = []

    # -- what nodes and processors ask -----------------------------------------------------------------------------

    @property
    def application_id(self) -> str:
        """Return the application's id."""
        return self._application_id

    @property
    def state_dir(self) -> Path:
        """Return the directory of the task's state."""
        return self._state_dir

    @property
    def global_stores(self) -> Mapping[str, Any]:
        """Return the global stores by name, for reading."""
        return self._global_stores

    @property
    def stream_time_ms(self) -> int:
        """Return the largest timestamp processed, -1 before the first record."""
        return self._stream_time_ms

    def metrics(self) -> dict[str, float]:
        """Return the task's figures."""
        return {
            "process-total": float(self.counters.processed),
            "dropped-records-total": float(self.counters.dropped + self.stores.expired_puts),
            "skipped-records-total": float(self.counters.skipped),
            "punctuate-total": float(self.counters.punctuations),
            "buffered-records": float(self.group.records),
            "enforced-processing-total": float(self.group.enforced),
        }

    def now_ms(self) -> int:
        """Return the wall clock."""
        return self._now_ms()

    def request_commit(self) -> None:
        """Ask for a commit after the current record."""
        self.commit_requested = True

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None:
        """Keep a schedule."""
        match clock:
            case PunctuationType.STREAM_TIME:
                self._stream_schedules.add(schedule)
            case PunctuationType.WALL_CLOCK_TIME:
                self._wall_clock_schedules.add(schedule)

    def at_record(self, timestamp: int) -> None:
        """Remember the timestamp of the record being processed, for the stores."""
        self._record_timestamp = timestamp

    def record_timestamp(self) -> int:
        """Return the timestamp that plain key-value stores give their changelog records."""
        return max(self._record_timestamp, 0)

    def failed(
        self,
        node: str,
        batch: RecordBatch,
        index: int,
        error: Exception,
        *,
        stage: str = "processing",
        internal: bool = False,
    ) -> None:
        """Give a record that failed in a node to its handler; returns if it is skipped, raises otherwise."""
        context, record = node_failure(
            batch,
            index,
            node=node,
            task_id=str(self.task_id),
            stage="production" if stage == "production" else "processing",
        )
        raw = (context.raw_key, context.raw_value)
        self._policy.apply(context, record, error, raw=raw, internal=internal)
        self.counters.skipped += 1

    def _corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        node = self._sources[records.topic].spec.name
        context, record = input_failure(records, row, node=node, task_id=str(self.task_id))
        raw = (context.raw_key, context.raw_value)
        self._policy.apply(context, record, error, raw=raw)
        self.counters.skipped += 1

    def _dropped(self, count: int, _reason: str) -> None:
        self.counters.dropped += count


class _NodeContext:
    """`NodeContext` of one node."""

    def __init__(self, task: ActiveTask, node: str) -> None:
        self._task = task
        self._node = node

    @property
    def node_name(self) -> str:
        return self._node

    @property
    def task_id(self) -> str:
        return str(self._task.task_id)

    @property
    def emit_interval_ms(self) -> int:
        return self._task.emit_interval_ms

    @property
    def host(self) -> ActiveTask:
        return self._task

    def operator(self, node: str) -> Operator | None:
        return self._task.graph.nodes[node].operator

    def now_ms(self) -> int:
        return self._task.now_ms()

    def internal_topic(self, name: str) -> str:
        return self._task.topic_prefix + name

    def store(self, name: str) -> Any:
        found = self._task.stores.stores.get(name)
        return self._task.global_stores[name] if found is None else found

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        self._task.failed(self._node, batch, index, error)

    def dropped(self, count: int, reason: str) -> None:  # noqa: ARG002 - reasons get metrics of their own later
        self._task.counters.dropped += count
