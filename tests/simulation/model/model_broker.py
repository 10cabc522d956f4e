"""Model of a broker: logs, transactions, fencing, group offsets, compaction.

It has no clock: the simulator schedules requests and markers. Behaviour as measured on Kafka 4.3.1
(facts F1-F20): markers follow a decision later, so offsets stay pending (F7); a transactional
commit without a generation is accepted regardless of members (F3); offsets may move backwards (F6);
a late EndTxn ends the producer's current transaction (F20). `tests/contracts/test_model_broker.py`
checks the same against a real broker.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class BrokerError(Exception):
    """A refused request; `code` is Kafka's error name."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class FencedError(BrokerError):
    """A newer producer of the transactional id exists."""

    def __init__(self) -> None:
        super().__init__("INVALID_PRODUCER_EPOCH")


class UnstableError(BrokerError):
    """An offset is pending."""

    def __init__(self) -> None:
        super().__init__("UNSTABLE_OFFSET_COMMIT")


class TransactionState(StrEnum):
    """OPEN, decided (PREPARED), marked in every partition (COMPLETE)."""

    OPEN = "open"
    PREPARED = "prepared"
    COMPLETE = "complete"


class GroupOffset(NamedTuple):
    offset: int
    metadata: Any


@dataclass(slots=True, eq=False)
class Transaction:
    transactional_id: str
    epoch: int
    began_ms: int
    state: TransactionState = TransactionState.OPEN
    committed: bool = False
    logs: "dict[str, int]" = field(default_factory=dict)
    records: "list[tuple[str, Any, Any]]" = field(default_factory=list)
    offsets: dict[str, GroupOffset] = field(default_factory=dict)


class Entry(NamedTuple):
    """One offset of a log: a record, or a control record."""

    key: Any
    value: Any
    transaction: Transaction | None
    written_at_ms: int
    control: bool = False


class Batch(NamedTuple):
    """Read-committed result: (offset, key, value) records and the next position."""

    records: list[tuple[int, Any, Any]]
    position: int


class Log:
    """One partition; compaction leaves gaps in its offsets."""

    __slots__ = ("end", "entries", "offsets", "open", "start")

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.offsets: list[int] = []
        self.entries: list[Entry] = []
        self.open: dict[Transaction, int] = {}

    def append(self, entry: Entry) -> int:
        offset = self.end
        self.offsets.append(offset)
        self.entries.append(entry)
        self.end = offset + 1
        return offset

    @property
    def last_stable_offset(self) -> int:
        """Return the first offset of an unmarked transaction, else the end."""
        return min(self.open.values()) if self.open else self.end

    def read(self, position: int, most: int) -> Batch:
        end = self.last_stable_offset
        if position >= end:
            return Batch([], position)
        index = bisect_left(self.offsets, position)
        found: list[tuple[int, Any, Any]] = []
        offsets, entries = self.offsets, self.entries
        while index < len(offsets) and offsets[index] < end:
            if len(found) >= most:
                return Batch(found, offsets[index])
            entry = entries[index]
            if not entry.control and (entry.transaction is None or entry.transaction.committed):
                found.append((offsets[index], entry.key, entry.value))
            index += 1
        return Batch(found, max(position, end))

    def compact(self, below: int, *, tombstones_before_ms: int = -1) -> None:
        """Compact below an offset: keep the last committed record per key, drop aborted ones.

        Tombstones written before `tombstones_before_ms` and control records go too.
        """
        below = min(below, self.last_stable_offset)
        cut = bisect_left(self.offsets, below)
        last: dict[Any, int] = {}
        for index in range(cut):
            entry = self.entries[index]
            if not entry.control and (entry.transaction is None or entry.transaction.committed):
                last[entry.key] = index
        kept = [
            index
            for index in sorted(last.values())
            if self.entries[index].value is not None
            or self.entries[index].written_at_ms >= tombstones_before_ms
        ]
        self.offsets = [self.offsets[index] for index in kept] + self.offsets[cut:]
        self.entries = [self.entries[index] for index in kept] + self.entries[cut:]


