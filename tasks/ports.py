"""Kafka ports of running tasks; the adapters live in `streams/kafka/`.

Records cross these ports as columns. Keys and values are raw bytes here.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.open_transactions import OpenTransaction
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Position of each changelog partition: last offset + 1.
Positions = dict[TopicPartition, int]
#: Runs the second half of a commit, here or in a thread (`tidewheel.tasks.commit.committer`).
Background = Callable[[Callable[[], Positions]], Future[Positions]]


class CommittedOffset(NamedTuple):
    """Offset committed for a group, with its metadata text ("" if none)."""

    offset: int
    metadata: str


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """Record that was not written, with its index in `columns` and the error."""

    columns: OutputColumns
    index: int
    error: Exception
    #: The same record may succeed if sent again (time-outs, not enough replicas).
    retriable: bool


class TransactionAbortedError(Exception):
    """The transaction was aborted; nothing of it is visible. Send the work again after `begin`.

    `record_refused`: the broker or client refused a record, so a retry fails the same way;
    `find_refused` finds it.
    """

    def __init__(self, message: str = "", *, record_refused: bool = False) -> None:
        super().__init__(message)
        self.record_refused = record_refused


class CommitOutcomeUnknownError(Exception):
    """The commit's outcome is unknown: replace the producer, read back the offsets (H8)."""


class UnansweredError(StreamsError):
    """The cluster did not answer in time; a later call may succeed."""


class UnsettledOffsetsError(UnansweredError):
    """The group's offsets are in a transaction that was not decided in time."""


