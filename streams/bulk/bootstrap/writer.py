"""One attempt to write one partition of a changelog, on whatever machine it runs: `write_partition`.

What it does first makes it the only one: it fences whoever wrote this partition before, then looks into the group's log
whether its own run of the command is still the one that writes. In this order: an attempt that was paused and goes on when
the group runs is fenced, or reads that it comes too late.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from tidewheel.rebalance.group import Group
from tidewheel.rebalance.leader.bootstrapping import may_write
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.bulk.bootstrap.plan import StoreTarget
from tidewheel.streams.bulk.bootstrap.rows import Written, version_left
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.tasks.ports import (
    CommitOutcomeUnknownError,
    TransactionAbortedError,
    TransactionalProducer,
)
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: As many records go into one transaction, and as many are handed over at once.
TRANSACTION_RECORDS: Final = 100_000
_BATCH: Final = 1_000

#: A transaction holds at most so many bytes of keys and values (or one batch).
_TRANSACTION_BYTES: Final = 64 * 1024 * 1024

#: After this the broker aborts a transaction whose writer stands still.
TRANSACTION_TIMEOUT_MS: Final = 120_000

#: As many keys of an earlier attempt are remembered before the attempt gives up.
_LEFT_MAX: Final = 20_000_000


class SupersededError(StreamsError):
    """Another run of the command has taken over, or this one is over; what this attempt has written does no harm."""


class WriterPorts(Protocol):
    """What an attempt needs from outside."""

    def producer(self, transactional_id: str) -> TransactionalProducer:
        """Return a new transactional producer."""
        ...

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the end of a partition, once all below it is decided."""
        ...

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterable[SourceRecords]:
        """Yield the committed records of a range."""
        ...

    def group(self) -> Group:
        """Return the group as its log tells it now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrder:
    """What is to be written, said by the driver once for all partitions. It travels.

    Attributes:
        target: The store.
        attempt: This run of the command, as the group's log names it.
        starts: Where each partition ended when this run began to write: what stands behind is its own.
        deleted_at_ms: Timestamp of what deletes keys that an earlier attempt wrote and this one does not have.
    """

    target: StoreTarget
    attempt: str
    starts: tuple[int, ...]
    deleted_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """What an attempt has written.

    Attributes:
        partition: Of the changelog.
        rows: Records that are rows (of a versioned store: versions).
        deletes: Records that delete.
        from_offset: Where the partition ended before.
        to_offset: After its last record, by the delivery report; `from_offset` where nothing was written.
        transactions: Each has left a marker behind.
    """

    partition: int
    rows: int
    deletes: int
    from_offset: int
    to_offset: int
    transactions: int

    @property
    def end_offset(self) -> int:
        """Return where the partition ends if nothing but these records and their markers was written."""
        return self.from_offset + self.rows + self.deletes + self.transactions


def write_partition(
    order: WriteOrder,
    partition: int,
    records: Iterable[Written],
    ports: WriterPorts,
    count: Callable[[int], None],
) -> PartitionReport:
    """Write the records of one partition; return where they stand.

    Args:
        order: What is written.
        partition: Which partition.
        records: Each key (and version) once.
        ports: See there.
        count: Told how many records were written since it was told last.

    Raises:
        SupersededError: Another run of the command writes now, or is done.
        StreamsError: The data can't be written: a record is too large, or what `records` raises.
        FencedError: A later attempt has begun.
    """
    target = order.target
    where = TopicPartition(target.changelog, partition)
    with _closing(ports.producer(target.writer_id(partition))) as producer:
        producer.init()
        if not may_write(ports.group(), target.spec.name, order.attempt):
            raise SupersededError(
                f"store {target.spec.name}: this run of `tidewheel bootstrap` is over, or another one has taken over"
            )
        begin = ports.end_offset(where)
        left = _left_behind(order, where, begin, ports)
        written = _Written(producer, where, order, count)
        for batch in _batches(records):
            written.add(batch)
            for key, _, timestamp in batch:
                left.discard((key, timestamp if target.spec.kind is StoreKind.VERSIONED else 0))
        if left and target.spec.kind is StoreKind.VERSIONED:
            raise StreamsError(version_left(target.spec, min(left)[0]))
        for batch in _batches((key, None, order.deleted_at_ms) for key, _ in sorted(left)):
            written.add(batch)
        written.end()
    return PartitionReport(
        partition=partition,
        rows=written.rows,
        deletes=written.deletes,
        from_offset=begin,
        to_offset=written.position or begin,
        transactions=written.transactions,
    )


class _Written:
    """What was written, in transactions that are neither long nor large."""

    def __init__(
        self,
        producer: TransactionalProducer,
        where: TopicPartition,
        order: WriteOrder,
        count: Callable[[int], None],
    ) -> None:
        self._producer = producer
        self._where = where
        self._order = order
        self._count = count
        self._open = self._open_bytes = 0
        self.rows = self.deletes = self.transactions = self.position = 0

    def add(self, batch: Sequence[Written]) -> None:
        if not self._open:
            self._producer.begin()
        keys, values, timestamps = zip(*batch, strict=True)
        with self._told():
            self._producer.produce_changelog(
                self._where, keys, values, timestamps, self._order.target.spec.changelog_headers
            )
        # Of a versioned store a row without a value is a version like any other.
        is_versioned = self._order.target.spec.kind is StoreKind.VERSIONED
        deletes = 0 if is_versioned else values.count(None)
        self.deletes += deletes
        self.rows += len(batch) - deletes
        self._open += len(batch)
        self._open_bytes += sum(map(len, keys)) + sum(len(each) for each in values if each)
        if self._open >= TRANSACTION_RECORDS or self._open_bytes >= _TRANSACTION_BYTES:
            self.end()

    def end(self) -> None:
        """Commit what is open."""
        if not self._open:
            return
        with self._told():
            positions = self._producer.commit(self._order.target.application_id, {})
        self.transactions += 1
        self.position = positions[self._where]
        self._count(self._open)
        self._open = self._open_bytes = 0

    @contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except TransactionAbortedError as error:
            if not error.record_refused:
                raise
            raise StreamsError(
                f"{self._where}: the cluster refuses a row of store {self._order.target.spec.name}: {error}; see the topic's "
                "max.message.bytes"
            ) from error


def _left_behind(
    order: WriteOrder, where: TopicPartition, end: int, ports: WriterPorts
) -> set[tuple[bytes, int]]:
    """Return the keys (and versions) that earlier attempts of this run have left in the partition."""
    start = order.starts[where.partition]
    if end == start:
        return set()
    versioned = order.target.spec.kind is StoreKind.VERSIONED
    left: set[tuple[bytes, int]] = set()
    for key, version, live in last_words(ports.read(where, start, end), versioned=versioned):
        (left.add if live else left.discard)((key, version))
        if len(left) > _LEFT_MAX:
            raise StreamsError(
                f"{where}: earlier attempts have written more than {_LEFT_MAX} keys, too many to compare with; run the command "
                "again, which compares them in Spark"
            )
    return left


def last_words(
    runs: Iterable[SourceRecords], *, versioned: bool, at_once: int = 200_000
) -> Iterator[tuple[bytes, int, bool]]:
    """Yield keys, their versions (0 where there are none), and whether they have a value; a version always counts as one.

    At most `at_once` are kept in memory: where there are more, a key may come again, and what comes later holds.
    """
    words: dict[tuple[bytes, int], bool] = {}
    for run in runs:
        for key, value, timestamp in zip(run.raw_keys, run.raw_values, run.timestamps, strict=True):
            if key is not None:
                words[key, timestamp if versioned else 0] = value is not None or versioned
        if len(words) >= at_once:
            yield from ((*each, live) for each, live in words.items())
            words.clear()
    yield from ((*each, live) for each, live in words.items())


def _batches(records: Iterable[Written]) -> Iterator[list[Written]]:
    batch: list[Written] = []
    for record in records:
        batch.append(record)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def _closing(producer: TransactionalProducer) -> Generator[TransactionalProducer]:
    try:
        yield producer
    except BaseException:
        # What is open would keep readers from what stands behind it.
        with suppress(FencedError, CommitOutcomeUnknownError):
            producer.abort()
        raise
    finally:
        producer.close()
