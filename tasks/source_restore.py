"""Restores a table's store from the topic that the table reads: the records go through its source and its operator again.

Kafka Streams copies the bytes of such a topic into the store (`reuse.ktable.source.topics`), also those that its
deserialisation handler had skipped (KAFKA-8037). Here the rows are those that processing made: bad records are skipped
as the handler says, timestamps are extracted. Dead letters were written when the records were processed, so none are
written again.
"""

from collections.abc import Sequence
from typing import Any

from tasks.processing.error_policy import ErrorPolicy, input_failure, node_failure
from tasks.processing.operator import Operator
from tasks.processing.record_batch import RecordBatch, SourceRecords
from tasks.processing.source import SourceNode
from tasks.processing.topology_spec import ProcessorSpec, SourceSpec, TimestampExtractor


class SourceRestore:
    """Turns the records of one partition, in order and from the beginning or a position, into rows of a store.

    It is the `NodeContext` of the table's operator. One thread calls it.
    """

    def __init__(
        self,
        *,
        task_id: str,
        source: SourceSpec,
        table: ProcessorSpec,
        store: Any,
        policy: ErrorPolicy,
        default_timestamp_extractor: TimestampExtractor | None,
    ) -> None:
        self.task_id = task_id
        self.node_name = table.name
        self.emit_interval_ms = 0
        self._store = store
        self._policy = policy.without_dead_letters()
        self._partition_time_ms = -1
        self._source = SourceNode(source, self._corrupt, self.dropped, default_timestamp_extractor)
        self._operator: Operator = table.supplier()
        self._operator.init(self)

    @property
    def extracts(self) -> bool:
        """Return whether timestamps depend on the records before: then a restore begins at the beginning."""
        return self._source.extracts

    def rows(self, records: SourceRecords) -> Sequence[tuple[bytes, bytes | None]]:
        """Return the rows that some records change, to be written before the next call."""
        batch = self._source.decode(records, self._partition_time_ms)
        if len(batch):
            self._partition_time_ms = max(self._partition_time_ms, *batch.timestamps)
            self._operator.process(batch)
        buffer = self._store.buffer
        if not buffer.dirty:
            return ()
        rows: Sequence[tuple[bytes, bytes | None]] = buffer.drain().stored
        buffer.applied()
        return rows

    # -- what the operator asks ------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return no time: rows do not depend on when they are restored."""
        return 0

    def internal_topic(self, name: str) -> str:
        """Return the name as it is: a table's source writes to no topic."""
        return name

    def store(self, name: str) -> Any:
        """Return the store that is restored."""
        assert name == self._store.name, "a table's source has one store"
        return self._store

    def dropped(self, count: int, reason: str) -> None:
        """Count nothing: the record was counted when it was processed."""

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        """Ask the processing handler again; returns if the record is skipped."""
        context, record = node_failure(batch, index, node=self.node_name, task_id=self.task_id)
        raw = (context.raw_key, context.raw_value)
        self._policy.apply(context, record, error, raw=raw)

    def _corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        node = self._source.spec.name
        context, record = input_failure(records, row, node=node, task_id=self.task_id)
        self._policy.apply(context, record, error, raw=(context.raw_key, context.raw_value))
