"""Processing of a task or key range: its graph, schedules, stream times and services for nodes.

One thread at a time calls it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.errors import SerdeError, StoredRowError, StreamsError
from tidewheel.state_stores.stores.custom_store_host import CustomStore, user_object
from tidewheel.state_stores.stores.factory import Store
from tidewheel.tasks.erasure import Erasure, refusal_of
from tidewheel.tasks.figures import NodeCounts
from tidewheel.tasks.processing.api.app_configs import AppConfigs
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.processor import PunctuationType
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    SinkSpec,
    SubtopologySpec,
)
from tidewheel.tasks.processing.engine.drops import Drop, Drops
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy, node_failure
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.operator import LateLetter, Operator
from tidewheel.tasks.processing.engine.operator_times import OperatorTimes, TimeKeeper
from tidewheel.tasks.processing.engine.processor_node import DownstreamError
from tidewheel.tasks.processing.engine.punctuation import Punctuated, PunctuationQueue, Schedule
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.processing.engine.sink import Collector, ExternalSink, Sink
from tidewheel.tasks.processing.engine.traced_graph import BatchTracer, TracedGraph


class TaskCounters:
    __slots__ = ("dropped", "drops", "expired", "nodes", "processed", "punctuations", "skipped")

    def __init__(self) -> None:
        #: Replaced by a new dict, never changed, because other threads read it.
        self.drops: Drops = {}
        #: Puts that stores dropped as too old, as reported by operators.
        self.expired = 0
        self.processed = 0
        self.dropped = 0
        self.skipped = 0
        self.punctuations = 0
        #: Counts of each node, by name; the graph's own.
        self.nodes: dict[str, NodeCounts] = {}

    def add(self, other: "TaskCounters") -> None:
        self.processed += other.processed
        self.dropped += other.dropped
        self.skipped += other.skipped
        self.punctuations += other.punctuations
        self.expired += other.expired
        for (node, reason), drop in other.drops.items():
            self.record_drop(node, reason, drop)
        for name, counts in other.nodes.items():
            self.nodes.setdefault(name, NodeCounts()).add(counts)

    def record_drop(self, node: str, reason: str, drop: Drop) -> None:
        drops = dict(self.drops)
        counted = drops.get((node, reason))
        drops[node, reason] = (
            drop if counted is None else Drop(counted.count + drop.count, counted.first)
        )
        self.drops = drops


class TaskSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the application for nodes and processors.

    `record_by_record` forces that mode, with which tests compare batches. `tracer`: None for none.
    `measures_latency`: of records at sources and sinks.
    """

    application_id: str
    topic_prefix: str
    state_dir: Path
    now_ms: Callable[[], int]
    app_configs: AppConfigs = msgspec.field(default_factory=AppConfigs)
    emit_interval_ms: int = 0
    global_stores: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    record_by_record: bool = False
    tracer: BatchTracer | None = None
    measures_latency: bool = False


