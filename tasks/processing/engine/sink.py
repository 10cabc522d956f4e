"""Sinks: serialisation, topic names and partitions of output records; ends of external sinks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import index as index_of
from typing import Any, Protocol, overload, runtime_checkable

from tidewheel.state_stores.names import check_topic_name
from tidewheel.state_stores.ports import SerdePort
from tidewheel.tasks.errors import MissingOutputTopicError
from tidewheel.tasks.processing.api.coroutines import refuse_awaitable
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.api.topology_spec import SinkSpec
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns
from tidewheel.tasks.processing.engine.record_batch import JointRecords, RecordBatch, has_none


class Collector(Protocol):
    def add(self, columns: OutputColumns, *, internal: bool) -> None:
        """Collect output; `internal` records are transactional in both processing guarantees."""
        ...

    def partition_count(self, topic: str) -> int:
        """Return the topic's count; raise `MissingOutputTopicError` if there is no such topic."""
        ...


@runtime_checkable
class BatchPartitioner(Protocol):
    """A partitioner of this library that serves whole batches."""

    def for_all(
        self, keys: Sequence[bytes | None], values: Sequence[Any], partitions: int
    ) -> list[int] | None:
        """Return each record's partition; None to be called for single records."""
        ...


#: (sink, batch, index, error): returns to skip the record, raises to stop.
OnUnserializable = Callable[[str, RecordBatch, int, Exception], None]


