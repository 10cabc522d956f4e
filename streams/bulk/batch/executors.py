"""Executor side of a batch run: writes source records, runs tasks and reads their results.

Spark may run a task twice, even concurrently. File names are therefore unique, and only files
named in a result are used.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.bulk_restore.storage import Storage, open_storage
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.batch.job import BatchJob, JobProcess
from tidewheel.streams.bulk.batch.blob_streams import BlobStreams, Stream, blobs_of
from tidewheel.streams.bulk.batch.rows import PlacedRecord, Record, RecordEncoder, records_of
from tidewheel.streams.bulk.batch.source_segments import Segment, source_records
from tidewheel.streams.bulk.batch.stage_files import (
    CHANGELOG,
    STORE,
    TOPIC,
    Part,
    StageFile,
    StageReader,
    StageWriter,
)
from tidewheel.streams.bulk.columns import RowDecoder, converter, type_of
from tidewheel.streams.errors import SchemaRegistryError, SerializationError
from tidewheel.streams.gc_tuning import collect_by_batches
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.portable_settings import opened_url
from tidewheel.tasks.batch.batch_task import TaskEnd
from tidewheel.tasks.batch.blobs import BLOB_RECORDS, Blob
from tidewheel.tasks.batch.merge import merged
from tidewheel.tasks.batch.pass_task import PassTask
from tidewheel.tasks.batch.passes import Pass
from tidewheel.tasks.kafka.internal_topics import changelog_topic
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

Counted = Callable[[int], None]
Row = tuple[Any, ...]
#: Spark types of the sampled keys and values.
Types = tuple[frozenset[str], frozenset[str]]

_PREFIX: Final = "tidewheel-batch-"
#: Rows of each task that are sampled to infer the types of columns.
_SAMPLED_ROWS: Final = 200
#: Rows per progress update.
_COUNT_EVERY: Final = 10_000
#: Sub-topology of the "tasks" that wrote the records of frames.
_NO_SUBTOPOLOGY: Final = -1

_ROWS: Final = msgspec.msgpack.Decoder(
    list[tuple[bytes, bytes, int, int | None, int | None, int, bytes]]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Data that every task of a run needs.

    Attributes:
        url: Place of the stage files, a result of `Keeper.url`.
        clients: Settings to read source topics; None for a run over frames only.
        writes_changelogs: Keep stores as records of their changelogs, not as visible rows.
    """

    job: BatchJob
    url: str
    clients: ClientSettings | None = None
    writes_changelogs: bool = False

    def storage(self) -> Storage:
        return open_storage(opened_url(self.url))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """Result of one task.

    Attributes:
        task: Sub-topology and partition.
        blobs: Number of blobs by topic and partition.
        rows: Number of rows, or changelog records, of each store.
        types: Spark types of topics and stores, from a sample.
        oldest_ms: Lowest timestamp for each output topic.
        end: Positions and times of a task in its last pass.
    """

    task: tuple[int, int]
    file: StageFile
    blobs: Mapping[tuple[str, int], int]
    records: Mapping[str, int] = field(default_factory=dict[str, int])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    types: Mapping[tuple[str, str], Types] = field(default_factory=dict[tuple[str, str], Types])
    oldest_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    end: TaskEnd | None = None


