"""What running tasks need from Kafka, as Protocols; the adapters live in `streams/kafka/`.

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

#: By changelog partition the position it has reached: the offset behind the last record.
Positions = dict[TopicPartition, int]
#: Has the second half of a commit done, here or elsewhere (`tidewheel.tasks.commit.background`).
Beside = Callable[[Callable[[], Positions]], Future[Positions]]


class CommittedOffset(NamedTuple):
    """An offset committed for a group, with its metadata text ("" if none)."""

    offset: int
    metadata: str


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was not written, and why. `index` is its index in `columns`."""

    columns: OutputColumns
    index: int
    error: Exception
    #: The same record may succeed if sent again (time-outs, not enough replicas).
    retriable: bool


class TransactionAbortedError(Exception):
    """The transaction failed and was aborted; nothing of it is visible. The work can be sent again after `begin`.

    `record_refused` is true if the broker or client refused a record, so that sending the same again would fail the
    same way: ask `find_refused` which.
    """

    def __init__(self, message: str = "", *, record_refused: bool = False) -> None:
        super().__init__(message)
        self.record_refused = record_refused


class CommitOutcomeUnknownError(Exception):
    """Nobody can tell whether the transaction committed: retire the producer, read back the offsets (H8)."""


class UnansweredError(StreamsError):
    """The cluster did not answer within the time of a call; the same call may succeed once it is back."""


class UnsettledOffsetsError(UnansweredError):
    """Offsets of the group are in a transaction that was not decided within the time of a call."""


