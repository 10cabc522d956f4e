"""In-memory cluster: logs with transactions and markers, fencing, group offsets.

It has Kafka's visible behaviour and passes the contract tests of the real adapters: control records
take offsets, readers stop at the first open transaction, a newer producer fences the older one and
aborts its transaction, and sent offsets are pending until the end. Nothing waits. Tests set faults
beforehand (`commit_fates`, `refuse`, `fail_sends`). Thread-safe.
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
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


class CommitFate(StrEnum):
    """Outcome of a commit, set by the test."""

    COMMITS = "commits"
    #: Aborted by the broker; the producer continues.
    ABORTS = "aborts"
    #: Committed, but the producer gets an unknown outcome.
    UNKNOWN_COMMITTED = "unknown, committed"
    #: Left open, with an unknown outcome; fencing the id aborts it.
    UNKNOWN_OPEN = "unknown, open"


class TransactionState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction: its partitions, and the offsets it will commit."""

    state: TransactionState = TransactionState.OPEN
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    #: Reason why it can only be aborted, or "".
    refusal: str = ""


class StoredRecord(NamedTuple):
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
        if self.record is None:
            return False
        return self.transaction is None or self.transaction.state is TransactionState.COMMITTED


@dataclass(slots=True)
class Log:
    start: int = 0
    entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    @property
    def last_stable_offset(self) -> int:
        for index, entry in enumerate(self.entries):
            transaction = entry.transaction
            if transaction is not None and transaction.state is TransactionState.OPEN:
                return self.start + index
        return self.end

    def read(self, position: int, max_records: int) -> tuple[list[StoredRecord], int]:
        """Return committed records from a position on, and the next position."""
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
    topic_id: bytes
    logs: list[Log]
    config: dict[str, str]


class FakeBroker:
    """The cluster; tests access it directly, code under test through clients.

    Attributes:
        commit_fates: Outcomes of the next commits, in order; later commits succeed.
        members: Live members per group.
        fenced: Transactional ids in the order of `Admin.fence` calls.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.topics: dict[str, Topic] = {}
        self.groups: defaultdict[str, dict[TopicPartition, CommittedOffset]] = defaultdict(dict)
        self.members: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        self.commit_fates: deque[CommitFate] = deque()
        self.fenced: list[str] = []
        self._epochs: defaultdict[str, int] = defaultdict(int)
        self._open: dict[str, Transaction] = {}
        self._refusals: list[tuple[str, Callable[[StoredRecord], bool]]] = []
        self._send_failures: deque[tuple[str, bool]] = deque()
        self._topics_made = 0
        self._unkeyed = 0

    # Used by tests.

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; a topic created again has another id."""
        with self.lock:
            assert name not in self.topics, f"topic {name} exists"
            self._topics_made += 1
            self.topics[name] = Topic(
                self._topics_made.to_bytes(16, "big"),
                [Log() for _ in range(partitions)],
                {"max.message.bytes": str(DEFAULT_MAX_MESSAGE_BYTES), **(config or {})},
            )

    def delete_topic(self, name: str) -> None:
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
        """Append a record outside transactions; return its offset."""
        with self.lock:
            return self._append(topic, partition, key, value, timestamp, headers, None).offset

    def records(self, topic: str) -> list[StoredRecord]:
        with self.lock:
            return [
                record
                for log in self.topics[topic].logs
                for record in log.read(log.start, log.end - log.start)[0]
            ]

    def refuse(self, topic: str, when: Callable[[StoredRecord], bool]) -> None:
        """Reject records of a topic from now on, as invalid."""
        self._refusals.append((topic, when))

    def fail_sends(self, topic: str, times: int = 1, *, retriable: bool = True) -> None:
        """Fail the next records that a sink producer sends to a topic."""
        self._send_failures.extend([(topic, retriable)] * times)

    def expire_transaction(self, transactional_id: str) -> None:
        """Abort an open transaction by its timeout, which fences its producer."""
        with self.lock:
            self.init_producer(transactional_id)

    # Used by clients.

    def log_of(self, partition: TopicPartition) -> Log | None:
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.logs):
            return None
        return topic.logs[partition.partition]

    def init_producer(self, transactional_id: str) -> int:
        """Fence an id's producers, abort their open transaction, return the new epoch."""
        self._epochs[transactional_id] += 1
        open_one = self._open.pop(transactional_id, None)
        if open_one is not None:
            self.end(open_one, TransactionState.ABORTED)
        return self._epochs[transactional_id]

    def is_fenced(self, transactional_id: str, epoch: int) -> bool:
        return self._epochs[transactional_id] != epoch

    def open_transaction(self, transactional_id: str) -> Transaction:
        return self._open.setdefault(transactional_id, Transaction())

    def transactional_id_at(self, log: Log, offset: int) -> str:
        """Return the transactional id of an offset in an open transaction, or ""."""
        entry = log.entries[offset - log.start]
        return next((name for name, one in self._open.items() if one is entry.transaction), "")

    def commit(self, transactional_id: str, transaction: Transaction) -> CommitFate:
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
        transaction = self._open.pop(transactional_id, None)
        if transaction is not None:
            self.end(transaction, TransactionState.ABORTED)

    def end(self, transaction: Transaction, state: TransactionState) -> None:
        transaction.state = state
        for partition in sorted(transaction.partitions):
            log = self.log_of(partition)
            if log is not None:
                log.entries.append(Entry(None, transaction))
        if state is TransactionState.COMMITTED:
            for group, offsets in transaction.offsets.items():
                self.groups[group].update(offsets)

    def pending_offsets(self, group: str) -> set[TopicPartition]:
        return {
            each
            for transaction in self._open.values()
            for each in transaction.offsets.get(group, {})
        }

    def append_columns(
        self, columns: OutputColumns, index: int, transaction: Transaction | None
    ) -> StoredRecord:
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
        """Return the retriable flag of the next requested send failure, or None."""
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
    """The fake broker rejects a record."""


def names_of(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
