"""Transactions of one writer to one partition, bounded by records and bytes."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.rows import column_bytes
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    TransactionAbortedError,
    TransactionalProducer,
)
from tidewheel.tasks.processing.engine.output import OutputColumns

#: Records per produce call.
PRODUCE_RECORDS: Final = 1_000

#: A transaction ends after this many records, or bytes of keys and values.
TRANSACTION_RECORDS: Final = 100_000
TRANSACTION_BYTES: Final = 64 * 1024 * 1024

#: The broker aborts the transaction of a stalled writer after this time.
TRANSACTION_TIMEOUT_MS: Final = 120_000


def _no_offsets(_: int) -> Mapping[TopicPartition, CommittedOffset]:
    return {}


class BoundedTransactions:
    """Sends records, and commits when a transaction is full.

    Args:
        produce: Sends columns with the producer.
        description: Names a record in messages, such as "a row of store counts".
        count: Receives the number of records of each committed transaction.
        offsets: Offsets to commit, given the number of records after the commit.
        max_resends: Most times that an aborted transaction is sent again. Its earlier records
            keep their offsets, invisible.

    Attributes:
        records: Number of committed records.
        transactions: Number of commits.
        position: Offset after the last record of `TransactionalProducer.produce_changelog`; or 0.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        at: TopicPartition,
        produce: Callable[[OutputColumns], None],
        *,
        description: str,
        group_id: str,
        count: Callable[[int], None],
        offsets: Callable[[int], Mapping[TopicPartition, CommittedOffset]] = _no_offsets,
        max_resends: int = 0,
    ) -> None:
        self._producer = producer
        self._at = at
        self._produce = produce
        self._description = description
        self._group_id = group_id
        self._count = count
        self._offsets = offsets
        self._max_resends = max_resends
        #: Content of the open transaction.
        self._open: list[OutputColumns] = []
        self._open_records = self._open_bytes = self._resends = 0
        self.records = self.transactions = self.position = 0

    def add(self, columns: OutputColumns) -> None:
        """Send records; raise `StreamsError` if the cluster refuses one."""
        self._open.append(columns)
        self._open_records += len(columns)
        self._open_bytes += column_bytes(columns.keys) + column_bytes(columns.values)
        try:
            if len(self._open) == 1:
                self._producer.begin()
            self._produce(columns)
        except TransactionAbortedError as error:
            self._send_again(error)
        if self._open_records >= TRANSACTION_RECORDS or self._open_bytes >= TRANSACTION_BYTES:
            self.end()

    def end(self) -> None:
        """Commit the open transaction, if any; raises as `add`."""
        if not self._open:
            return
        positions = self._commit(self._offsets(self.records + self._open_records))
        self.records += self._open_records
        self.transactions += 1
        self.position = positions.get(self._at, self.position)
        self._count(self._open_records)
        self._open = []
        self._open_records = self._open_bytes = self._resends = 0

    def _commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, int]:
        while True:
            try:
                return self._producer.commit(self._group_id, offsets)
            except TransactionAbortedError as error:
                self._send_again(error)

    def _send_again(self, error: TransactionAbortedError) -> None:
        """Send the aborted transaction again, unless brokers refuse one of its records."""
        is_last = self._resends == self._max_resends
        if error.record_refused:
            self._check_records(error, is_last=is_last)
        elif is_last:
            raise error
        self._resends += 1
        try:
            self._producer.begin()
            for columns in self._open:
                self._produce(columns)
        except TransactionAbortedError as again:
            self._send_again(again)

    def _check_records(self, error: TransactionAbortedError, *, is_last: bool) -> None:
        cause: Exception = error
        if not is_last:
            refused = self._producer.find_refused(self._open)
            if not refused:
                return  # the producer sends smaller batches from now on
            cause = refused[0].error
        raise StreamsError(
            f"{self._at}: the cluster refuses {self._description}: {cause}; see the topic's max.message.bytes"
        ) from cause


@contextmanager
def closing_producer(producer: TransactionalProducer) -> Generator[TransactionalProducer]:
    """Close a producer at the end, and abort its open transaction if an error ends the block."""
    try:
        yield producer
    except BaseException:
        # An open transaction would block readers.
        with suppress(FencedError, CommitOutcomeUnknownError):
            producer.abort()
        raise
    finally:
        producer.close()
