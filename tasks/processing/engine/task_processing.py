"""What runs the records of a task: its graph, its schedules, its stream times, and what its nodes and processors ask.

A task has one of it; a task that is cut into key ranges has one for each range, with stores of its own. One thread at a
time calls it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.errors import SerdeError, StoredRowError, StreamsError
from tidewheel.state_stores.stores.custom_slot import CustomStore, as_given
from tidewheel.state_stores.stores.factory import Store
from tidewheel.tasks.erasure import Erasure, refusal_of
from tidewheel.tasks.processing.api.app_configs import AppConfigs
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.processor import PunctuationType
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.topology_spec import SinkSpec, SubtopologySpec
from tidewheel.tasks.processing.engine.drops import Drop, Drops
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy, node_failure
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.operator import LateLetter, Operator
from tidewheel.tasks.processing.engine.operator_times import KeepsTimes, OperatorTimes
from tidewheel.tasks.processing.engine.processor_node import DownstreamError
from tidewheel.tasks.processing.engine.punctuation import Punctuated, PunctuationQueue, Schedule
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.processing.engine.sink import Collector, Sink


class TaskCounters:
    """What a task has done since it was created; read by the metrics."""

    __slots__ = ("dropped", "drops", "expired", "processed", "punctuations", "skipped")

    def __init__(self) -> None:
        #: Copied when it changes: other threads read it.
        self.drops: Drops = {}
        #: Of the puts that stores have dropped, those that operators reported.
        self.expired = 0
        self.processed = 0
        self.dropped = 0
        self.skipped = 0
        self.punctuations = 0

    def add(self, other: "TaskCounters") -> None:
        """Count what another one has counted, too."""
        self.processed += other.processed
        self.dropped += other.dropped
        self.skipped += other.skipped
        self.punctuations += other.punctuations
        self.expired += other.expired
        for (node, reason), drop in other.drops.items():
            self.note_drop(node, reason, drop)

    def note_drop(self, node: str, reason: str, drop: Drop) -> None:
        """Keep why records were dropped, and where the first is."""
        drops = dict(self.drops)
        known = drops.get((node, reason))
        drops[node, reason] = drop if known is None else Drop(known.count + drop.count, known.first)
        self.drops = drops


class TaskSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes and processors of a task are told of their application.

    Attributes:
        application_id: The application's id.
        topic_prefix: What stands in front of the bare names of internal topics.
        state_dir: Directory of the task's state.
        app_configs: Its settings.
        now_ms: The wall clock (ms since the epoch).
        emit_interval_ms: See `NodeContext`.
        global_stores: The process's global stores by name, for reading.
        record_by_record: Run every sub-topology record by record (the oracle of tests).
    """

    application_id: str
    topic_prefix: str
    state_dir: Path
    now_ms: Callable[[], int]
    app_configs: AppConfigs = msgspec.field(default_factory=AppConfigs)
    emit_interval_ms: int = 0
    global_stores: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    record_by_record: bool = False


