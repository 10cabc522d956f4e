"""Protocols that the group's runtime needs; adapters are in `streams/kafka/`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.orders import AnyOrder
from tidewheel.rebalance.protocol.records import AnyRecord


class LeadershipLostError(Exception):
    """Raised if a leader's transaction failed or its outcome is unknown; it leads no longer."""


class ControlTopicsChangedError(Exception):
    """Raised if a control topic is gone or recreated: the group's epochs are lost."""


class GroupLogAwayError(Exception):
    """Raised if the cluster is unavailable; the caller retries."""


class LoggedRecord(msgspec.Struct, frozen=True):
    key: str
    record: AnyRecord | None  # None: a tombstone, rejected, or of a kind of a later version.
    tombstone: bool = False
    rejected: RejectedRecord | None = None
    offset: int = -1  # -1 if unknown.


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    records: tuple[LoggedRecord, ...] = ()  # State topic, in order; whole committed transactions.
    messages: tuple[AnyMessage, ...] = ()  # Inbox, in order, without dropped ones.
    state_offset: int = 0  # All state records below it have been returned.
    dropped: int = 0  # Count of unreadable inbox messages, including `rejected`.
    rejected: tuple[RejectedRecord, ...] = ()


class GroupLog(Protocol):
    """The two control topics of an application.

    Threads: one calls `open` and `poll`, one the leader's methods (`claim`, `append`, `forget`,
    `resign`), one `send`.
    """

    def open(self, *, create: bool, inbox_back_ms: int) -> Mapping[str, str]:
        """Read the state topic from its start and the inbox from `inbox_back_ms` ago.

        Returns the topic ids by name. Without `create`, a missing topic raises
        `ControlTopicsChangedError`.
        """
        ...

    def poll(self, timeout_s: float) -> LogRead: ...

    def state_end(self) -> int:
        """Return the state topic's end, up to which a new reader must read before it acts."""
        ...

    def topic_ids(self) -> Mapping[str, str]:
        """Return current topic ids, without missing topics."""
        ...

    def send(self, messages: Sequence[AnyMessage]) -> None:
        """Send messages in order without waiting; drop those not delivered within 5 s."""
        ...

    def claim(self) -> int:
        """Fence the earlier leader; return `state_end` after its last commit."""
        ...

    def append(self, records: Sequence[AnyRecord]) -> None:
        """Commit records in one transaction, or raise `LeadershipLostError`."""
        ...

    def forget(self, keys: Sequence[str]) -> None:
        """Commit tombstones for keys in one transaction, or raise `LeadershipLostError`."""
        ...

    def resign(self) -> None:
        """Close the leader's producer; idempotent."""
        ...

    def close(self) -> None:
        """Flush messages, then close every client; idempotent."""
        ...


class Fencer(Protocol):
    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence these ids and abort their transactions; raise an exception if any fails."""
        ...


class EndsReader(Protocol):
    def ends(self, positions: Sequence[str]) -> Mapping[str, int]:
        """Return high watermarks by position key (`orders-3`), without missing partitions."""
        ...

    def foreign_offsets(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        """Return inputs whose offset another application committed: its metadata shows it.

        `partitions` maps topics to partition counts.
        """
        ...


class MonotonicClock(Protocol):
    def now_ms(self) -> int: ...


class WorkerConnection(Protocol):
    """Connection to a member's worker. Methods never block or raise."""

    def order(self, orders: Sequence[AnyOrder]) -> None: ...

    def lease(self, until_ms: int) -> None:
        """Allow the worker to process records until `until_ms` (runtime clock)."""
        ...

    def progress(self) -> int:
        """Return the turn count of the worker's loop; while it rises, the worker is alive."""
        ...

    def call_since_ms(self, silent_ms: int) -> int | None:
        """Return the start of the current call of user code (runtime clock), or None.

        A worker's call watch (a thread) that is silent for `silent_ms` counts as such a call, which
        holds the GIL.
        """
        ...
