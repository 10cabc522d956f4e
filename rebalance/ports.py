"""What the group's runtime needs from outside, as Protocols; the adapters live in `streams/kafka/`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.orders import AnyOrder
from tidewheel.rebalance.protocol.records import AnyRecord


class LeadershipLostError(Exception):
    """A leader's transaction failed: another one has claimed, or nobody can tell whether it was committed.

    Either way this term is over: the next claim reads from the log what became of it.
    """


class ControlTopicsChangedError(Exception):
    """A control topic is gone, or is another one of the same name: epochs in it count for nothing (hole H24)."""


class GroupLogAwayError(Exception):
    """The cluster does not answer, or says "later": try again."""


class LoggedRecord(msgspec.Struct, frozen=True):
    """A record of the state topic.

    Attributes:
        key: Its key.
        record: None for a tombstone, for a rejected record, and for a kind that only a later version knows.
        tombstone: Whether it has no value.
        rejected: Why it is skipped, or None.
        offset: Its offset; -1 if unknown.
    """

    key: str
    record: AnyRecord | None
    tombstone: bool = False
    rejected: RejectedRecord | None = None
    offset: int = -1


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """What has come since the last call.

    Attributes:
        records: Of the state topic, in order: whole transactions, committed ones only.
        messages: Of the inbox, in order; what was malformed or too large is left out.
        state_offset: Everything of the state topic below it has been returned by now.
        dropped: Inbox messages that were left out.
        rejected: Those of them that the door has rejected.
    """

    records: tuple[LoggedRecord, ...] = ()
    messages: tuple[AnyMessage, ...] = ()
    state_offset: int = 0
    dropped: int = 0
    rejected: tuple[RejectedRecord, ...] = ()


class GroupLog(Protocol):
    """The two control topics of an application.

    One thread calls `open` and `poll`, one the leader's methods (`claim`, `append`, `forget`, `resign`), one `say`; the
    others may be called from any. Methods raise `GroupLogAwayError` where they can be tried again.
    """

    def open(self, *, create: bool, inbox_back_ms: int) -> Mapping[str, str]:
        """Begin to read: the state topic from its first record, the inbox from `inbox_back_ms` ago.

        Args:
            create: Create the topics if they are missing; else `ControlTopicsChangedError` is raised for a missing one.
            inbox_back_ms: Nothing older is returned.

        Returns:
            The ids of the two topics, by name.
        """
        ...

    def poll(self, timeout_s: float) -> LogRead:
        """Return what has come, or after `timeout_s` that nothing has."""
        ...

    def state_end(self) -> int:
        """Return the end of the state topic: `LogRead.state_offset` of a reader of all of it, once it is decided."""
        ...

    def topic_ids(self) -> Mapping[str, str]:
        """Return the topics' ids as they are now; a topic that is missing is left out."""
        ...

    def say(self, messages: Sequence[AnyMessage]) -> None:
        """Send messages to the inbox, in order; does not wait. What can't be delivered within seconds is dropped."""
        ...

    def claim(self) -> int:
        """Fence whoever led before, from its next record on, and return `state_end` with everything it has committed."""
        ...

    def append(self, records: Sequence[AnyRecord]) -> None:
        """Write records in one transaction; returns when they are committed. Raises `LeadershipLostError`."""
        ...

    def forget(self, keys: Sequence[str]) -> None:
        """Write tombstones in one transaction. Raises `LeadershipLostError`."""
        ...

    def resign(self) -> None:
        """Let go of the leader's producer; idempotent."""
        ...

    def close(self) -> None:
        """Send what was said, then let go of every client; idempotent."""
        ...


class Fencer(Protocol):
    """Makes dead members' producers useless."""

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers of these ids and abort their open transactions. Raises an exception if not all were."""
        ...


class EndsReader(Protocol):
    """Reads where partitions end."""

    def ends(self, positions: Sequence[str]) -> Mapping[str, int]:
        """Return the ends of logs (high watermarks) by position key; partitions that do not exist are left out.

        Raises an exception if it can't.
        """
        ...

    def foreign_offsets(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        """Return the position keys, of topics with so many partitions, whose committed offset somebody else wrote (H18).

        Raises an exception if it can't.
        """
        ...


class Clock(Protocol):
    """A clock that never jumps."""

    def now_ms(self) -> int:
        """Return milliseconds since some moment; only differences mean anything."""
        ...


class MemberLine(Protocol):
    """The way to a member's worker. All methods return at once and never raise."""

    def order(self, orders: Sequence[AnyOrder]) -> None:
        """Send orders."""
        ...

    def lease(self, until_ms: int) -> None:
        """Let the worker begin new work until then, by the runtime's clock."""
        ...

    def progress(self) -> int:
        """Return how often the worker's loop has turned."""
        ...

    def call_since_ms(self, silent_ms: int) -> int | None:
        """Return since when the worker's loop has been in a call of user code, by the runtime's clock; None: it is in none.

        Who watches over that in the worker may be silent for `silent_ms` before some call counts as keeping it from it.
        """
        ...