class TaskProcessing:
    """The graph of one task, or of one of its key ranges, and what it asks.

    Args:
        task_id: The task.
        spec: Its sub-topology.
        setting: What it is told of the application.
        stores: Its stores by name; looked up when it begins.
        collector: Takes its outputs.
        policy: Asked about records that fail.
        figures: The task's figures, for processors.

    Attributes:
        graph: The nodes.
        counters: What was done so far.
        commit_requested: A processor asked for a commit.
        stream_time_ms: Largest timestamp processed, -1 before the first record.
        stream_schedules: What is due by stream time.
        wall_clock_schedules: What is due by the wall clock.
    """

    def __init__(
        self,
        task_id: TaskId,
        spec: SubtopologySpec,
        setting: TaskSetting,
        *,
        stores: Mapping[str, Store],
        collector: Collector,
        policy: ErrorPolicy,
        figures: Callable[[], dict[str, float]],
    ) -> None:
        self.task_id = str(task_id)
        self.setting = setting
        self.counters = TaskCounters()
        self.commit_requested = False
        self.stream_time_ms = -1
        self.stream_schedules = PunctuationQueue()
        self.wall_clock_schedules = PunctuationQueue()
        self._stores = stores
        self._policy = policy
        self._figures = figures
        self._record_timestamp = -1
        self._operator_times = OperatorTimes({})
        self.graph = TaskGraph(
            spec,
            make_sink=lambda sink: self._make_sink(sink, collector),
            make_context=lambda name: _NodeContext(self, name),
            host=self,
            record_by_record=setting.record_by_record,
        )

    def _make_sink(self, spec: SinkSpec, collector: Collector) -> Sink:
        def unserializable(node: str, batch: RecordBatch, index: int, error: Exception) -> None:
            self.failed(node, batch, index, error, stage="production", internal=spec.internal)

        return Sink(spec, self.setting.topic_prefix, collector, unserializable)

    # -- life ------------------------------------------------------------------------------------------------------

    def begin(self, stream_time_ms: int, operator_times_ms: tuple[int, ...]) -> None:
        """Initialise the nodes; the stores are restored.

        Args:
            stream_time_ms: The largest timestamp of what was processed before, -1 for none.
            operator_times_ms: What `operator_times_ms` returned then; () if that is not known.
        """
        self.stream_time_ms = stream_time_ms
        self.graph.init()
        self._operator_times = OperatorTimes(self._keepers())
        if operator_times_ms:
            self._operator_times.restore(operator_times_ms, self.task_id)

    def _keepers(self) -> dict[str, KeepsTimes]:
        """Return what keeps stream times: the operators in topology order, then the stores in the spec's."""
        keepers: dict[str, KeepsTimes] = {
            name: node.operator
            for name, node in self.graph.nodes.items()
            if node.operator is not None
        }
        for name, store in self._stores.items():
            keepers[f"store {name}"] = store
        return keepers

    def operator_times_ms(self) -> tuple[int, ...]:
        """Return the stream times of operators and stores as they are now, for the commit of what was processed."""
        return self._operator_times.collect()

    def operator_times_at(self, position_ms: int) -> tuple[int, ...]:
        """Return the same for the whole task at a position, of whose key ranges this is one."""
        return self._operator_times.collect_at(position_ms)

    def position_time_ms(self, otherwise_ms: int) -> int:
        """Return the time that a position clock begins with (see `OperatorTimes`)."""
        return self._operator_times.position_time_ms(otherwise_ms)

    # -- schedules -------------------------------------------------------------------------------------------------

    def punctuate_stream_time(self) -> None:
        """Call what is due by stream time."""
        if len(self.stream_schedules):
            self._punctuate(self.stream_schedules, self.stream_time_ms)

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        """Call what is due by the wall clock; return whether anything was."""
        return len(self.wall_clock_schedules) > 0 and self._punctuate(
            self.wall_clock_schedules, now_ms
        )

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

    # -- what an operator of the group orders ----------------------------------------------------------------------

    def erase(self, erasure: Erasure) -> None:
        """Delete a key's rows from a store, as a processor's `delete` does; a cache forwards that with the next flush.

        Whatever makes it impossible is told by the erasure, and ends nothing: it was asked for from outside.
        """
        store = self._stores.get(erasure.store)
        problem = "the task has no such store" if store is None else refusal_of(store)
        if store is None or problem or isinstance(store, CustomStore):
            erasure.end(problem=problem)
            return
        try:
            rows = store.erase(erasure.key, erasure.tail)
        except FAILURES as error:  # a serde of the user's may raise anything
            if isinstance(error, StreamsError) and not isinstance(
                error, SerdeError | StoredRowError
            ):
                raise  # the database failed
            # Without its text, which may quote the key.
            kind = type(error).__name__
            erasure.end(
                problem=f"the store's serdes can't read the key or one of its rows ({kind})"
            )
            return
        for node in self.graph.nodes.values():
            if node.operator is not None:
                node.operator.rows_erased(erasure.store)
        erasure.end(rows=rows)

    # -- what nodes and processors ask -----------------------------------------------------------------------------

    @property
    def application_id(self) -> str:
        """Return the application's id."""
        return self.setting.application_id

    @property
    def state_dir(self) -> Path:
        """Return the directory of the task's state."""
        return self.setting.state_dir

    @property
    def app_configs(self) -> AppConfigs:
        """Return the application's settings."""
        return self.setting.app_configs

    @property
    def global_stores(self) -> Mapping[str, Any]:
        """Return the global stores by name, for reading."""
        return self.setting.global_stores

    def metrics(self) -> dict[str, float]:
        """Return the task's figures."""
        return self._figures()

    def now_ms(self) -> int:
        """Return the wall clock."""
        return self.setting.now_ms()

    def request_commit(self) -> None:
        """Ask for a commit after the current record."""
        self.commit_requested = True

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None:
        """Keep a schedule."""
        match clock:
            case PunctuationType.STREAM_TIME:
                self.stream_schedules.add(schedule)
            case PunctuationType.WALL_CLOCK_TIME:
                self.wall_clock_schedules.add(schedule)

    def at_record(self, timestamp: int) -> None:
        """Remember the timestamp of the record being processed, for the stores."""
        self._record_timestamp = timestamp

    def record_timestamp(self) -> int:
        """Return the timestamp that plain key-value stores give their changelog records."""
        return max(self._record_timestamp, 0)

    def store(self, name: str) -> Any:
        """Return a store of the task, or a global one."""
        found = self._stores.get(name)
        return self.setting.global_stores[name] if found is None else as_given(found)

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
            task_id=self.task_id,
            stage="production" if stage == "production" else "processing",
        )
        raw = (context.raw_key, context.raw_value)
        self._policy.apply(context, record, error, raw=raw, internal=internal)
        self.counters.skipped += 1

    def dropped(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        """Count records that a rule has dropped."""
        self.counters.dropped += count
        self.note_drop(node, count, reason, first)

    def note_drop(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        """Report dropped records that are counted elsewhere."""
        self.counters.note_drop(node, reason, Drop(count, first))
        self._policy.drops.add(node, reason, Drop(count, first))

    def late_letter(self, node: str) -> LateLetter | None:
        """Return what keeps records that come too late for a node; None if that was not asked for."""
        return partial(self._late, node) if self._policy.keeps_late_records else None

    def _late(self, node: str, batch: RecordBatch, index: int, why: str) -> None:
        context, _ = node_failure(batch, index, node=node, task_id=self.task_id)
        self._policy.late(context, f"{node} (task {self.task_id}): {why}")


class _NodeContext:
    """`NodeContext` of one node."""

    def __init__(self, processing: TaskProcessing, node: str) -> None:
        self._processing = processing
        self._node = node

    @property
    def node_name(self) -> str:
        return self._node

    @property
    def task_id(self) -> str:
        return self._processing.task_id

    @property
    def emit_interval_ms(self) -> int:
        return self._processing.setting.emit_interval_ms

    @property
    def host(self) -> TaskProcessing:
        return self._processing

    def operator(self, node: str) -> Operator | None:
        return self._processing.graph.nodes[node].operator

    def now_ms(self) -> int:
        return self._processing.now_ms()

    def internal_topic(self, name: str) -> str:
        return self._processing.setting.topic_prefix + name

    def store(self, name: str) -> Any:
        return self._processing.store(name)

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        self._processing.failed(self._node, batch, index, error)

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        self._processing.dropped(self._node, count, reason, batch.metadata_of(first))

    def expired(self, reason: str, batch: RecordBatch, index: int) -> None:
        self._processing.counters.expired += 1
        self._processing.note_drop(self._node, 1, reason, batch.metadata_of(index))

    @property
    def late_letter(self) -> LateLetter | None:
        return self._processing.late_letter(self._node)