@contextmanager
def _stage_writer() -> Iterator[tuple[StageWriter, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as folder,
        StageWriter(Path(folder, "stage")) as writer,
    ):
        yield writer, Path(folder)


def place_records(
    encoder: RecordEncoder, rows: Iterable[Mapping[str, Any]], count: Counted
) -> Iterator[PlacedRecord]:
    """Yield a frame's rows as records with their places, and count them."""
    number = 0
    for number, placed in enumerate(encoder.placed(rows), 1):
        yield placed
        if number % _COUNT_EVERY == 0:
            count(_COUNT_EVERY)
    count(number % _COUNT_EVERY)


def write_source(
    work: Work,
    topic: str,
    has_offsets: bool,
    partition: int,
    rows: Iterator[PlacedRecord],
    count: Counted,
) -> StageResult:
    """Write the records of a topic's partition."""
    return write_records(
        work, topic, partition, records_of(topic, rows, has_offsets=has_offsets), count
    )


def write_records(
    work: Work, topic: str, partition: int, records: Iterator[Record], count: Counted
) -> StageResult:
    storage = work.storage()
    blobs = written = 0
    with _stage_writer() as (writer, _):
        while chunk := list(islice(records, BLOB_RECORDS)):
            blob = _blob_of(topic, partition, blobs, chunk)
            writer.add(Part(TOPIC, topic, partition), blob.encode())
            blobs += 1
            written += len(chunk)
            count(len(chunk))
        return StageResult(
            task=(_NO_SUBTOPOLOGY, partition),
            file=writer.publish(storage),
            blobs={(topic, partition): blobs},
            records={topic: written},
        )


def _blob_of(topic: str, partition: int, number: int, records: Sequence[Record]) -> Blob:
    timestamps = [record.timestamp for record in records]
    with_headers = any(record.headers for record in records)
    return Blob(
        topic=topic,
        partition=partition,
        task=(_NO_SUBTOPOLOGY, partition),
        number=number,
        orders=timestamps,  # not read: records of frames are ordered by their extracted times
        keys=[record.key for record in records],
        values=[record.value for record in records],
        timestamps=timestamps,
        headers=[tuple(record.headers) for record in records] if with_headers else None,
    )


def read_blobs(
    work: Work, topics: frozenset[str], result: tuple[tuple[int, int], StageFile]
) -> Iterator[tuple[tuple[int, Any], bytes]]:
    """Yield a task's blobs for some topics, each with its partition and order."""
    task, stage_file = result
    with StageReader(work.storage(), stage_file) as reader:
        for part in reader.parts():
            if part.kind == TOPIC and part.name in topics:
                for number, (order, blob) in enumerate(reader.ordered_frames(part)):
                    yield (part.partition, (order, part.name, task, number)), blob


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOrder:
    """One pass.

    Attributes:
        sources: Records of source topics, by topic and partition.
        global_sources: Records of the topics of global stores.
        streams: Number of blobs of each stream, by partition.
    """

    work: Work
    run: Pass
    sources: Mapping[TopicPartition, tuple[Segment, ...]]
    global_sources: Mapping[TopicPartition, tuple[Segment, ...]]
    streams: Mapping[int, Mapping[Stream, int]]


def run_task(
    order: PassOrder,
    partition: int,
    placed: Iterator[tuple[tuple[int, Any], bytes]],
    count: Counted,
) -> StageResult:
    """Run the task of one partition in one pass."""
    collect_by_batches()
    work, job = order.work, order.work.job
    storage = work.storage()
    task_id = TaskId(order.run.subtopology, partition)
    with _stage_writer() as (writer, folder), ExitStack() as stack:
        streams = BlobStreams(placed, order.streams.get(partition, {}), folder)
        stack.callback(streams.close)

        def records(at: TopicPartition) -> Iterator[SourceRecords]:
            if at.topic in job.batch.written:
                return merged(streams.of_topic(at.topic))
            return source_records(storage, work.clients, at, order.sources.get(at, ()))

        process = stack.enter_context(
            JobProcess(
                job,
                folder / "state",
                global_records=(
                    run
                    for at, segments in sorted(order.global_sources.items())
                    for run in source_records(storage, work.clients, at, segments)
                ),
            )
        )
        task = stack.enter_context(process.task(order.run, task_id))
        inputs = {
            at: _counted(records(at), count)
            for at in job.plan.inputs(task_id)
            if at.topic in order.run.reads
        }
        results = _Results(job, writer)
        results.add_blobs(task.process(inputs))
        if order.run.is_last and work.writes_changelogs:
            results.add_changelogs(task, partition)
        elif order.run.is_last:
            results.add_stores(task, partition)
        return StageResult(
            task=(task_id.subtopology, partition),
            file=writer.publish(storage),
            blobs=results.blobs,
            records=results.records,
            rows=results.rows,
            types=results.types,
            oldest_ms=results.oldest_ms,
            end=task.end() if order.run.is_last else None,
        )


class _Results:
    """Writes the results of a task and counts them."""

    def __init__(self, job: BatchJob, writer: StageWriter) -> None:
        self._job = job
        self._writer = writer
        self.blobs: dict[tuple[str, int], int] = {}
        self.records: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.types: dict[tuple[str, str], Types] = {}
        self.oldest_ms: dict[str, int] = {}

    def add_blobs(self, blobs: Iterable[Blob]) -> None:
        samples: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
        for blob in blobs:
            at = blob.topic, blob.partition
            self._writer.add(Part(TOPIC, *at), blob.encode(), blob.orders[0])
            self.blobs[at] = self.blobs.get(at, 0) + 1
            self.records[blob.topic] = self.records.get(blob.topic, 0) + len(blob)
            if blob.topic in self._job.batch.written:
                continue
            oldest_ms = min(blob.timestamps)
            self.oldest_ms[blob.topic] = min(self.oldest_ms.get(blob.topic, oldest_ms), oldest_ms)
            sample = samples.setdefault(blob.topic, [])
            rows = zip(blob.keys, blob.values, strict=True)
            sample += islice(rows, _SAMPLED_ROWS - len(sample))
        for topic, sample in samples.items():
            decoder = RecordDecoder(self._job, topic)
            self.types[TOPIC, topic] = _types(decoder.decoded(*row) for row in sample)

    def add_stores(self, task: PassTask, partition: int) -> None:
        for store in task.stores:
            decoder = row_decoder(self._job, store, "string", "string")
            rows = task.rows(store)
            types: Types | None = None
            written = 0
            while chunk := list(islice(rows, BLOB_RECORDS)):
                if types is None:
                    types = _types(decoder.decoded(row) for row in chunk[:_SAMPLED_ROWS])
                fields = [
                    (row.key, row.value, row.timestamp, row.start, row.end, row.seq, row.place)
                    for row in chunk
                ]
                self._writer.add(Part(STORE, store, partition), msgspec.msgpack.encode(fields))
                written += len(chunk)
            self.rows[store] = written
            if types is not None:
                self.types[STORE, store] = types

    def add_changelogs(self, task: PassTask, partition: int) -> None:
        for store in task.changelog_stores:
            written = 0
            for records in task.changelog(store):
                self._writer.add(Part(CHANGELOG, store, partition), msgspec.msgpack.encode(records))
                written += len(records.keys)
            self.rows[store] = written


def _types(rows: Iterable[tuple[Any, Any]]) -> Types:
    keys: set[str] = set()
    values: set[str] = set()
    for key, value in rows:
        if key is not None:
            keys.add(type_of([key]))
        if value is not None:
            values.add(type_of([value]))
    return frozenset(keys), frozenset(values)


def _counted(runs: Iterator[SourceRecords], count: Counted) -> Iterator[SourceRecords]:
    for records in runs:
        yield records
        count(len(records))


def output_serdes(job: BatchJob, topic: str) -> tuple[SerdePort, SerdePort] | None:
    """Return the serdes of a topic that the topology writes; None if they are not known.

    A topic that a function chooses has the serdes of that sink, if there is one such sink only.
    """
    sinks = [sink for planned in job.plan.subtopologies.values() for sink in planned.spec.sinks]
    found = [sink for sink in sinks if sink.topic == topic and not sink.internal]
    if not found and topic != job.config.dead_letter_queue_topic:
        found = [sink for sink in sinks if not isinstance(sink.topic, str)]
    pairs = {(id(sink.key_serde), id(sink.value_serde)): sink for sink in found}
    if len(pairs) != 1:
        return None
    (sink,) = pairs.values()
    return sink.key_serde, sink.value_serde


class RecordDecoder:
    """Decodes output records by the serdes of their sink; bytes where these are not known."""

    def __init__(self, job: BatchJob, topic: str) -> None:
        self._topic = topic
        self._serdes = output_serdes(job, topic)

    def decoded(self, key: bytes | None, value: bytes | None) -> tuple[Any, Any]:
        if self._serdes is None:
            return key, value
        key_serde, value_serde = self._serdes
        try:
            return (
                None if key is None else key_serde.deserialize(self._topic, key),
                None if value is None else value_serde.deserialize(self._topic, value),
            )
        except SchemaRegistryError:
            raise  # The record may be valid: the registry failed.
        except Exception as error:
            raise SerializationError(
                f"a record for {self._topic} can't be read by the serdes of its sink ({type(error).__name__}: {error}); give "
                "the sink serdes that read what they write"
            ) from error


def row_decoder(job: BatchJob, store: str, key_type: str, value_type: str) -> RowDecoder:
    topic = changelog_topic(job.config.application_id, store)
    return RowDecoder(store_spec(job, store), topic, key_type, value_type)


def store_spec(job: BatchJob, store: str) -> StoreSpec:
    return next(
        spec
        for planned in job.plan.subtopologies.values()
        for spec in planned.spec.stores
        if spec.name == store
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRows:
    """Rows of an output topic's frame."""

    work: Work
    topic: str
    key_type: str
    value_type: str

    def rows(self, item: tuple[int, tuple[StageFile, ...]]) -> Iterator[Row]:
        """Yield the records for a partition in canonical order; files are those of its tasks, in order."""
        partition, files = item
        decoder = RecordDecoder(self.work.job, self.topic)
        to_key, to_value = converter(self.key_type), converter(self.value_type)
        at = TopicPartition(self.topic, partition)
        storage = self.work.storage()
        for records in merged(blobs_of(storage, at, stage_file) for stage_file in files):
            headers = records.headers or [()] * len(records)
            columns = (
                records.offsets, records.raw_keys, records.raw_values, records.timestamps, headers,
            )  # fmt: skip
            for offset, raw_key, raw_value, timestamp, header in zip(*columns, strict=True):
                key, value = decoder.decoded(raw_key, raw_value)
                yield (
                    None if key is None else to_key(key),
                    None if value is None else to_value(value),
                    timestamp,
                    list(header),
                    partition,
                    offset,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRows:
    """Rows of a store's frame."""

    work: Work
    store: str
    key_type: str
    value_type: str

    def rows(self, item: tuple[int, StageFile]) -> Iterator[Row]:
        partition, stage_file = item
        decoder = row_decoder(self.work.job, self.store, self.key_type, self.value_type)
        with StageReader(self.work.storage(), stage_file) as reader:
            for frame in reader.frames(Part(STORE, self.store, partition)):
                for fields in _ROWS.decode(frame):
                    yield decoder.row(StoredRow(*fields))
