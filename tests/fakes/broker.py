"""A cluster in memory: logs with transactions and their markers, fencing, group offsets. Its clients are beside it.

It keeps what a client can see of Kafka: offsets are taken by control records too, readers stop at the first open
transaction, a newer producer of an id fences the older one and aborts what it left open, offsets sent in a transaction
are pending until it ends. It passes the contract suites that the real adapters pass. Nothing waits and no time passes;
what a test wants to go wrong it says beforehand (`commit_fates`, `refuse`, `fail_sends`). Safe for threads.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tests.fakes.murmur2 import partition_of
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.records import record_size_bytes
from tidewheel.tasks.ports import CommittedOffset
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


class CommitFate(StrEnum):
    """What becomes of a commit, decided by the test beforehand."""

    COMMITS = "commits"
    #: Aborted by the broker; the producer goes on.
    ABORTS = "aborts"
    #: Committed, but the producer is told that nobody knows.
    UNKNOWN_COMMITTED = "unknown, committed"
    #: Left open, and the producer is told that nobody knows: whoever fences the id aborts it.
    UNKNOWN_OPEN = "unknown, open"


class TransactionState(StrEnum):
    """Where a transaction stands."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction: where it wrote, and the offsets it will commit."""

    state: TransactionState = TransactionState.OPEN
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    #: Why it can only be aborted, or "".
    refusal: str = ""


class StoredRecord(NamedTuple):
    """A record as a reader sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


@dataclass(slots=True)
class Entry:
    """One offset of a log: a record, or a transaction's marker (`record` None)."""

    record: StoredRecord | None
    transaction: Transaction | None

    def visible(self) -> bool:
        """Whether a read_committed reader is handed this entry."""
        if self.record is None:
            return False
        return self.transaction is None or self.transaction.state is TransactionState.COMMITTED


@dataclass(slots=True)
class Log:
    """One partition."""

    start: int = 0
    entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Return the next offset."""
        return self.start + len(self.entries)

    @property
    def last_stable_offset(self) -> int:
        """Return the first offset of an open transaction, else the end."""
        for index, entry in enumerate(self.entries):
            transaction = entry.transaction
            if transaction is not None and transaction.state is TransactionState.OPEN:
                return self.start + index
        return self.end

    def read(self, position: int, max_records: int) -> tuple[list[StoredRecord], int]:
        """Return committed records from a position on, and the position after what was looked at."""
        found: list[StoredRecord] = []
        end = self.last_stable_offset
        while position < end and len(found) < max_records:
            entry = self.entries[position - self.start]
            position += 1
            if entry.visible() and entry.record is not None:
                found.append(entry.record)
        return found, position


@dataclass(slots=True)
class Topic:
    """A topic's partitions, id and settings."""

    topic_id: bytes
    logs: list[Log]
    config: dict[str, str]