class OffsetOutOfRangeError(StreamsError):
    """A position is not in the log: deleted by retention, or the topic was made anew. Reading it has stopped."""

    def __init__(self, message: str, *, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class RecordSource(Protocol):
    """The worker's input: manual assignment, explicit positions, read_committed."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from these offsets (replaces what was assigned before)."""
        ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions as well."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions no more; one that is not read is fine. The others notice nothing."""
        ...

    def prepare(self, topics: Sequence[str]) -> None:
        """Get to know topics that may be added soon, so that their first record comes at once. Never fails.

        May be called from any thread.
        """
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        """Return what has arrived: runs of consecutive records of one partition, in the client's order.

        Returns as soon as there is anything. Raises `OffsetOutOfRangeError` or `MissingSourceTopicError` for one
        partition at a time; the others go on.
        """
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions; what was prefetched is thrown away and read again."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these partitions again."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to be handed out per partition, past control records where the end was reached."""
        ...

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the last known end of the log (high watermark) per partition, from the client's cache; no request is made.

        It counts records of open transactions, which can't be read yet: lag is measured against it. Partitions
        that nothing is known of yet are left out.
        """
        ...

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the last known end of the decided records per partition; no request is made.

        Exact where all decided records were read: there it is the position. Elsewhere it may count records of open transactions.
        """
        ...

    def close(self) -> None:
        """Close the client; idempotent."""
        ...


class TransactionalProducer(Protocol):
    """The worker's one transactional producer. Only the worker's loop thread calls it, and one thread for it: `send_offsets`, `commit`.

    Raises `FencedError` from any call once a newer producer of the same id exists, and `CommitOutcomeUnknownError`
    from any call once the producer must be replaced; after either only `close` is of use.
    """

    @property
    def transactional_id(self) -> str:
        """Return the id this producer fences others by."""
        ...

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return the position of each changelog that the last transaction wrote to, as far as the cluster has told."""
        ...

    def init(self) -> None:
        """Fence predecessors of the same id and abort their open transaction. Called once, before all else."""
        ...

    def begin(self) -> None:
        """Open a transaction. From here to `commit` nothing waits for user code."""
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
        """Send changelog records, in order, each with these headers, or with its own of `row_headers`.

        `commit` returns the offset after the last one of each partition.
        """
        ...

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Add offsets to the open transaction ahead of `commit`, which adds what it is given in their place.

        Raises `TransactionAbortedError` when nothing will become visible, `CommitOutcomeUnknownError` when nobody can tell.
        """
        ...

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Flush, add the offsets, commit; return the position (last offset + 1) of each changelog produced to.

        A changelog whose offset the client can't tell is left out: its earlier position stays right. The cluster answers
        before it has written the markers: an end offset read at once may still be that of before the commit.

        Raises `TransactionAbortedError` when nothing became visible, `CommitOutcomeUnknownError` when nobody can tell.
        """
        ...

    def abort(self) -> None:
        """Abort the open transaction, if any."""
        ...

    def find_refused(self, columns: Sequence[OutputColumns]) -> list[FailedDelivery]:
        """Return the records the broker refuses, found by sending all in transactions that are aborted.

        Called with no transaction open; leaves none open. Raises `TransactionAbortedError` if that can't be told now.
        """
        ...

    def close(self) -> None:
        """Close the client without waiting for anything; idempotent."""
        ...


class SinkProducer(Protocol):
    """The idempotent producer of at_least_once for sinks and dead letters: visible at once."""

    def produce(self, columns: OutputColumns) -> None:
        """Send records."""
        ...

    def flush(self) -> list[FailedDelivery]:
        """Wait until every record is answered; return those that failed, each once.

        Records whose batch was refused because of another one have been sent again by then, behind later records.
        """
        ...

    def close(self, wait_s: float = 0.0) -> None:
        """Close the client, once all it was given is answered, whatever the answer, or `wait_s` are over; idempotent."""
        ...


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says of a topic. `config` has only the settings that were asked for."""

    name: str
    topic_id: bytes
    partitions: int
    config: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic to create. `replication_factor` -1 takes the cluster's default."""

    name: str
    partitions: int
    replication_factor: int = -1
    config: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Admin(Protocol):
    """Questions and orders to the cluster. Every call has a time limit and raises `StreamsError` past it."""

    def list_topics(self) -> dict[str, int]:
        """Return all topics and their partition counts."""
        ...

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        """Return the topics that exist among `names`, with the asked settings."""
        ...

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        """Create topics; one that exists already is left alone. Returns when all are usable."""
        ...

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics; one that does not exist is fine."""
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete records below these offsets (purge of repartition topics)."""
        ...

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in the log per partition."""
        ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of the log (high watermark) per partition.

        The end for everything that must be complete, is compared with a position, or measures lag. Records below it may
        still be undecided: whoever reads to it waits until they are decided.
        """
        ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset per partition: all records below it are decided.

        Where to begin so that no undecided record is skipped, and how far read_committed readers come now. Never the end of a log:
        while a transaction is open, committed records lie beyond it.
        """
        ...

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Return the open transaction that the last stable offset waits for, of the partitions where there is one.

        One that is open now may be closed a moment later: only one that stays is worth a word.
        """
        ...

    def offsets_of_age(self, ages_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, per partition, the offset of the first record that is at most this old by now; the end if none is."""
        ...

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return what is committed (all of the group's partitions for None).

        `stable=True` waits for pending transactional commits to be decided, and raises `UnsettledOffsetsError` if that
        takes too long; `stable=False` returns the last decided one at once. The cluster tells of a pending commit only if asked for that partition: with None, a partition whose
        first commit is pending is left out even by `stable=True`.
        """
        ...

    def reach_group(self, group_id: str) -> None:
        """Find the group's coordinator, which a first question does: the next one for stable offsets takes a moment less."""
        ...

    def group_members(self, group_id: str) -> int:
        """Return how many live members the group has (subscribed consumers; we have none)."""
        ...

    def offsets_retention_ms(self) -> int:
        """Return how long brokers keep an offset that is not committed again; raises `StreamsError` if they don't tell."""
        ...

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Overwrite committed offsets, with their metadata where given (the reset command)."""
        ...

    def delete_group(self, group_id: str) -> None:
        """Delete a group and its offsets; one that does not exist is fine."""
        ...

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers of these ids, in parallel, and abort their open transactions."""
        ...

    def close(self) -> None:
        """Close the client; idempotent."""
        ...


class ChangelogReader(Protocol):
    """Reads changelogs for restoring: read_committed, by position, never by group.

    `with_headers` is False until somebody sets it, before the records that have some: changelogs have none
    but those of stores that keep headers.
    """

    with_headers: bool

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets."""
        ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions as well; one that is read already stays where it is."""
        ...

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions no more; one that is not read is fine."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions; what was prefetched is thrown away and read again."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these partitions again."""
        ...

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the last known end per partition (see `RecordSource.end_offsets`); no request is made."""
        ...

    def stable_offsets(self) -> dict[TopicPartition, int]:
        """Return the last known end of the decided records (see `RecordSource.stable_offsets`); no request is made."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        """Return what has arrived, as runs of one partition."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the position per partition; past control records once the end was reached (H29)."""
        ...

    def close(self) -> None:
        """Close the client; idempotent."""
        ...


class Clock(Protocol):
    """Time, told to those who need it."""

    def now_ms(self) -> int:
        """Return wall-clock time in ms since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return a clock that never jumps, in seconds, for intervals."""
        ...


#: Makes the transactional producer of a worker, anew after one was retired.
ProducerFactory = Callable[[], TransactionalProducer]

#: Makes the transactional producer of an id.
ProducerOfId = Callable[[str], TransactionalProducer]


#: (partition, offset) of the record in hand; (None, -1) for none.
OnRecord = Callable[[TopicPartition | None, int], None]
