"""Output collection: stages the outputs of a worker's tasks until the commit.

Under at_least_once, records for sinks and dead letters go to the sink producer immediately.
Repartition records are transactional under both guarantees, hence always staged. Sizes are checked
here, since a broker refuses a whole request for one record that is too large.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.rows import column_bytes
from tidewheel.state_stores.layout.stored_values import described_key
from tidewheel.tasks.commit.input_reread import InputRecord, InputReread
from tidewheel.tasks.errors import RecordFailedError, RecordTooLargeError
from tidewheel.tasks.kafka.internal_topics import configure_command
from tidewheel.tasks.kafka.ports import RecordSource, SinkProducer
from tidewheel.tasks.processing.api.handlers import ErrorContext
from tidewheel.tasks.processing.api.record import Headers, Record
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.processing.engine.output import OutputColumns

#: Upper bound of a record's overhead bytes in a batch (varints, batch header; KIP-98).
RECORD_OVERHEAD_BYTES = 96

#: Approximate memory of a staged record besides key and value, in bytes.
_STAGED_OVERHEAD_BYTES = 150

#: Seconds to wait until the dead letter of a record that ends the worker is sent.
_LETTER_S: Final = 10.0


class TopicInfo(Protocol):
    """Cached partition counts and size limits of output topics."""

    def partition_count(self, topic: str) -> int:
        """Raise `MissingOutputTopicError` if the topic does not exist."""
        ...

    def message_bytes_max(self, topic: str) -> int: ...

    def message_bytes_max_now(self, topic: str) -> int:
        """Return the limit as read from the cluster now, at most about once a second."""
        ...


class OutputCollector:
    """Outputs of one worker. Only the worker's loop thread calls it."""

    def __init__(
        self,
        topics: TopicInfo,
        sink_producer: SinkProducer | None,
        make_input_reader: Callable[[], RecordSource] | None = None,
    ) -> None:
        self._topics = topics
        self._inputs = None if make_input_reader is None else InputReread(make_input_reader)
        #: None in exactly_once, where all outputs are transactional.
        self.sink_producer = sink_producer
        self.staged: list[OutputColumns] = []
        self.staged_bytes = 0
        self.produced = 0
        self.policy: ErrorPolicy | None = None

    def add(self, columns: OutputColumns, *, internal: bool) -> None:
        """Stage transactional records, send others; the production handler gets too large ones."""
        columns.internal = internal
        size = self._checked(columns)
        if not len(columns):
            return
        self.produced += len(columns)
        # Sent records count too: the sink producer buffers them until the flush.
        self.staged_bytes += size + len(columns) * _STAGED_OVERHEAD_BYTES
        if internal or self.sink_producer is None:
            self.staged.append(columns)
        else:
            self.sink_producer.produce(columns)

    def partition_count(self, topic: str) -> int:
        return self._topics.partition_count(topic)

    def find_oversized(self, columns: OutputColumns) -> tuple[int, int] | None:
        """Return the largest record's index and its topic's limit in bytes if it is above that."""
        if not len(columns):
            return None
        largest = max(range(len(columns)), key=lambda index: record_bytes(columns, index))
        if record_bytes(columns, largest) <= self._topics.message_bytes_max(columns.topic):
            return None
        # The limit may have been raised since it was read.
        limit = self._topics.message_bytes_max_now(columns.topic)
        return (largest, limit) if record_bytes(columns, largest) > limit else None

    def pop_staged(self) -> list[OutputColumns]:
        staged, self.staged, self.staged_bytes = self.staged, [], 0
        return staged

    @contextmanager
    def apart(self) -> Generator[Callable[[], list[OutputColumns]]]:
        """Stage outputs of a `with` block separately; yield a function that drains them."""
        before, size = self.staged, self.staged_bytes
        self.staged, self.staged_bytes = [], 0
        try:
            yield self.pop_staged
        finally:
            self.staged = [*before, *self.staged]
            self.staged_bytes += size

    def _checked(self, columns: OutputColumns) -> int:
        """Return the bytes of the records, after removing those that are too large."""
        limit = self._topics.message_bytes_max(columns.topic)
        if columns.headers is None:
            size = column_bytes(columns.keys) + column_bytes(columns.values)
            if size + RECORD_OVERHEAD_BYTES <= limit:
                return size
            largest = max(map(len, filter(None, columns.keys)), default=0) + max(
                map(len, filter(None, columns.values)), default=0
            )
            if largest + RECORD_OVERHEAD_BYTES <= limit:
                return size
        oversized = [index for index in range(len(columns)) if record_bytes(columns, index) > limit]
        if oversized:
            # The limit may have been raised since it was read.
            limit = self._topics.message_bytes_max_now(columns.topic)
            oversized = [index for index in oversized if record_bytes(columns, index) > limit]
        for index in oversized:
            raised = configure_command(columns.topic, "max.message.bytes=BYTES")
            error = RecordTooLargeError(
                f"a record for {columns.topic} ({described_key(columns.keys[index])}) has about "
                f"{record_bytes(columns, index)} bytes, the topic accepts {limit}; make the record smaller, or raise the "
                f"topic's limit ({raised})"
            )
            self.refuse(columns, index, error)
        if oversized:
            drop(columns, oversized)
        return sum(record_bytes(columns, index) for index in range(len(columns)))

    def refuse(
        self, columns: OutputColumns, index: int, error: Exception, *, retriable: bool = False
    ) -> str:
        """Pass one output record to the production handler, with its raw input record.

        If that can't be read, a dead letter has the output's own key and value. Returns "continue",
        or "retry" if the record is `retriable`, or raises.
        """
        assert self.policy is not None
        key, value = columns.keys[index], columns.values[index]
        headers: Headers = () if columns.headers is None else columns.headers[index]
        topic, partition, offset = columns.input_of(index)
        source = self._input_of(columns, index)
        context = ErrorContext(
            stage="production",
            node=columns.node,
            task_id=columns.task_id,
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp=columns.timestamps[index],
            headers=headers if source is None else source.headers,
            raw_key=None if source is None else source.key,
            raw_value=None if source is None else source.value,
        )
        record = Record(key, value, columns.timestamps[index], headers)
        answer = self.policy.apply(
            context,
            record,
            error,
            raw=(key, value) if source is None else (source.key, source.value),
            internal=columns.internal,
            retriable=retriable,
            dead_letter=columns.dead_letter,
        )
        if answer == "continue" and not columns.dead_letter:
            self.policy.skipped_outputs[columns.task_id] += 1
        return answer

    def find_last(
        self, partition: TopicPartition, keys: Collection[bytes], start: int, end: int
    ) -> int | None:
        return None if self._inputs is None else self._inputs.find_last(partition, keys, start, end)

    def _input_of(self, columns: OutputColumns, index: int) -> InputRecord | None:
        topic, partition, offset = columns.input_of(index)
        if self._inputs is None or topic is None or partition is None or offset is None:
            return None
        assert self.policy is not None
        if not self.policy.needs_input(dead_letter=columns.dead_letter):
            return None
        return self._inputs.find(TopicPartition(topic, partition), offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close the clients; first wait for the dead letter of a record that ends the worker."""
        if self.policy is not None:
            self.policy.drops.report(at_end=True)
        if self._inputs is not None:
            self._inputs.close()
        if self.sink_producer is not None:
            self.sink_producer.close(_LETTER_S if isinstance(error, RecordFailedError) else 0.0)


def record_bytes(columns: OutputColumns, index: int) -> int:
    """Return an upper estimate of a record's bytes in a produce request."""
    key, value = columns.keys[index], columns.values[index]
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if columns.headers is not None:
        size += sum(
            len(name.encode()) + len(data or b"") + 10 for name, data in columns.headers[index]
        )
    return size


def batch_ends(columns: OutputColumns, batch_bytes: int) -> Iterator[int]:
    """Yield the end index of each run of records that fits a batch, or of one larger record."""
    size = 0
    for index in range(len(columns)):
        record_size = record_bytes(columns, index)
        if size and size + record_size > batch_bytes:
            yield index
            size = 0
        size += record_size
    if size:
        yield len(columns)


def drop(columns: OutputColumns, indices: Sequence[int]) -> None:
    left_out = set(indices)
    remaining = [index for index in range(len(columns)) if index not in left_out]
    columns.keys = [columns.keys[i] for i in remaining]
    columns.values = [columns.values[i] for i in remaining]
    columns.timestamps = [columns.timestamps[i] for i in remaining]
    if isinstance(columns.partitions, list):
        columns.partitions = [columns.partitions[i] for i in remaining]
    if columns.headers is not None:
        columns.headers = [columns.headers[i] for i in remaining]
    if columns.source_offsets is not None:
        columns.source_offsets = [columns.source_offsets[i] for i in remaining]
    inputs = columns.inputs
    if inputs is not None:
        columns.inputs = lambda index: inputs(remaining[index])


Emit = Callable[[OutputColumns], None]