class OffsetOutOfRangeError(StreamsError):
    """A position is not in the log: deleted by retention or with the topic. Its reading stops."""

    def __init__(self, message: str, *, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class RecordSource(Protocol):
    """Input of a worker: manual assignment, explicit positions, read_committed."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment: read these partitions from these offsets."""
        ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove partitions, also ones that are not read. The others are undisturbed."""
        ...

    def prepare(self, topics: Sequence[str]) -> None:
        """Fetch metadata of topics that may be added soon, to save time then. Never fails.

        Thread-safe.
        """
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        """Return the fetched records: runs of consecutive records of one partition.

        Returns as soon as a record is there. Raises `OffsetOutOfRangeError` or
        `MissingSourceTopicError` for one partition at a time; the others continue.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause fetching; prefetched records are dropped and read again later."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Resume fetching."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition, past control records at the end."""
        ...

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached high watermark of each partition; no request is made.

        It includes records of open transactions, which can't be read yet; lag is measured against
        it. Partitions without a known end are left out.
        """
        ...

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached last stable offset of each partition; no request is made.

        Exact where all decided records are read: it is the position there. Elsewhere it may
        include records of open transactions.
        """
        ...

    def close(self) -> None:
        """Close the client; idempotent."""
        ...


class TransactionalProducer(Protocol):
    """Transactional producer of a worker; a second thread may send and commit offsets.

    Each call raises `FencedError` once a newer producer of the same id exists, and
    `CommitOutcomeUnknownError` once the producer must be replaced. Then only `close` may follow.
    """

    @property
    def transactional_id(self) -> str:
        """Return the transactional id."""
        ...

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return the acknowledged position of each changelog of the last transaction."""
        ...

    def init(self) -> None:
        """Fence predecessors of the id and abort their open transaction. Called once, first."""
        ...

    def begin(self) -> None:
        """Open a transaction. Until `commit` no call waits for user code."""
        ...

    def produce(self, columns: OutputColumns) -> None:
        """Send records; raises `TransactionAbortedError` if the client refuses one of them."""
        ...

    def produce_changelog(
        self,
        partition: TopicPartition,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Headers = (),
        *,
        row_headers: Sequence[Headers] | None = None,
    ) -> None:
        """Send changelog records in order, with common headers or those of `row_headers`.

        `commit` returns the offset after the last one of each partition.
        """
        ...

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Add offsets to the open transaction early; those of `commit` replace them.

        Raises `TransactionAbortedError` or `CommitOutcomeUnknownError`.
        """
        ...

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Flush, add the offsets, commit; return the position of each changelog produced to.

        A changelog with an unknown offset is left out: its earlier position stays valid. Brokers
        answer before they write the markers, so an end offset read immediately may be an old one.

        Raises `TransactionAbortedError` or `CommitOutcomeUnknownError`.
        """
        ...

    def abort(self) -> None:
        """Abort the open transaction, if any."""
        ...

    def find_refused(self, columns: Sequence[OutputColumns]) -> list[FailedDelivery]:
        """Return the records the broker refuses, by sending them in aborted transactions.

        No transaction is open before or after. Raises `TransactionAbortedError` if the test fails.
        """
        ...

    def close(self) -> None:
        """Close the client without waiting; idempotent."""
        ...


class SinkProducer(Protocol):
    """Idempotent producer of at_least_once for sinks and dead letters: visible immediately."""

    def produce(self, columns: OutputColumns) -> None:
        """Send records."""
        ...

    def flush(self) -> list[FailedDelivery]:
        """Wait for all acknowledgements; return the failed records, each once.

        Records refused with another record's batch were sent again, behind later records.
        """
        ...

    def close(self, wait_s: float = 0.0) -> None:
        """Wait up to `wait_s` for acknowledgements, then close the client; idempotent."""
        ...


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Topic on the cluster. `config` has only the requested settings."""

    name: str
    topic_id: bytes
    partitions: int
    config: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Topic to create. `replication_factor` -1 is the cluster's default."""

    name: str
    partitions: int
    replication_factor: int = -1
    config: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Admin(Protocol):
    """Admin client. Each call has a time limit and raises `StreamsError` after it."""

    def list_topics(self) -> dict[str, int]:
        """Return all topics and their partition counts."""
        ...

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        """Return the existing topics, with the requested settings."""
        ...

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        """Create missing topics; return when all are usable."""
        ...

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete the topics that exist."""
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete records below these offsets (purge of repartition topics)."""
        ...

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in the log per partition."""
        ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of the log (high watermark) per partition.

        Use it for complete reads, comparisons with positions, and lag. Records below it may be
        undecided: a reader waits until they are decided.
        """
        ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset per partition: all records below it are decided.

        Start here to skip no undecided record. It is not the end of the log: while a transaction is
        open, committed records lie beyond it.
        """
        ...

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Return the open transaction that blocks each last stable offset, where there is one.

        It may end a moment later: report only one that persists.
        """
        ...

    def offsets_of_age(self, ages_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return per partition the first offset of at most this age, else the last stable offset."""
        ...

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets (None: of all partitions of the group).

        `stable=True` waits for pending transactional commits, and raises `UnsettledOffsetsError` if
        that takes too long; `stable=False` returns the last decided offsets immediately. With None,
        a partition whose first commit is pending is left out even by `stable=True`.
        """
        ...

    def reach_group(self, group_id: str) -> None:
        """Find the group's coordinator ahead, which speeds up the next request."""
        ...

    def group_members(self, group_id: str) -> int:
        """Return the number of live members (subscribed consumers; Tidewheel has none)."""
        ...

    def offsets_retention_ms(self) -> int:
        """Return the brokers' offset retention in ms; raise `StreamsError` if unknown."""
        ...

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Overwrite committed offsets, with their metadata where given (the reset command)."""
        ...

    def delete_group(self, group_id: str) -> None:
        """Delete a group and its offsets, if it exists."""
        ...

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers of these ids, in parallel, and abort their open transactions."""
        ...

    def close(self) -> None:
        """Close the client; idempotent."""
        ...


class ChangelogReader(Protocol):
    """Reader of changelogs: read_committed, by position, without a group.

    Set `with_headers` before reading changelogs of stores that keep headers; others have none.
    """

    with_headers: bool

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment."""
        ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions; those already read keep their position."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove partitions, also ones that are not read."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause fetching; prefetched records are dropped and read again later."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Resume fetching."""
        ...

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached end per partition (see `RecordSource.end_offsets`)."""
        ...

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached last stable offset (see `RecordSource.stable_offsets`)."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        """Return the fetched records, as runs of one partition."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the position per partition, past control records at the end (H29)."""
        ...

    def close(self) -> None:
        """Close the client; idempotent."""
        ...


class Clock(Protocol):
    """Clock."""

    def now_ms(self) -> int:
        """Return wall-clock time in ms since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return a clock that never jumps, in seconds, for intervals."""
        ...


#: Makes the transactional producer of a worker, also after one was replaced.
ProducerFactory = Callable[[], TransactionalProducer]

#: Makes the transactional producer of an id.
ProducerOfId = Callable[[str], TransactionalProducer]


#: (partition, offset) of the current record; (None, -1) for none.
OnRecord = Callable[[TopicPartition | None, int], None]
