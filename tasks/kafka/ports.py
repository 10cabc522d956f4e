"""Kafka ports of running tasks; the adapters live in `streams/kafka/`.

Records cross these ports as columns of raw bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Position of each changelog partition: last offset + 1.
Positions = dict[TopicPartition, int]
#: Runs a commit's wait for brokers, in this thread or another (`tidewheel.tasks.commit.committer`).
Background = Callable[[Callable[[], Positions]], Future[Positions]]


class CommittedOffset(NamedTuple):
    """Offset committed for a group, with its metadata text ("" if none)."""

    offset: int
    metadata: str


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the cluster did not accept, at `index` of `columns`."""

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
    """The commit's outcome is unknown: replace the producer, then read the committed offsets."""


class UnansweredError(StreamsError):
    """The cluster did not answer in time; a retry may succeed."""


class UnsettledOffsetsError(UnansweredError):
    """A transaction with the group's offsets was not committed or aborted in time."""


class OffsetOutOfRangeError(StreamsError):
    """The next offset to read was deleted, by retention or with its topic."""

    def __init__(self, message: str, *, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class RecordSource(Protocol):
    """Consumer of a worker: manual assignment, explicit positions, read_committed.

    `close` is idempotent.
    """

    def assign(self, positions: Mapping[TopicPartition, int]) -> None: ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions; assigned ones keep their position."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading partitions, if assigned; others continue undisturbed."""
        ...

    def prepare(self, topics: Sequence[str]) -> None:
        """Prefetch metadata of topics to add soon. Never fails. Thread-safe."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        """Wait for records; return runs of consecutive records of one partition each.

        Raises `OffsetOutOfRangeError` or `MissingSourceTopicError` for one partition at a time; the
        others continue.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Pause fetching; prefetched records are dropped and read again later."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition, past trailing control records."""
        ...

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached high watermark per partition; no request is made.

        It includes records of open transactions; lag is measured against it. Unknown ends are left
        out.
        """
        ...

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the cached last stable offset per partition; no request is made.

        Before the client has read a partition to its end, it knows only the high watermark, which
        may be above an open transaction's start.
        """
        ...

    def close(self) -> None: ...


class TransactionalProducer(Protocol):
    """Transactional producer of a worker: its loop and a commit thread call it, one at a time.

    Calls raise `FencedError` if a newer producer of the id exists, and `CommitOutcomeUnknownError`
    if the producer must be replaced. After either, only `close` may follow.
    """

    @property
    def transactional_id(self) -> str: ...

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return each changelog's position after the last transaction's acknowledged records."""
        ...

    def init(self) -> None:
        """Fence earlier producers of the id, abort their open transaction. Called once, first."""
        ...

    def serve(self) -> None:
        """Deliver the client's log lines and statistics, which pile up otherwise; doesn't wait."""
        ...

    def begin(self) -> None:
        """Open a transaction. Until `commit` the caller must not wait for user code."""
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
        """Add input offsets to the transaction early; those of `commit` replace them.

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
        """Return the records that brokers refuse, by sending all in transactions, then aborted.

        No transaction may be open. Raises `TransactionAbortedError` if this test fails.
        """
        ...

    def close(self) -> None:
        """Close without waiting; idempotent."""
        ...


class SinkProducer(Protocol):
    """Idempotent producer of at_least_once for sinks and dead letters."""

    def produce(self, columns: OutputColumns) -> None: ...

    def serve(self) -> None:
        """Deliver the client's events; doesn't wait."""
        ...

    def flush(self) -> list[FailedDelivery]:
        """Wait for all acknowledgements; return failed records once each.

        Records refused only for another one in their batch were sent again, behind later records.
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
        """Return those of the topics that exist, with the settings named in `config`."""
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

        A start here skips no undecided record.
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
        """Return each first offset of a record at most so old, else the last stable offset."""
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
        """Find the group's coordinator, so that later requests are fast."""
        ...

    def group_members(self, group_id: str) -> tuple[str, ...]: ...

    def groups(self, prefix: str) -> tuple[str, ...]:
        """Return the consumer groups whose ids start so; without those that rights hide."""
        ...

    def offsets_retention_ms(self) -> int:
        """Return the brokers' offset retention; raise `StreamsError` if unknown."""
        ...

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Overwrite committed offsets, with their metadata where given."""
        ...

    def delete_group(self, group_id: str) -> None: ...

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

    def add(self, positions: Mapping[TopicPartition, int]) -> None: ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None: ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def end_offsets(self) -> dict[TopicPartition, int]: ...

    def stable_offsets(self) -> dict[TopicPartition, int]: ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]: ...

    def positions(self) -> dict[TopicPartition, int]: ...

    def close(self) -> None: ...


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never jumps, for intervals."""
        ...


ProducerFactory = Callable[[], TransactionalProducer]

ProducerOfId = Callable[[str], TransactionalProducer]


#: Receives (partition, offset) of the record to be processed now; (None, -1) for none.
OnRecord = Callable[[TopicPartition | None, int], None]
