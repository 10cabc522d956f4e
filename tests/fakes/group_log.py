"""Ports of `tidewheel.rebalance.runtime.ports` in memory: control topics with transactions and fencing."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from tidewheel.rebalance.protocol.decoding import RejectedRecord, Rejection
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    decode_message,
    encode_message,
    read_message,
)
from tidewheel.rebalance.protocol.orders import AnyOrder
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    decode_record,
    encode_record,
    read_record,
    record_keys,
)
from tidewheel.rebalance.runtime.ports import (
    ControlTopicsChangedError,
    GroupLogAwayError,
    LeadershipLostError,
    LoggedRecord,
    LogRead,
)

_T = TypeVar("_T")
_P = ParamSpec("_P")


@dataclass
class FakeControlTopics:
    """Content of the brokers; tests may change it.

    Attributes:
        state: (key, value) per offset; None at offsets of transaction markers.
        inbox: Encoded messages.
        ids: Ids of the existing topics.
        producer_epoch: Epoch of the leader's transactional id.
        away: All calls fail.
        lose_outcome: The next transaction is committed, but its leader gets an unknown outcome.
    """

    app: str = "app"
    state: list[tuple[bytes, bytes | None] | None] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    producer_epoch: int = 0
    away: bool = False
    lose_outcome: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def log(self) -> "FakeGroupLog":
        return FakeGroupLog(self)

    def delete(self) -> None:
        with self.lock:
            self.ids.clear()
            self.state.clear()
            self.inbox.clear()

    def create(self) -> None:
        with self.lock:
            for name in (f"{self.app}-group-state", f"{self.app}-group-inbox"):
                self.ids.setdefault(name, secrets.token_hex(16))

    def compact(self) -> None:
        """Keep the last record of each key, at its offset, and no tombstone."""
        with self.lock:
            last = {row[0]: offset for offset, row in enumerate(self.state) if row is not None}
            for offset, row in enumerate(self.state):
                if row is not None and (last[row[0]] != offset or row[1] is None):
                    self.state[offset] = None

    def records(self) -> list[AnyRecord]:
        rows = [row for row in self.state if row is not None]
        return [record for _, value in rows if (record := decode_record(value)) is not None]

    def messages(self) -> list[AnyMessage]:
        return [message for each in self.inbox if (message := decode_message(each)) is not None]


class FakeGroupLog:
    def __init__(self, topics: FakeControlTopics) -> None:
        self._topics = topics
        self._state_at = 0
        self._inbox_at = 0
        self._ids: dict[str, str] = {}
        #: Epoch of this process's leader, or None.
        self._epoch: int | None = None

    def open(self, *, create: bool, inbox_back_ms: int) -> Mapping[str, str]:
        """Start reading: the inbox from its end, or all of it if `inbox_back_ms` is set."""
        with self._reached():
            if create:
                self._topics.create()
            elif len(self._topics.ids) < 2:
                raise ControlTopicsChangedError("a topic is gone")
            self._state_at = 0
            self._inbox_at = 0 if inbox_back_ms else len(self._topics.inbox)
            self._ids = dict(self._topics.ids)
            return dict(self._ids)

    def poll(self, timeout_s: float) -> LogRead:
        """Return new records; poll every few milliseconds until `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not self._news() and time.monotonic() < deadline_s:
            time.sleep(0.002)
        with self._reached():
            if self._topics.ids != self._ids:
                raise ControlTopicsChangedError("the topics are other ones")
            rows = [
                (offset, *row)
                for offset, row in enumerate(self._topics.state[self._state_at :], self._state_at)
                if row is not None
            ]
            raw = list(enumerate(self._topics.inbox[self._inbox_at :], self._inbox_at))
            self._state_at = len(self._topics.state)
            self._inbox_at = len(self._topics.inbox)
        read = [(offset, read_message(each)) for offset, each in raw]
        known = tuple(each for _, each in read if each and not isinstance(each, Rejection))
        return LogRead(
            records=tuple(self._logged(*row) for row in rows),
            messages=known,
            state_offset=self._state_at,
            dropped=len(raw) - len(known),
            rejected=tuple(
                self._rejected("inbox", offset, each)
                for offset, each in read
                if isinstance(each, Rejection)
            ),
        )

    def _logged(self, offset: int, key: bytes, value: bytes | None) -> LoggedRecord:
        record = read_record(value)
        text = key.decode(errors="replace")
        if isinstance(record, Rejection):
            rejected = self._rejected("state", offset, record)
            return LoggedRecord(text, None, rejected=rejected, offset=offset)
        return LoggedRecord(text, record, tombstone=value is None, offset=offset)

    def _rejected(self, name: str, offset: int, rejection: Rejection) -> RejectedRecord:
        topic = f"{self._topics.app}-group-{name}"
        return RejectedRecord(topic=topic, partition=0, offset=offset, rejection=rejection)

    def state_end(self) -> int:
        with self._reached():
            return len(self._topics.state)

    def topic_ids(self) -> Mapping[str, str]:
        with self._reached():
            return dict(self._topics.ids)

    def send(self, messages: Sequence[AnyMessage]) -> None:
        """Send messages; they are lost while the cluster is away."""
        with self._topics.lock:
            if not self._topics.away:
                self._topics.inbox += map(encode_message, messages)

    def claim(self) -> int:
        with self._reached():
            self._topics.producer_epoch += 1
            self._epoch = self._topics.producer_epoch
            return len(self._topics.state)

    def append(self, records: Sequence[AnyRecord]) -> None:
        self._write(list(zip(record_keys(records), map(encode_record, records), strict=True)))

    def forget(self, keys: Sequence[str]) -> None:
        self._write([(key.encode(), None) for key in keys])

    def _write(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        with self._topics.lock:
            if self._topics.away:
                raise LeadershipLostError("the cluster accepted no records for too long")
            if self._epoch != self._topics.producer_epoch:
                raise LeadershipLostError("fenced" if self._epoch else "resigned")
            if not rows:
                return
            self._topics.state += [*rows, None]
            if self._topics.lose_outcome:
                self._topics.lose_outcome = False
                raise LeadershipLostError("a transaction's outcome is unknown")

    def resign(self) -> None:
        self._epoch = None

    def close(self) -> None:
        self._epoch = None

    def _news(self) -> bool:
        topics = self._topics
        grown = len(topics.state) > self._state_at or len(topics.inbox) > self._inbox_at
        return grown or topics.away or topics.ids != self._ids

    def _reached(self) -> threading.RLock:
        if self._topics.away:
            raise GroupLogAwayError("the cluster is away")
        return self._topics.lock


class FakeGroupAdmin:
    def __init__(self) -> None:
        self.fenced: list[tuple[str, ...]] = []
        self.ends_of: dict[str, int] = {}
        self.used = False
        self.foreign: tuple[str, ...] = ()

    def fence(self, transactional_ids: Sequence[str]) -> None:
        self.fenced.append(tuple(transactional_ids))

    def ends(self, positions: Sequence[str]) -> Mapping[str, int]:
        return {position: self.ends_of.get(position, 0) for position in positions}

    def foreign_offsets(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        return self.foreign

    def was_used(self) -> bool:
        return self.used


class FakeLine:
    """A `MemberLine` whose worker makes progress at each check, unless it hangs."""

    def __init__(self) -> None:
        self.orders: list[AnyOrder] = []
        self.leases: list[int] = []
        self.hangs = False
        self.call_ms: int | None = None
        self._progress = 0

    def order(self, orders: Sequence[AnyOrder]) -> None:
        self.orders += orders

    def lease(self, until_ms: int) -> None:
        self.leases.append(until_ms)

    def progress(self) -> int:
        self._progress += not self.hangs
        return self._progress

    def call_since_ms(self, silent_ms: int) -> int | None:
        return self.call_ms


class InlineExecutor(Executor):
    """Runs calls immediately or, while `held`, on `release`."""

    def __init__(self) -> None:
        self.held = False
        self.waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> "Future[_T]":
        future: Future[_T] = Future()

        def run() -> None:
            future.set_result(fn(*args, **kwargs))

        if self.held:
            self.waiting.append(run)
        else:
            run()
        return future

    def release(self) -> None:
        self.held = False
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()