class ModelBroker:
    """Logs by `topic-partition`, producers by transactional id, one consumer group."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.epochs: dict[str, int] = {}
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[str, GroupOffset] = {}
        self.pending: dict[str, list[Transaction]] = {}
        self.members: dict[str, int] = {}
        #: Called with each decided transaction, before it is readable.
        self.decided: list[Callable[[Transaction], None]] = []
        #: Called with the transactional id of each new producer.
        self.fenced: list[Callable[[str], None]] = []
        self.deleted: set[str] = set()

    def delete(self, name: str, now_ms: int) -> None:
        """Delete a log; transactions open in it end."""
        for transaction in list(self.log(name).open):
            if transaction.state is TransactionState.OPEN:
                self._decide(transaction, commit=False)
            self.complete(transaction, now_ms)
        self.logs[name] = Log()
        self.deleted.add(name)

    def create(self, name: str) -> None:
        self.logs[name] = Log()
        self.deleted.discard(name)

    def log(self, name: str) -> Log:
        """Return a partition's log; create it on first use."""
        found = self.logs.get(name)
        if found is None:
            found = self.logs[name] = Log()
        return found

    def append(self, name: str, key: Any, value: Any, now_ms: int) -> int:
        return self.log(name).append(Entry(key, value, None, now_ms))

    # Producers.

    def init(self, transactional_id: str, now_ms: int) -> int:
        """Create a producer: fences older ones, aborts their transactions; returns its epoch."""
        transaction = self.transactions.get(transactional_id)
        self.epochs[transactional_id] = epoch = self.epochs.get(transactional_id, -1) + 1
        if transaction is not None:
            if transaction.state is TransactionState.OPEN:
                self._decide(transaction, commit=False)
            self.complete(transaction, now_ms)
        for listener in self.fenced:
            listener(transactional_id)
        return epoch

    def busy(self, transactional_id: str) -> bool:
        """CONCURRENT_TRANSACTIONS: markers of the last transaction are being written."""
        transaction = self.transactions.get(transactional_id)
        return transaction is not None and transaction.state is TransactionState.PREPARED

    def produce(
        self,
        transactional_id: str,
        epoch: int,
        records: Iterable[tuple[str, Any, Any]],
        now_ms: int,
    ) -> dict[str, int]:
        """Append (log, key, value) in the producer's transaction; return the next offsets."""
        transaction = self._transaction(transactional_id, epoch, now_ms)
        ends: dict[str, int] = {}
        records = list(records)
        if self.deleted and any(name in self.deleted for name, _, _ in records):
            raise BrokerError("UNKNOWN_TOPIC_OR_PARTITION")
        for name, key, value in records:
            log = self.log(name)
            offset = log.append(Entry(key, value, transaction, now_ms))
            if name not in transaction.logs:
                transaction.logs[name] = log.open[transaction] = offset
            transaction.records.append((name, key, value))
            ends[name] = offset + 1
        return ends

    def send_offsets(
        self,
        transactional_id: str,
        epoch: int,
        offsets: Mapping[str, GroupOffset],
        now_ms: int,
        *,
        member: str = "",
        generation: int = -1,
    ) -> None:
        """Add offsets to the transaction; without a member id no membership check (F3)."""
        if member or generation >= 0:
            if member not in self.members:
                raise BrokerError("UNKNOWN_MEMBER_ID")
            if self.members[member] != generation:
                raise BrokerError("ILLEGAL_GENERATION")
        transaction = self._transaction(transactional_id, epoch, now_ms)
        for partition, offset in offsets.items():
            transaction.offsets[partition] = offset
            waiting = self.pending.setdefault(partition, [])
            if transaction not in waiting:
                waiting.append(transaction)

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> Transaction | None:
        """Decide the producer's open transaction, whichever it is (F20); idempotent.

        Return the transaction if this request decided it; then `complete` writes its markers.
        """
        if self.epochs.get(transactional_id) != epoch:
            raise FencedError
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.epoch != epoch:
            raise BrokerError("INVALID_TXN_STATE")
        if transaction.state is not TransactionState.OPEN:
            if transaction.committed is not commit:
                raise BrokerError("INVALID_TXN_STATE")
            return None
        self._decide(transaction, commit=commit)
        return transaction

    def complete(self, transaction: Transaction, now_ms: int) -> None:
        """Write a decided transaction's markers: its records become readable, its offsets count."""
        if transaction.state is not TransactionState.PREPARED:
            return
        transaction.state = TransactionState.COMPLETE
        for name in transaction.logs:
            log = self.logs[name]
            del log.open[transaction]
            log.append(Entry(None, None, transaction, now_ms, control=True))
        for partition, offset in transaction.offsets.items():
            self.pending[partition].remove(transaction)
            if transaction.committed:
                self.offsets[partition] = offset

    def expire(self, now_ms: int, timeout_ms: int) -> list[str]:
        """Abort expired transactions, which fences their producers; return their ids."""
        late = [
            each
            for each, transaction in self.transactions.items()
            if transaction.state is TransactionState.OPEN
            and now_ms - transaction.began_ms > timeout_ms
        ]
        for transactional_id in late:
            self.init(transactional_id, now_ms)
        return late

    def _transaction(self, transactional_id: str, epoch: int, now_ms: int) -> Transaction:
        if self.epochs.get(transactional_id) != epoch:
            raise FencedError
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.state is TransactionState.PREPARED:
            raise BrokerError("CONCURRENT_TRANSACTIONS")
        if transaction is None or transaction.state is TransactionState.COMPLETE:
            transaction = Transaction(transactional_id, epoch, now_ms)
            self.transactions[transactional_id] = transaction
        return transaction

    def _decide(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.state = TransactionState.PREPARED
        transaction.committed = commit
        for listener in self.decided:
            listener(transaction)

    # Offsets of the group.

    def commit(
        self, offsets: Mapping[str, GroupOffset], *, member: str = "", generation: int = -1
    ) -> None:
        """Commit outside a transaction: only members may while the group has any (F1, F2)."""
        if self.members and self.members.get(member) != generation:
            raise BrokerError("UNKNOWN_MEMBER_ID")
        self.offsets.update(offsets)

    def committed(self, partition: str, *, stable: bool = True) -> GroupOffset | None:
        """Return the committed offset; raise UnstableError while one is pending (F7)."""
        if stable and self.pending.get(partition):
            raise UnstableError
        return self.offsets.get(partition)