class FakeBroker:
    """The cluster. Tests read and prepare it directly; code under test gets its clients.

    Attributes:
        commit_fates: What becomes of the next commits, first come first served; commits beyond it succeed.
        members: Live members per group, as `group_members` reports them.
        fenced: Transactional ids in the order in which `Admin.fence` named them.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.topics: dict[str, Topic] = {}
        self.groups: defaultdict[str, dict[TopicPartition, CommittedOffset]] = defaultdict(dict)
        self.members: defaultdict[str, int] = defaultdict(int)
        self.commit_fates: deque[CommitFate] = deque()
        self.fenced: list[str] = []
        self._epochs: defaultdict[str, int] = defaultdict(int)
        self._open: dict[str, Transaction] = {}
        self._refusals: list[tuple[str, Callable[[StoredRecord], bool]]] = []
        self._send_failures: deque[tuple[str, bool]] = deque()
        self._topics_made = 0
        self._unkeyed = 0

    # What tests say and read.

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; the same name again is another topic with another id."""
        with self.lock:
            assert name not in self.topics, f"topic {name} exists"
            self._topics_made += 1
            self.topics[name] = Topic(
                self._topics_made.to_bytes(16, "big"),
                [Log() for _ in range(partitions)],
                {"max.message.bytes": str(DEFAULT_MAX_MESSAGE_BYTES), **(config or {})},
            )

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""
        with self.lock:
            self.topics.pop(name, None)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = ANY_PARTITION,
        timestamp: int = 0,
        headers: Headers = (),
    ) -> int:
        """Append a record outside any transaction, as another program would; returns its offset."""
        with self.lock:
            return self._append(topic, partition, key, value, timestamp, headers, None).offset

    def records(self, topic: str) -> list[StoredRecord]:
        """Return what a read_committed reader sees of a topic, partition by partition."""
        with self.lock:
            return [
                record
                for log in self.topics[topic].logs
                for record in log.read(log.start, log.end - log.start)[0]
            ]

    def refuse(self, topic: str, when: Callable[[StoredRecord], bool]) -> None:
        """Refuse records of a topic from now on, as a broker does that finds them invalid."""
        self._refusals.append((topic, when))

    def fail_sends(self, topic: str, times: int = 1, *, retriable: bool = True) -> None:
        """Let the next records that a sink producer sends to a topic fail."""
        self._send_failures.extend([(topic, retriable)] * times)

    def expire_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction because it took longer than its time-out, which fences its producer."""
        with self.lock:
            self.init_producer(transactional_id)

    # What clients do.

    def log_of(self, partition: TopicPartition) -> Log | None:
        """Return a partition's log, or None if there is no such partition."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.logs):
            return None
        return topic.logs[partition.partition]

    def init_producer(self, transactional_id: str) -> int:
        """Fence the producers of an id, abort their open transaction, return the new epoch."""
        self._epochs[transactional_id] += 1
        open_one = self._open.pop(transactional_id, None)
        if open_one is not None:
            self.end(open_one, TransactionState.ABORTED)
        return self._epochs[transactional_id]

    def is_fenced(self, transactional_id: str, epoch: int) -> bool:
        """Whether a newer producer of the id exists."""
        return self._epochs[transactional_id] != epoch

    def open_transaction(self, transactional_id: str) -> Transaction:
        """Return the id's open transaction, beginning one if there is none."""
        return self._open.setdefault(transactional_id, Transaction())

    def transactional_id_at(self, log: Log, offset: int) -> str:
        """Return whose open transaction has an offset of a log; "" for nobody's."""
        entry = log.entries[offset - log.start]
        return next((name for name, one in self._open.items() if one is entry.transaction), "")

    def commit(self, transactional_id: str, transaction: Transaction) -> CommitFate:
        """Decide a transaction as the test said."""
        fate = self.commit_fates.popleft() if self.commit_fates else CommitFate.COMMITS
        match fate:
            case CommitFate.COMMITS | CommitFate.UNKNOWN_COMMITTED:
                self._open.pop(transactional_id, None)
                self.end(transaction, TransactionState.COMMITTED)
            case CommitFate.ABORTS:
                self.abort(transactional_id)
            case CommitFate.UNKNOWN_OPEN:
                pass
        return fate

    def abort(self, transactional_id: str) -> None:
        """Abort the id's open transaction, if any."""
        transaction = self._open.pop(transactional_id, None)
        if transaction is not None:
            self.end(transaction, TransactionState.ABORTED)

    def end(self, transaction: Transaction, state: TransactionState) -> None:
        """Write the markers and, if it commits, the offsets."""
        transaction.state = state
        for each in sorted(transaction.partitions):
            log = self.log_of(each)
            if log is not None:
                log.entries.append(Entry(None, transaction))
        if state is TransactionState.COMMITTED:
            for group, offsets in transaction.offsets.items():
                self.groups[group].update(offsets)

    def pending_offsets(self, group: str) -> set[TopicPartition]:
        """Return partitions of a group with offsets in an open transaction."""
        return {
            each
            for transaction in self._open.values()
            for each in transaction.offsets.get(group, {})
        }

    def append_columns(
        self, columns: OutputColumns, index: int, transaction: Transaction | None
    ) -> StoredRecord:
        """Append one record of columns; raises RefusedRecordError."""
        partitions = columns.partitions
        return self._append(
            columns.topic,
            partitions if isinstance(partitions, int) else partitions[index],
            columns.keys[index],
            columns.values[index],
            columns.timestamps[index],
            columns.headers[index] if columns.headers is not None else (),
            transaction,
        )

    def take_send_failure(self, topic: str) -> bool | None:
        """Return whether the send failure that the test asked for is retriable, or None if it asked for none."""
        if self._send_failures and self._send_failures[0][0] == topic:
            return self._send_failures.popleft()[1]
        return None

    def _append(
        self,
        name: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        transaction: Transaction | None,
    ) -> StoredRecord:
        topic = self.topics.get(name)
        if topic is None:
            raise RefusedRecordError(f"UNKNOWN_TOPIC_OR_PART: topic {name} does not exist")
        if partition == ANY_PARTITION:
            partition = self._choose(key, len(topic.logs))
        if partition >= len(topic.logs):
            raise RefusedRecordError(f"_UNKNOWN_PARTITION: {name}-{partition} does not exist")
        log = topic.logs[partition]
        record = StoredRecord(partition, log.end, key, value, timestamp, tuple(headers))
        if record_size_bytes(key, value, headers) > int(topic.config["max.message.bytes"]):
            raise RefusedRecordError(f"MSG_SIZE_TOO_LARGE: record for {name}-{partition}")
        if key is None and "compact" in topic.config.get("cleanup.policy", ""):
            raise RefusedRecordError(f"INVALID_RECORD: record without a key for {name}-{partition}")
        for refused, when in self._refusals:
            if refused == name and when(record):
                raise RefusedRecordError(f"INVALID_RECORD: record for {name}-{partition}")
        log.entries.append(Entry(record, transaction))
        if transaction is not None:
            transaction.partitions.add(TopicPartition(name, partition))
        return record

    def _choose(self, key: bytes | None, partitions: int) -> int:
        if key is not None:
            return partition_of(key, partitions)
        self._unkeyed += 1
        return self._unkeyed % partitions


class RefusedRecordError(StreamsError):
    """The fake broker does not take a record."""


def names_of(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions for a message."""
    return ", ".join(map(str, partitions))
