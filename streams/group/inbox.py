"""Inbox state: last messages of each member and of the leader; no I/O."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from tidewheel.rebalance.inspect.describe import REJECTED_MAX
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.group import LIVE, Group, is_of_leader
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    JoinGroup,
    JoinRefused,
    KeyErased,
    LeaderBeat,
    Ready,
    TaskFailed,
    TransactionalIdWanted,
)
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus
from tidewheel.streams.group.topics import ReceivedMessage

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

#: Session timeout assumed for members whose own is unknown.
SESSION_MS: Final = 3_000
_LEADERS_MAX: Final = 16
_ERASED_MAX: Final = 100
#: Most senders, and most entries of each other kind: any client may write to an inbox.
_SENDERS_MAX: Final = 10_000
_KEPT_MS: Final = 3_600_000
_FORGET_INTERVAL_MS: Final = 600_000
#: Minimum time to read back: ten heartbeats, of which one lists all tasks of a member.
_BACK_MS: Final = 10_000


def inbox_back_ms(group: Group) -> int:
    """Return the age (ms) from which the inbox must be read to hear all live members."""
    timeouts = (record.session_timeout_ms for record in group.members.values())
    return max(2 * max(timeouts, default=0), _BACK_MS)


def with_hosts(workers: Mapping[str, str]) -> str:
    """Return names with their hosts, for people.

    >>> with_hosts({"shop-1": "", "shop-0": "eu-3"})
    'shop-0 at eu-3, shop-1'
    """
    return ", ".join(
        f"{name} at {host}" if host else name for name, host in sorted(workers.items())
    )


class InboxFold:
    """Last messages by sender; add them in inbox order."""

    def __init__(self) -> None:
        #: Member of each incarnation, in order of their last messages.
        self.names: dict[str, str] = {}
        #: Time of the last heartbeat or join, by incarnation.
        self.heard_ms: dict[str, int] = {}
        self.calls: dict[str, RunningCall | None] = {}
        #: By incarnation, then (task, role): time and status.
        self.tasks: dict[str, dict[tuple[str, str], tuple[int, TaskStatus]]] = {}
        #: By leader epoch, in order of arrival: the last received is at the end.
        self._leader_beats: dict[int, tuple[int, LeaderBeat]] = {}
        self.joins: dict[str, tuple[int, JoinGroup]] = {}
        #: Not limited: a recovery must fence all of them.
        self.transactional_ids: set[str] = set()
        self.refused: dict[str, tuple[int, JoinRefused]] = {}
        #: Receive time by (task, incarnation, learn epoch).
        self.ready: dict[tuple[str, str, int], int] = {}
        #: Receive time and message by (task, incarnation).
        self.failed: dict[tuple[str, str], tuple[int, TaskFailed]] = {}
        #: By request, in order of first answers.
        self.erased: dict[str, KeyErased] = {}
        self.rejected: deque[RejectedRecord] = deque(maxlen=REJECTED_MAX)
        self.rejected_count = 0
        self._last_ms = 0
        self._forgot_ms = 0

    def add(self, received: ReceivedMessage) -> None:
        at_ms, message = received
        self._last_ms = at_ms
        if isinstance(message, RejectedRecord):
            self.rejected.append(message)
            self.rejected_count += 1
        elif isinstance(message, KeyErased):
            self.erased[message.request] = message
            while len(self.erased) > _ERASED_MAX:
                del self.erased[next(iter(self.erased))]
        else:
            self._add_message(at_ms, message)

    def _add_message(self, at_ms: int, message: AnyMessage) -> None:
        if not isinstance(
            message, JoinRefused
        ):  # it has the incarnation of the refused worker, but the leader's member name
            self._name(message.incarnation, message.member)
        match message:
            case Beat():
                self._beat(at_ms, message)
            case LeaderBeat():
                self._leader_beat(at_ms, message)
            case JoinGroup():
                self.heard_ms[message.incarnation] = at_ms
                self.joins[message.incarnation] = (at_ms, message)
                self.transactional_ids.update(message.transactional_ids)
            case TransactionalIdWanted():
                self.transactional_ids.add(message.transactional_id)
            case JoinRefused():
                _put(self.refused, message.incarnation, (at_ms, message))
            case Ready():
                _put(self.ready, (message.task, message.incarnation, message.learn_epoch), at_ms)
            case TaskFailed():
                _put(self.failed, (message.task, message.incarnation), (at_ms, message))
            case _:
                pass  # the group log has the outcome

    def leader_beat(self, group: Group) -> tuple[int, LeaderBeat] | None:
        """Return the last heartbeat of the leader in the group log, with its receive time.

        Before its first heartbeat, return the last of an earlier leader. Heartbeats with later
        epochs are not trusted: any client may write to an inbox.
        """
        if not group.leader_epoch:
            return next(reversed(self._leader_beats.values()), None)
        beats = [
            entry
            for epoch, entry in self._leader_beats.items()
            if epoch < group.leader_epoch or is_of_leader(entry[1], group)
            if epoch <= group.leader_epoch
        ]
        return max(beats, key=lambda entry: entry[1].leader_epoch, default=None)

    def forget_old(self) -> None:
        if self._last_ms - self._forgot_ms < _FORGET_INTERVAL_MS:
            return
        self._forgot_ms, since_ms = self._last_ms, self._last_ms - _KEPT_MS
        self.heard_ms = {key: at_ms for key, at_ms in self.heard_ms.items() if at_ms >= since_ms}
        self.tasks = {key: rows for key, rows in self.tasks.items() if key in self.heard_ms}
        self.calls = {key: call for key, call in self.calls.items() if key in self.heard_ms}
        self.names = {key: name for key, name in self.names.items() if key in self.heard_ms}
        self.joins = {key: entry for key, entry in self.joins.items() if entry[0] >= since_ms}
        self.transactional_ids = {
            transactional_id
            for _, join in self.joins.values()
            for transactional_id in join.transactional_ids
        }
        self.refused = {key: entry for key, entry in self.refused.items() if entry[0] >= since_ms}
        self.ready = {key: at_ms for key, at_ms in self.ready.items() if at_ms >= since_ms}
        self.failed = {key: entry for key, entry in self.failed.items() if entry[0] >= since_ms}

    def live_members(self, group: Group, now_ms: int) -> tuple[str, ...]:
        """Return live or joining members heard within two session timeouts.

        Any sender counts if the log has no leader yet.
        """
        names: set[str] = set()
        for incarnation, heard_ms in self.heard_ms.items():
            record = group.members.get(incarnation)
            is_new = incarnation in self.joins and incarnation not in self.tasks
            if group.leader_epoch and not is_new and (record is None or record.phase not in LIVE):
                continue
            joined = self.joins.get(incarnation)
            timeout_ms = SESSION_MS if joined is None else joined[1].session_timeout_ms
            if record is not None:
                timeout_ms = record.session_timeout_ms
            if now_ms - heard_ms <= 2 * timeout_ms:
                names.add(self.names[incarnation])
        return tuple(sorted(names))

    def _leader_beat(self, at_ms: int, beat: LeaderBeat) -> None:
        self._leader_beats.pop(beat.leader_epoch, None)
        self._leader_beats[beat.leader_epoch] = (at_ms, beat)
        while len(self._leader_beats) > _LEADERS_MAX:
            del self._leader_beats[next(iter(self._leader_beats))]

    def _beat(self, at_ms: int, beat: Beat) -> None:
        self.heard_ms[beat.incarnation] = at_ms
        self.calls[beat.incarnation] = beat.call
        rows = self.tasks.setdefault(beat.incarnation, {})
        if beat.full:
            rows.clear()
        for status in beat.tasks:
            _put(rows, (status.task, status.role), (at_ms, status))

    def _name(self, incarnation: str, member: str) -> None:
        """Store a sender's name; forget the sender that was silent longest if there are too many."""
        self.names.pop(incarnation, None)
        self.names[incarnation] = member
        if len(self.names) > _SENDERS_MAX:
            oldest = next(iter(self.names))
            by_sender: tuple[dict[str, Any], ...] = (
                self.names, self.heard_ms, self.calls, self.tasks, self.joins,
            )  # fmt: skip
            for entries in by_sender:
                entries.pop(oldest, None)


def _put(entries: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Store an entry as the last one; drop the first if there are too many."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > _SENDERS_MAX:
        del entries[next(iter(entries))]
