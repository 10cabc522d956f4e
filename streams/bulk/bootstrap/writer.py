"""One attempt to write one changelog partition, on any machine: `write_partition`.

An attempt first fences earlier writers, then checks in the group log that its run is current.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from tidewheel.rebalance.leader.bootstrapping import may_write
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.bulk.bootstrap.plan import StoreTarget
from tidewheel.streams.bulk.bootstrap.rows import Written, version_left
from tidewheel.streams.bulk.bounded_transactions import (
    PRODUCE_RECORDS,
    BoundedTransactions,
    closing_producer,
)
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.kafka.ports import TransactionalProducer
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Most keys of earlier attempts kept in memory; with more, this attempt fails.
_EARLIER_KEYS_MAX: Final = 20_000_000


class SupersededError(StreamsError):
    """Another run has taken over, or this run is over; this attempt has written nothing."""


class WriterPorts(Protocol):
    def producer(self, transactional_id: str) -> TransactionalProducer: ...

    def end_offset(self, partition: TopicPartition) -> int: ...

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterable[SourceRecords]: ...

    def group(self) -> Group: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrder:
    """Settings for writing, shared by all partitions.

    Attributes:
        starts: Partition ends when this run began to write; later records are of its attempts.
        deleted_at_ms: Timestamp of deletes for keys that only an earlier attempt wrote.
    """

    target: StoreTarget
    attempt: str
    starts: tuple[int, ...]
    deleted_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """Result of one write attempt.

    Attributes:
        to_offset: Offset after its last record, by the producer's delivery reports; `from_offset`
            if it wrote none.
        transactions: Committed transactions, each with one marker.
    """

    partition: int
    rows: int
    deletes: int
    from_offset: int
    to_offset: int
    transactions: int

    @property
    def end_offset(self) -> int:
        """Return the expected partition end: these records and their markers."""
        return self.from_offset + self.rows + self.deletes + self.transactions


def write_partition(
    order: WriteOrder,
    partition: int,
    records: Iterable[Written],
    ports: WriterPorts,
    count: Callable[[int], None],
) -> PartitionReport:
    """Write the records of one partition, with unique keys (and versions).

    Raises:
        StreamsError: A record is too large, or `records` raised.
        FencedError: A later attempt has begun.
    """
    target = order.target
    where = TopicPartition(target.changelog, partition)
    with closing_producer(ports.producer(target.writer_id(partition))) as producer:
        producer.init()
        if not may_write(ports.group(), target.spec.name, order.attempt):
            raise SupersededError(
                f"store {target.spec.name}: this run of `tidewheel bootstrap` is over, or another one has taken over"
            )
        begin = ports.end_offset(where)
        left = _keys_of_earlier_attempts(order, where, begin, ports)
        written = _Written(producer, where, order, count)
        for batch in _batches(records):
            written.add(batch)
            for key, _, timestamp in batch:
                left.discard((key, timestamp if target.spec.kind is StoreKind.VERSIONED else 0))
        if left and target.spec.kind is StoreKind.VERSIONED:
            raise StreamsError(version_left(target.spec, min(left)[0]))
        for batch in _batches((key, None, order.deleted_at_ms) for key, _ in sorted(left)):
            written.add(batch)
        written.transactions.end()
    return PartitionReport(
        partition=partition,
        rows=written.rows,
        deletes=written.deletes,
        from_offset=begin,
        to_offset=written.transactions.position or begin,
        transactions=written.transactions.transactions,
    )


class _Written:
    def __init__(
        self,
        producer: TransactionalProducer,
        where: TopicPartition,
        order: WriteOrder,
        count: Callable[[int], None],
    ) -> None:
        self._producer = producer
        self._where = where
        self._spec = order.target.spec
        self.transactions = BoundedTransactions(
            producer,
            where,
            self._produce,
            description=f"a row of store {self._spec.name}",
            group_id=order.target.application_id,
            count=count,
        )
        self.rows = self.deletes = 0

    def add(self, batch: Sequence[Written]) -> None:
        keys, values, timestamps = zip(*batch, strict=True)
        self.transactions.add(
            OutputColumns(
                topic=self._where.topic,
                partitions=self._where.partition,
                keys=keys,
                values=values,
                timestamps=timestamps,
            )
        )
        # In a versioned store a row without a value is a version.
        deletes = 0 if self._spec.kind is StoreKind.VERSIONED else values.count(None)
        self.deletes += deletes
        self.rows += len(batch) - deletes

    def _produce(self, columns: OutputColumns) -> None:
        keys = cast("Sequence[bytes]", columns.keys)  # rows have keys
        self._producer.produce_changelog(
            self._where, keys, columns.values, columns.timestamps, self._spec.changelog_headers
        )


def _keys_of_earlier_attempts(
    order: WriteOrder, where: TopicPartition, end: int, ports: WriterPorts
) -> set[tuple[bytes, int]]:
    start = order.starts[where.partition]
    if end == start:
        return set()
    versioned = order.target.spec.kind is StoreKind.VERSIONED
    left: set[tuple[bytes, int]] = set()
    for key, version, live in newest_keys(ports.read(where, start, end), versioned=versioned):
        (left.add if live else left.discard)((key, version))
        if len(left) > _EARLIER_KEYS_MAX:
            raise StreamsError(
                f"{where}: earlier attempts have written more than {_EARLIER_KEYS_MAX} keys, too many to compare with; run the command "
                "again, which compares them in Spark"
            )
    return left


def newest_keys(
    runs: Iterable[SourceRecords], *, versioned: bool, at_once: int = 200_000
) -> Iterator[tuple[bytes, int, bool]]:
    """Yield key, version (0 if none), and true if not deleted; versions are never deleted.

    Keeps at most `at_once` keys in memory. Beyond that a key may repeat; its last entry applies.
    """
    is_live: dict[tuple[bytes, int], bool] = {}
    for run in runs:
        for key, value, timestamp in zip(run.raw_keys, run.raw_values, run.timestamps, strict=True):
            if key is not None:
                is_live[key, timestamp if versioned else 0] = value is not None or versioned
        if len(is_live) >= at_once:
            yield from ((*key_and_time, live) for key_and_time, live in is_live.items())
            is_live.clear()
    yield from ((*key_and_time, live) for key_and_time, live in is_live.items())


def _batches(records: Iterable[Written]) -> Iterator[list[Written]]:
    batch: list[Written] = []
    for record in records:
        batch.append(record)
        if len(batch) == PRODUCE_RECORDS:
            yield batch
            batch = []
    if batch:
        yield batch
