"""Restores a store from the topic that it is filled from: the records go through source and operator, or processor, again.

Kafka Streams copies the bytes of such a topic into the store (`reuse.ktable.source.topics`), also those that its
deserialisation handler had skipped (KAFKA-8037). Here the rows are those that processing made: bad records are skipped
as the handler says, timestamps are extracted. Dead letters were written when the records were processed, so none are
written again. The user's processor of a read-only store (KIP-813) is run again too: an object of its own, whose forwards
and schedules come to nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

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


def _ignore_dropped(_node: str, _count: int, _reason: str, _first: RecordMetadata | None) -> None:
    """Report nothing: these records were reported when they were processed."""


class SourceRestore:
    """Turns the records of one partition, in order and from the beginning or a position, into rows of a store.

    It is the `NodeContext` of the table's operator, and the `ProcessorHost` of a processor. One thread calls it.
    """

    #: The processor can't reach them: what they hold now is not what they held when the records were processed.
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
            source, self._corrupt, _ignore_dropped, default_timestamp_extractor
        )
        self._table = table
        #: Made with the first record: most starts have nothing to restore.
        self._operator: Operator | None = None

    def _made(self) -> Operator:
        made = self._table.supplier()
        operator: Operator
        if isinstance(made, Operator):
            operator = made
        else:
            node = ProcessorNode(checked_processor(made, self._table), self, self._table.stores)
            node.connect(_nowhere)
            operator = node
        operator.init(self)
        return operator

    def close(self) -> None:
        """Close the operator or processor, if there was anything to restore."""
        if self._operator is not None:
            self._operator.close()

    @property
    def extracts(self) -> bool:
        """Return whether timestamps depend on the records before: then a restore begins at the beginning."""
        return self._source.extracts

    def rows(self, records: SourceRecords) -> Sequence[tuple[bytes, bytes | None]]:
        """Return the rows that some records change, to be written before the next call."""
        batch = self._source.decode(records, self._partition_time_ms)
        if len(batch):
            self._partition_time_ms = max(self._partition_time_ms, *batch.timestamps)
            if self._operator is None:
                self._operator = self._made()
            self._operator.process(batch)
        buffer = self._store.buffer
        if not buffer.dirty:
            return ()
        rows: Sequence[tuple[bytes, bytes | None]] = buffer.drain().stored
        buffer.applied()
        return rows

    # -- what the operator asks ------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the wall clock; rows should not depend on it."""
        return self._now_ms()

    def internal_topic(self, name: str) -> str:
        """Return the name as it is: a table's source writes to no topic."""
        return name

    def store(self, name: str) -> Any:
        """Return the store that is restored."""
        assert name == self._store.name, "a table's source has one store"
        return self._store

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        """Count nothing: the record was counted when it was processed."""

    def expired(self, reason: str, batch: RecordBatch, index: int) -> None:
        """Report nothing, for the same reason."""

    @property
    def late_letter(self) -> None:
        """Return nothing: what came too late was kept when it was processed."""
        return None

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        """Ask the processing handler again; returns if the record is skipped."""
        context, record = node_failure(batch, index, node=self.node_name, task_id=self.task_id)
        raw = (context.raw_key, context.raw_value)
        self._policy.apply(context, record, error, raw=raw)

    # -- what the processor asks -----------------------------------------------------------------------------------

    @property
    def stream_time_ms(self) -> int:
        """Return the largest timestamp so far."""
        return self._partition_time_ms

    def metrics(self) -> dict[str, float]:
        """Return nothing: the task does not run yet."""
        return {}

    def request_commit(self) -> None:
        """Do nothing: what is restored was committed."""

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None:
        """Forget it: nothing is called while a store is restored."""

    def at_record(self, timestamp: int) -> None:
        """Do nothing: rows carry no time but that of their values."""

    def _corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        node = self._source.spec.name
        context, record = input_failure(records, row, node=node, task_id=self.task_id)
        self._policy.apply(context, record, error, raw=(context.raw_key, context.raw_value))


def _nowhere(_batch: RecordBatch, _child: str | None) -> None:
    """Forward to nobody: it was done when the records were processed."""