class TaskProcessing:
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
        self.has_operator_times = False
        self.graph = self._graph_class()(
            spec,
            make_sink=partial(self._make_sink, collector=collector),
            make_context=partial(_TaskNodeContext, self),
            host=self,
            record_by_record=setting.record_by_record,
            latency_now_ms=setting.now_ms if setting.measures_latency else None,
        )
        self.counters.nodes = {name: node.counts for name, node in self.graph.nodes.items()}

    def _graph_class(self) -> Callable[..., TaskGraph]:
        tracer = self.setting.tracer
        if tracer is None:
            return TaskGraph
        return partial(
            TracedGraph,
            tracer=tracer,
            task_id=self.task_id,
            skipped=lambda: self.counters.skipped,
        )

    def _make_sink(self, spec: SinkSpec | ExternalSinkSpec, collector: Collector) -> Operator:
        if isinstance(spec, ExternalSinkSpec):
            return ExternalSink()

        def unserializable(node: str, batch: RecordBatch, index: int, error: Exception) -> None:
            self.failed(node, batch, index, error, stage="production", internal=spec.internal)

        return Sink(spec, self.setting.topic_prefix, collector, unserializable)

    def begin(self, stream_time_ms: int, operator_times_ms: tuple[int, ...]) -> None:
        """Initialise the nodes after the restore, with the committed times.

        -1 and () mean unknown.
        """
        self.stream_time_ms = stream_time_ms
        self.graph.init()
        self._operator_times = OperatorTimes(self._keepers())
        self.has_operator_times = not self._operator_times.is_empty
        if operator_times_ms:
            self._operator_times.restore(operator_times_ms, self.task_id)

    def _keepers(self) -> dict[str, TimeKeeper]:
        keepers: dict[str, TimeKeeper] = {
            name: node.operator
            for name, node in self.graph.nodes.items()
            if node.operator is not None
        }
        for name, store in self._stores.items():
            keepers[f"store {name}"] = store
        return keepers

    def operator_times_ms(self) -> tuple[int, ...]:
        return self._operator_times.collect()

    def operator_times_at(self, position_ms: int) -> tuple[int, ...]:
        return self._operator_times.collect_at(position_ms)

    def position_time_ms(self, otherwise_ms: int) -> int:
        return self._operator_times.position_time_ms(otherwise_ms)

    def punctuate_stream_time(self) -> None:
        if len(self.stream_schedules):
            self._punctuate(self.stream_schedules, self.stream_time_ms)

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        return len(self.wall_clock_schedules) > 0 and self._punctuate(
            self.wall_clock_schedules, now_ms
        )

    def _punctuate(self, queue: PunctuationQueue, now_ms: int) -> bool:
        if now_ms < 0:
            return False
        due = queue.pop_due(now_ms)
        for schedule in due:
            if schedule.cancelled:
                continue
            node = self.graph.nodes[schedule.node].operator
            assert isinstance(node, Punctuated), "only users' objects schedule"
            try:
                node.punctuate(schedule, now_ms)
            except DownstreamError as error:
                raise error.cause from error.cause.__cause__
            self.counters.punctuations += 1
        return bool(due)

    def erase(self, erasure: Erasure) -> None:
        """Delete a key's rows like a processor's `delete`.

        Problems are reported by `erasure` and do not fail the task.
        """
        store = self._stores.get(erasure.store)
        problem = "the task has no such store" if store is None else refusal_of(store)
        if store is None or problem or isinstance(store, CustomStore):
            erasure.end(problem=problem)
            return
        try:
            rows = store.erase(erasure.key, erasure.tail)
        except FAILURES as error:
            if isinstance(error, StreamsError) and not isinstance(
                error, SerdeError | StoredRowError
            ):
                raise
            # The error's text may quote the key, so only its type is reported.
            kind = type(error).__name__
            erasure.end(
                problem=f"the store's serdes can't read the key or one of its rows ({kind})"
            )
            return
        for node in self.graph.nodes.values():
            if node.operator is not None:
                node.operator.rows_erased(erasure.store)
        erasure.end(rows=rows)

    @property
    def application_id(self) -> str:
        return self.setting.application_id

    @property
    def state_dir(self) -> Path:
        return self.setting.state_dir

    @property
    def app_configs(self) -> AppConfigs:
        return self.setting.app_configs

    @property
    def global_stores(self) -> Mapping[str, Any]:
        return self.setting.global_stores

    def metrics(self) -> dict[str, float]:
        return self._figures()

    def now_ms(self) -> int:
        return self.setting.now_ms()

    def request_commit(self) -> None:
        self.commit_requested = True

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None:
        match clock:
            case PunctuationType.STREAM_TIME:
                self.stream_schedules.add(schedule)
            case PunctuationType.WALL_CLOCK_TIME:
                self.wall_clock_schedules.add(schedule)

    def at_record(self, timestamp: int) -> None:
        self._record_timestamp = timestamp

    def record_timestamp(self) -> int:
        return max(self._record_timestamp, 0)

    def store(self, name: str) -> Any:
        own_store = self._stores.get(name)
        return self.setting.global_stores[name] if own_store is None else user_object(own_store)

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
        self.counters.dropped += count
        self.record_drop(node, count, reason, first)

    def record_drop(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        self.counters.record_drop(node, reason, Drop(count, first))
        self._policy.drops.add(node, reason, Drop(count, first))

    def late_letter(self, node: str) -> LateLetter | None:
        return partial(self._late, node) if self._policy.keeps_late_records else None

    def _late(self, node: str, batch: RecordBatch, index: int, why: str) -> None:
        context, _ = node_failure(batch, index, node=node, task_id=self.task_id)
        self._policy.late(context, f"{node} (task {self.task_id}): {why}")


class _TaskNodeContext:
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
        self._processing.record_drop(self._node, 1, reason, batch.metadata_of(index))

    @property
    def late_letter(self) -> LateLetter | None:
        return self._processing.late_letter(self._node)