class Sink(Operator):
    takes_joint = True

    def __init__(
        self,
        spec: SinkSpec,
        topic_prefix: str,
        collector: Collector,
        on_unserializable: OnUnserializable,
    ) -> None:
        self.spec = spec
        self._prefix = topic_prefix if spec.internal else ""
        self._collector = collector
        self._on_unserializable = on_unserializable
        partitioner: object = spec.partitioner
        self._for_all = partitioner if isinstance(partitioner, BatchPartitioner) else None

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._task_id = context.task_id

    def blocks(self) -> bool:
        return self.spec.partitioner is not None or not isinstance(self.spec.topic, str)

    def process(self, batch: RecordBatch) -> Output:
        if isinstance(self.spec.topic, str):
            self._send(self._prefix + self.spec.topic, batch)
            return None
        for topic, indices in self._topics(batch, self.spec.topic).items():
            part = batch if len(indices) == len(batch) else batch.take(indices)
            if self._exists(topic, part):
                self._send(topic, part)
        return None

    def _exists(self, topic: str, batch: RecordBatch) -> bool:
        """Return True if a dynamic topic exists; else hand its records to the handler."""
        try:
            check_topic_name(topic)
            self._collector.partition_count(topic)
        except (ValueError, MissingOutputTopicError) as error:
            for index in range(len(batch)):
                self._on_unserializable(self.spec.name, batch, index, error)
            return False
        return True

    def _topics(self, batch: RecordBatch, choose: Callable[..., str]) -> Mapping[str, list[int]]:
        topics: dict[str, list[int]] = {}
        for index, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            try:
                topic = self._topic_name(choose(key, value, batch.context_of(index)))
            except FAILURES as error:
                self.context.failed(batch, index, error)
            else:
                topics.setdefault(topic, []).append(index)
        return topics

    def _send(self, topic: str, batch: RecordBatch) -> None:
        failed: dict[int, Exception] = {}
        if batch.key_bytes is not None and batch.key_serde == self.spec.key_serde:
            keys: list[bytes | None] = batch.key_bytes
        else:
            keys = _serialize(self.spec.key_serde, topic, batch.keys, failed)
        values = _serialize(self.spec.value_serde, topic, batch.values, failed)
        if failed:
            for index in sorted(failed):
                self._on_unserializable(self.spec.name, batch, index, failed[index])
            remaining = [index for index in range(len(batch)) if index not in failed]
            keys, values = (
                [keys[index] for index in remaining],
                [values[index] for index in remaining],
            )
            batch = batch.take(remaining)
        if not values:
            return
        if self.spec.partitioner is not None:
            self._partitioned(topic, batch, keys, values)
        else:
            self._add(topic, batch, keys, values, ANY_PARTITION)

    def _partitioned(
        self,
        topic: str,
        batch: RecordBatch,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        assert self.spec.partitioner is not None
        count = self._collector.partition_count(topic)
        if self._for_all is not None:
            chosen_for_all = self._for_all.for_all(keys, batch.values, count)
            if chosen_for_all is not None:
                self._add(topic, batch, keys, values, chosen_for_all)
                return
        indices: list[int] = []
        partitions: list[int] = []
        for index, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            try:
                answer = self.spec.partitioner(topic, key, value, count)
                chosen = self._partitions(answer, count)
            except FAILURES as error:
                self._on_unserializable(self.spec.name, batch, index, error)
                continue
            if not chosen:
                self.context.dropped(1, "the partitioner chose no partition", batch, index)
            indices.extend([index] * len(chosen))
            partitions.extend(chosen)
        if indices:
            rows = batch.take(indices)
            self._add(
                topic, rows, [keys[i] for i in indices], [values[i] for i in indices], partitions
            )

    def _add(
        self,
        topic: str,
        batch: RecordBatch,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        partitions: int | list[int],
    ) -> None:
        source = batch.source
        joint: JointRecords | None = None
        if isinstance(source, JointRecords):
            source, joint = None, source
        self._collector.add(
            OutputColumns(
                topic=topic,
                partitions=partitions,
                keys=keys,
                values=values,
                timestamps=batch.timestamps,
                headers=batch.headers,
                node=self.spec.name,
                task_id=self._task_id,
                source_topic=None if source is None else source.topic,
                source_partition=None if source is None else source.partition,
                source_offsets=None if source is None else _Offsets(source.offsets, batch.rows),
                inputs=None if joint is None else partial(_input_of, joint, batch.rows),
            ),
            internal=self.spec.internal,
        )

    def _topic_name(self, chosen: object) -> str:
        if not isinstance(chosen, str) or not chosen:
            refuse_awaitable(chosen, f"the topic function of {self._named()}")
            raise TypeError(
                f"the topic function of {self._named()} must return the name of a topic, not "
                + ("an empty text" if chosen == "" else type(chosen).__name__)
            )
        return chosen

    def _partitions(self, chosen: int | Iterable[int] | None, count: int) -> Sequence[int]:
        if chosen is None:
            return (ANY_PARTITION,)
        if not isinstance(chosen, int):
            refuse_awaitable(chosen, f"the partitioner of {self._named()}")
        several = chosen if isinstance(chosen, Iterable) else (chosen,)
        # Remove duplicates: Kafka Streams' partitioners return sets.
        try:
            partitions = list(dict.fromkeys(map(index_of, several)))
        except TypeError:
            raise TypeError(
                f"the partitioner of {self._named()} returned an object of type {type(chosen).__name__}; return a partition's "
                "number, several of them, [] to drop the record, or None for Kafka's own choice"
            ) from None
        for partition in partitions:
            if not 0 <= partition < count:
                raise ValueError(
                    f"the partitioner of {self._named()} chose partition {partition}; the topic has 0 to {count - 1}"
                )
        return partitions

    def _named(self) -> str:
        location = f" ({self.spec.location})" if self.spec.location else ""
        return f"{self.spec.name}{location}"


class ExternalSink(Operator):
    """Collects the batches of one run; the task passes them to a sink outside Kafka."""

    def __init__(self) -> None:
        self._batches: list[RecordBatch] = []

    def process(self, batch: RecordBatch) -> None:
        self._batches.append(batch)

    def pop(self) -> list[RecordBatch]:
        batches, self._batches = self._batches, []
        return batches

    def blocks(self) -> bool:
        return False


def _input_of(source: JointRecords, rows: Sequence[int], index: int) -> RecordMetadata:
    return source.metadata(rows[index])


class _Offsets(Sequence[int]):
    """Input offsets of output records, computed only when a record fails."""

    __slots__ = ("_offsets", "_rows")

    def __init__(self, offsets: Sequence[int], rows: Sequence[int]) -> None:
        self._offsets = offsets
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        return map(self._offsets.__getitem__, self._rows)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._offsets[row] for row in self._rows[index]]
        return self._offsets[self._rows[index]]


def _serialize(
    serde: SerdePort, topic: str, values: Sequence[Any], failed: dict[int, Exception]
) -> list[bytes | None]:
    with_nulls = has_none(values)
    present = [value for value in values if value is not None] if with_nulls else values
    if len(present) > 1:
        try:
            serialized = serde.serialize_batch(topic, present)
        except FAILURES:
            return _serialize_singly(serde, topic, values, failed)
        iterator = iter(serialized)
        return (
            [None if value is None else next(iterator) for value in values]
            if with_nulls
            else serialized
        )
    return _serialize_singly(serde, topic, values, failed)


def _serialize_singly(
    serde: SerdePort, topic: str, values: Sequence[Any], failed: dict[int, Exception]
) -> list[bytes | None]:
    column: list[bytes | None] = []
    for index, value in enumerate(values):
        data = None
        if value is not None:
            try:
                data = serde.serialize(topic, value)
            except FAILURES as error:
                failed.setdefault(index, error)
        column.append(data)
    return column
