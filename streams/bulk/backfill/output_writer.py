"""One attempt to write one partition of a sink topic, on any machine: `write_output`.

The records of a partition are fixed. Each transaction commits with its records how many of them
the job has written, so an attempt resumes where the last transaction ended. It first fences earlier
attempts, then checks in the group log that its run is current.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from tidewheel.rebalance.leader.bootstrapping import EVERY_STORE, is_current
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.producer_ids import output_id
from tidewheel.rebalance.protocol.group import Group
from tidewheel.state_stores.bulk_restore.storage import Storage
from tidewheel.state_stores.layout.unfold import ChangelogColumns
from tidewheel.streams.bulk.batch.blob_streams import blobs_of
from tidewheel.streams.bulk.batch.executors import Counted, Work
from tidewheel.streams.bulk.batch.stage_files import CHANGELOG, Part, StageFile, StageReader
from tidewheel.streams.bulk.bootstrap.spark_job import KafkaWriterPorts
from tidewheel.streams.bulk.bootstrap.writer import SupersededError
from tidewheel.streams.bulk.bounded_transactions import (
    PRODUCE_RECORDS,
    BoundedTransactions,
    closing_producer,
)
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.tasks.batch.merge import merged
from tidewheel.tasks.kafka.internal_topics import outputs_group
from tidewheel.tasks.kafka.ports import CommittedOffset, TransactionalProducer
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Brokers may refuse the client's batches, until these are smaller.
_RESENDS: Final = 8

_CHANGELOG: Final = msgspec.msgpack.Decoder(ChangelogColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputItem:
    """A partition to write.

    Attributes:
        files: Stage files of the tasks that made its records, in their order.
        store: Store of a changelog; empty for an output topic.
    """

    at: TopicPartition
    files: tuple[StageFile, ...]
    store: str = ""


class OutputPorts(Protocol):
    def producer(self, transactional_id: str) -> TransactionalProducer: ...

    def committed(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        """Wait for pending transactional commits."""
        ...

    def group(self) -> Group: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOrder:
    """Settings for writing, shared by all partitions.

    Attributes:
        job: Id of the backfill; all its runs have the same. Numbers of other jobs don't count.
        attempt: Id of the command's run, as in the group log.
    """

    application_id: str
    job: str
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport:
    """Result of one write attempt.

    Attributes:
        records: Records of the partition.
        written: Number of them that this attempt wrote; earlier ones wrote the others.
    """

    topic: str
    partition: int
    records: int
    written: int


def write_outputs(
    work: Work, settings: ClientSettings, order: OutputOrder, item: OutputItem, count: Counted
) -> OutputReport:
    """Write the records of stage files; see `write_output`."""
    storage = work.storage()
    if item.store:
        records = _changelog_records(storage, item)
    else:
        records = merged(blobs_of(storage, item.at, stage_file) for stage_file in item.files)
    with KafkaWriterPorts(settings) as ports:
        return write_output(order, item.at, records, ports, count)


def _changelog_records(storage: Storage, item: OutputItem) -> Iterator[SourceRecords]:
    first = 0
    for stage_file in item.files:
        with StageReader(storage, stage_file) as reader:
            for frame in reader.frames(Part(CHANGELOG, item.store, item.at.partition)):
                columns = _CHANGELOG.decode(frame)
                end = first + len(columns.keys)
                headers = columns.row_headers
                if headers is None and columns.headers:
                    headers = [columns.headers] * len(columns.keys)
                yield SourceRecords(
                    *item.at,
                    range(first, end),
                    columns.keys,
                    columns.values,
                    columns.timestamps,
                    headers,
                )
                first = end


def write_output(
    order: OutputOrder,
    at: TopicPartition,
    records: Iterable[SourceRecords],
    ports: OutputPorts,
    count: Callable[[int], None],
) -> OutputReport:
    """Write the records of a sink partition that the job has not written yet.

    Args:
        records: All records of the partition, the same in each attempt; their offsets are 0, 1, ...
        count: Receives numbers of records that are written, also by earlier attempts.

    Raises:
        StreamsError: The cluster refuses a record, or `records` raised.
        SupersededError: Another run has taken over, or this one is over.
        FencedError: A later attempt has begun.
    """
    with closing_producer(ports.producer(output_id(order.application_id, *at))) as producer:
        producer.init()
        if not is_current(ports.group(), EVERY_STORE, order.attempt):
            raise SupersededError(
                f"{at}: this run of `tidewheel backfill` is over, or another one has taken over"
            )
        start = _start(order, at, ports, producer)
        count(start)
        transactions = BoundedTransactions(
            producer,
            at,
            producer.produce,
            description="an output of the backfill",
            group_id=outputs_group(order.application_id),
            count=count,
            offsets=lambda written: {at: CommittedOffset(start + written, order.job)},
            max_resends=_RESENDS,
        )
        end = 0
        for run in records:
            end = run.end_offset
            for columns in _columns(at, run.since(start)):
                transactions.add(columns)
        if end < start:
            raise StreamsError(
                f"{at}: the backfill has already written {start} records, but its files have only {end}; they are not those of "
                "the same job"
            )
        transactions.end()
    return OutputReport(
        topic=at.topic, partition=at.partition, records=end, written=transactions.records
    )


def _start(
    order: OutputOrder, at: TopicPartition, ports: OutputPorts, producer: TransactionalProducer
) -> int:
    """Return the number of records that the job has written.

    The job's first attempt commits 0: `tidewheel reset` fences the writers of partitions in the group.
    """
    group_id = outputs_group(order.application_id)
    committed = ports.committed(group_id, at)
    if committed is not None and committed.metadata == order.job:
        return committed.offset
    producer.begin()
    producer.commit(group_id, {at: CommittedOffset(0, order.job)})
    return 0


def _columns(at: TopicPartition, run: SourceRecords) -> Iterator[OutputColumns]:
    for first in range(0, len(run), PRODUCE_RECORDS):
        part = run.slice(first, first + PRODUCE_RECORDS)
        yield OutputColumns(
            topic=at.topic,
            partitions=at.partition,
            keys=part.raw_keys,
            values=part.raw_values,
            timestamps=part.timestamps,
            headers=part.headers,
        )
