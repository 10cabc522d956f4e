"""Kafka ports of running tasks; the adapters live in `streams/kafka/`.

Records cross these ports as columns of raw bytes.
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
    """Unwritten record at `index` of `columns`."""

    columns: OutputColumns
    index: int
    error: Exception
    #: The same record may succeed if sent again (time-outs, not enough replicas).
    retriable: bool


class TransactionAbortedError(Exception):
    """The transaction was aborted; nothing of it is visible. Retry after `begin`.

    `record_refused`: a record was refused, so a retry fails too; `find_refused` finds it.
    """

    def __init__(self, message: str = "", *, record_refused: bool = False) -> None:
        super().__init__(message)
        self.record_refused = record_refused


class CommitOutcomeUnknownError(Exception):
    """The commit's outcome is unknown: replace the producer, read back the offsets (H8)."""


class UnansweredError(StreamsError):
    """The cluster did not answer in time; a retry may succeed."""


class UnsettledOffsetsError(UnansweredError):
    """A transaction with the group's offsets was not decided in time."""


class OffsetOutOfRangeError(StreamsError):
    """A position is not in the log: deleted by retention or with the topic. Its reading stops."""

    def __init__(self, message: str, *, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class RecordSource(Protocol):
    """Input of a worker: manual assignment, explicit positions, read_committed.

    `close` is idempotent.
    """

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment."""
        ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions; assigned ones keep their position."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove partitions, also unread ones. The others are undisturbed."""
        ...

    def prepare(self, topics: Sequence[str]) -> None:
        """Prefetch metadata of topics to add soon. Never fails. Thread-safe."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        """Return runs of consecutive records of one partition, once a record is available.

        Raises `OffsetOutOfRangeError` or `MissingSourceTopicError` for one partition at a time; the
        others continue.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause fetching; prefetched records are dropped and read again later."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset per partition, past control records at the end."""
        ...

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached high watermark per partition; no request is made.

        It includes records of open transactions; lag is measured against it. Unknown ends are left
        out.
        """
        ...

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached last stable offset per partition; no request is made.

        It may include records of open transactions until all decided records are read.
        """
        ...

    def close(self) -> None: ...


class TransactionalProducer(Protocol):
    """Transactional producer of a worker; a second thread may send and commit offsets.

    Calls raise `FencedError` if a newer producer of the id exists, and `CommitOutcomeUnknownError`
    if the producer must be replaced. Then only `close` may follow.
    """

    @property
    def transactional_id(self) -> str: ...

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return the last transaction's acknowledged changelog positions."""
        ...

    def init(self) -> None:
        """Fence predecessors and abort their open transaction. Called once, first."""
        ...

    def begin(self) -> None:
        """Open a transaction. Until `commit` no call waits for user code."""
        ...

    def produce(self, columns: OutputColumns) -> None:
        """Send records; raise `TransactionAbortedError` if the client refuses one."""
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

        `commit` returns the offset after the last one per partition.
        """
        ...

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Add offsets early; those of `commit` replace them.

        Raises `TransactionAbortedError` or `CommitOutcomeUnknownError`.
        """
        ...

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Flush, add the offsets, commit; return the position of each changelog produced to.

        A changelog with an unknown offset is left out: its earlier position stays valid. Brokers
        answer before they write the markers, so an end offset read immediately may be outdated.

        Raises `TransactionAbortedError` or `CommitOutcomeUnknownError`.
        """
        ...

    def abort(self) -> None:
        """Abort the open transaction, if any."""
        ...

    def find_refused(self, columns: Sequence[OutputColumns]) -> list[FailedDelivery]:
        """Return the refused records, by sending them in aborted transactions.

        No transaction may be open. Raises `TransactionAbortedError` if the test fails.
        """
        ...

    def close(self) -> None:
        """Close without waiting; idempotent."""
        ...


class SinkProducer(Protocol):
    """Idempotent producer of at_least_once for sinks and dead letters."""

    def produce(self, columns: OutputColumns) -> None: ...

    def flush(self) -> list[FailedDelivery]:
        """Wait for all acknowledgements; return failed records once each.

        Records refused with another record's batch were sent again, behind later records.
        """
        ...

    def close(self, wait_s: float = 0.0) -> None:
        """Wait up to `wait_s` for acknowledgements, then close; idempotent."""
        ...


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Topic on the cluster. `config` has only the requested settings."""

    name: str
    topic_id: bytes
    partitions: int
    config: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Topic to create. `replication_factor` -1: the cluster's default."""

    name: str
    partitions: int
    replication_factor: int = -1
    config: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Admin(Protocol):
    """Admin client. Calls have a time limit and raise `StreamsError` after it.

    `close` is idempotent.
    """

    def list_topics(self) -> dict[str, int]:
        """Return the partition count of each topic."""
        ...

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        """Return the existing topics, with the requested settings."""
        ...

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        """Create missing topics; return when usable."""
        ...

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete the topics that exist; return when the cluster no longer lists them."""
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete records below these offsets (purge of repartition topics)."""
        ...

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in the log per partition."""
        ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark per partition, for complete reads and lag.

        Records below it may be undecided.
        """
        ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset per partition: all records below it are decided.

        A start here skips no undecided record. Committed records may follow while a transaction is
        open.
        """
        ...

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Return the open transaction that blocks each last stable offset, if any.

        It may end a moment later, so report only one that persists.
        """
        ...

    def offsets_of_age(self, ages_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset of at most this age, else the last stable offset."""
        ...

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets (None: of all partitions of the group).

        `stable=True` waits for pending transactional commits, or raises `UnsettledOffsetsError`;
        `stable=False` returns the last decided offsets immediately. With None, a partition whose
        first commit is pending is always left out.
        """
        ...

    def reach_group(self, group_id: str) -> None:
        """Find the group's coordinator in advance."""
        ...

    def group_members(self, group_id: str) -> int:
        """Return the number of subscribed consumers."""
        ...

    def offsets_retention_ms(self) -> int:
        """Return the brokers' offset retention; raise `StreamsError` if unknown."""
        ...

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Overwrite committed offsets, with their metadata where given."""
        ...

    def delete_group(self, group_id: str) -> None:
        """Delete a group and its offsets, if it exists."""
        ...

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers in parallel, and abort their open transactions."""
        ...

    def close(self) -> None: ...


class ChangelogReader(Protocol):
    """Reader of changelogs: read_committed, by position, without a group.

    Methods match `RecordSource`. Set `with_headers` before reading stores that keep headers.
    """

    with_headers: bool

    def assign(self, positions: Mapping[TopicPartition, int]) -> None: ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions; assigned ones keep their position."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None: ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def end_offsets(self) -> dict[TopicPartition, int]: ...

    def stable_offsets(self) -> dict[TopicPartition, int]: ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]: ...

    def positions(self) -> dict[TopicPartition, int]: ...

    def close(self) -> None: ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return wall-clock time in ms since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never jumps, for intervals."""
        ...


ProducerFactory = Callable[[], TransactionalProducer]

ProducerOfId = Callable[[str], TransactionalProducer]


#: (partition, offset) of the current record; (None, -1) for none.
OnRecord = Callable[[TopicPartition | None, int], None]
