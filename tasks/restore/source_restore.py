"""Source restore: fills a store from its source topic, through source and operator (or processor).

Kafka Streams copies the bytes, even of records that the deserialization handler skipped
(`reuse.ktable.source.topics`, KAFKA-8037). Here bad records are skipped and timestamps extracted,
as during processing; no dead letter is written again. Forwards and schedules of a read-only store's
processor (KIP-813) have no effect.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.api.app_configs import AppConfigs
from tidewheel.tasks.processing.api.processor import PunctuationType
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.supplied import checked_processor
from tidewheel.tasks.processing.api.topology_spec import (
    ProcessorSpec,
    SourceSpec,
    TimestampExtractor,
)
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy, input_failure, node_failure
from tidewheel.tasks.processing.engine.operator import Operator
from tidewheel.tasks.processing.engine.processor_node import ProcessorNode
from tidewheel.tasks.processing.engine.punctuation import Schedule
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.source import SourceNode
from tidewheel.tasks.task.task_life import TaskLife


def _ignore_dropped(_node: str, _count: int, _reason: str, _first: RecordMetadata | None) -> None:
    """Ignore records that processing reported already."""


class SourceRestore:
    """Restore of a store from one partition of its source topic.

    It is the operator's `NodeContext` or processor's `ProcessorHost`. Empty methods do nothing,
    because processing already counted and reported these records.
    """

    #: Empty: global stores may have changed since the records were processed.
    global_stores: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        *,
        task_id: str,
        source: SourceSpec,
        table: ProcessorSpec,
        store: Any,
        policy: ErrorPolicy,
        default_timestamp_extractor: TimestampExtractor | None,
        application_id: str,
        state_dir: Path,
        app_configs: AppConfigs,
        now_ms: Callable[[], int],
    ) -> None:
        self.task_id = task_id
        self.application_id = application_id
        self.state_dir = state_dir
        self.app_configs = app_configs
        self._now_ms = now_ms
        self.node_name = table.name
        self.emit_interval_ms = 0
        self._store = store
        self._policy = policy.without_dead_letters()
        self._partition_time_ms = -1
        self._source = SourceNode(
            source, self._skip_corrupt, _ignore_dropped, default_timestamp_extractor
        )
        self._table = table
        #: None until the first record: most starts restore nothing.
        self._operator: Operator | None = None

    def _make_operator(self) -> Operator:
        supplied = self._table.supplier()
        operator: Operator
        if isinstance(supplied, Operator):
            operator = supplied
        else:
            node = ProcessorNode(checked_processor(supplied, self._table), self, self._table.stores)
            node.connect(_discard)
            operator = node
        operator.init(self)
        return operator

    def close(self) -> None:
        if self._operator is not None:
            self._operator.close()

    @property
    def extracts(self) -> bool:
        """Return True with a timestamp extractor: it needs earlier records, so all are read."""
        return self._source.extracts

    def rows(self, records: SourceRecords) -> Sequence[tuple[bytes, bytes | None]]:
        """Process records; return the changed rows. Write them before the next call."""
        batch = self._source.decode(records, self._partition_time_ms)
        if len(batch):
            self._partition_time_ms = max(self._partition_time_ms, *batch.timestamps)
            if self._operator is None:
                self._operator = self._make_operator()
            self._operator.process(batch)
        buffer = self._store.buffer
        if not buffer.dirty:
            return ()
        rows: Sequence[tuple[bytes, bytes | None]] = buffer.drain().stored
        buffer.applied()
        return rows

    # -- NodeContext --

    def now_ms(self) -> int:
        return self._now_ms()

    def internal_topic(self, name: str) -> str:
        return name

    def store(self, name: str) -> Any:
        assert name == self._store.name, "a table's source has one store"
        return self._store

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None: ...

    def expired(self, reason: str, batch: RecordBatch, index: int) -> None: ...

    @property
    def late_letter(self) -> None:
        return None

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        context, record = node_failure(batch, index, node=self.node_name, task_id=self.task_id)
        raw = (context.raw_key, context.raw_value)
        self._policy.apply(context, record, error, raw=raw)

    # -- ProcessorHost --

    @property
    def stream_time_ms(self) -> int:
        return self._partition_time_ms

    def metrics(self) -> dict[str, float]:
        return {}

    def request_commit(self) -> None: ...

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None: ...

    def at_record(self, timestamp: int) -> None: ...

    def _skip_corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        node = self._source.spec.name
        context, record = input_failure(records, row, node=node, task_id=self.task_id)
        self._policy.apply(context, record, error, raw=(context.raw_key, context.raw_value))


def _discard(_batch: RecordBatch, _child: str | None) -> None: ...


def open_source_restore(life: TaskLife, partition: TopicPartition) -> SourceRestore:
    """Open the restore of an input's store."""
    parts, store = life.parts, life.source_stores[partition]
    source = life.inputs.sources[partition.topic].spec
    table = next(
        node
        for node in parts.plan.spec.nodes
        if isinstance(node, ProcessorSpec)
        and node.parents == (source.name,)
        and store in node.stores
        and store not in node.reads
    )
    restore = SourceRestore(
        task_id=str(parts.task_id),
        source=source,
        table=table,
        store=parts.stores.scratch_store(store),
        policy=parts.policy,
        default_timestamp_extractor=parts.default_timestamp_extractor,
        application_id=parts.setting.application_id,
        state_dir=parts.setting.state_dir,
        app_configs=parts.setting.app_configs,
        now_ms=parts.setting.now_ms,
    )
    life.restore_resources.callback(restore.close)
    return restore
