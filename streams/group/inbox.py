"""The last that members and leader said in a group's inbox. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from tidewheel.rebalance.group import LIVE, Group, is_of_leader
from tidewheel.rebalance.inspect.describe import REJECTED_KEPT
from tidewheel.rebalance.protocol.decoding import RejectedRecord
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
from tidewheel.streams.group.topics import Heard

#: Silence is judged by this where a member's own session timeout is not known.
SESSION_MS: Final = 3_000
#: Beats of so many leader epochs are remembered.
_LEADERS_MAX: Final = 16
#: Answers to deletions of keys that are remembered.
_ERASED_MAX: Final = 100
#: Whoever looks for days forgets what was said so long before the last word, and looks for it so often.
_KEPT_MS: Final = 3_600_000
_FORGET_EACH_MS: Final = 600_000
#: The inbox is read from two session timeouts back, and from this at least: each member says everything every tenth beat.
_BACK_MS: Final = 10_000


def inbox_back_ms(group: Group) -> int:
    """Return from how far back the inbox has to be read to hear everybody who speaks."""
    timeouts = (record.session_timeout_ms for record in group.members.values())
    return max(2 * max(timeouts, default=0), _BACK_MS)


def at_hosts(workers: Mapping[str, str]) -> str:
    """Return who is where, for people; a host that is not known is left out.

    >>> at_hosts({"shop-1": "", "shop-0": "eu-3"})
    'shop-0 at eu-3, shop-1'
    """
    return ", ".join(
        f"{name} at {host}" if host else name for name, host in sorted(workers.items())
    )


class InboxFold:
    """The last that each member and the leader said. Feed it in the order of the inbox."""

    def __init__(self) -> None:
        #: Every speaker's name, by incarnation.
        self.names: dict[str, str] = {}
        #: When each incarnation last gave a beat.
        self.heard_ms: dict[str, int] = {}
        #: The long call of user code that it last said its worker is in.
        self.calls: dict[str, RunningCall | None] = {}
        #: What it last said of each task, and when.
        self.tasks: dict[str, dict[tuple[str, str], tuple[int, TaskStatus]]] = {}
        #: The last beats of leaders, by leader epoch, the one heard last at the end.
        self._leader_beats: dict[int, tuple[int, LeaderBeat]] = {}
        #: Incarnations that asked to join, and when they last did.
        self.joins: dict[str, tuple[int, JoinGroup]] = {}
        #: Transactional ids that members joined with or asked for.
        self.transactional_ids: set[str] = set()
        self.refused: dict[str, tuple[int, JoinRefused]] = {}
        #: Copies that said they were ready, by (task, incarnation, learn epoch).
        self.ready: dict[tuple[str, str, int], int] = {}
        #: The last failure of each task at each member.
        self.failed: dict[tuple[str, str], tuple[int, TaskFailed]] = {}
        #: Answers to deletions of keys, by request, the one heard last at the end.
        self.erased: dict[str, KeyErased] = {}
        #: The last messages that were dropped, and how many there were.
        self.rejected: deque[RejectedRecord] = deque(maxlen=REJECTED_KEPT)
        self.rejected_count = 0
        self._last_ms = 0
        self._forgot_ms = 0

    def take(self, heard: Heard) -> None:
        """Take in a message."""
        at_ms, message = heard
        self._last_ms = at_ms
        if isinstance(message, RejectedRecord):
            self.rejected.append(message)
            self.rejected_count += 1
        elif isinstance(message, KeyErased):
            self.erased[message.request] = message
            while len(self.erased) > _ERASED_MAX:
                del self.erased[next(iter(self.erased))]
        else:
            self._hear(at_ms, message)

    def _hear(self, at_ms: int, message: AnyMessage) -> None:
        if not isinstance(
            message, JoinRefused
        ):  # its incarnation is the refused one's, its member the leader's
            self.names[message.incarnation] = message.member
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
                self.refused[message.incarnation] = (at_ms, message)
            case Ready():
                self.ready[message.task, message.incarnation, message.learn_epoch] = at_ms
            case TaskFailed():
                self.failed[message.task, message.incarnation] = (at_ms, message)
            case _:
                pass  # an announcement that the log's next records answer

    def leader_beat(self, group: Group) -> tuple[int, LeaderBeat] | None:
        """Return the last beat of the leader that a group's log names, or of the one before, and when it was heard.

        Where the log names none, the last beat of any. A beat's own epoch is not trusted: anybody may write to an inbox.
        """
        if not group.leader_epoch:
            return next(reversed(self._leader_beats.values()), None)
        known = [
            heard
            for epoch, heard in self._leader_beats.items()
            if epoch < group.leader_epoch or is_of_leader(heard[1], group)
            if epoch <= group.leader_epoch
        ]
        return max(known, key=lambda heard: heard[1].leader_epoch, default=None)

    def forget_old(self) -> None:
        """Forget what was said an hour before the last word, and who has not spoken since; for whoever looks again and again."""
        if self._last_ms - self._forgot_ms < _FORGET_EACH_MS:
            return
        self._forgot_ms, since_ms = self._last_ms, self._last_ms - _KEPT_MS
        self.heard_ms = {each: at for each, at in self.heard_ms.items() if at >= since_ms}
        self.tasks = {each: rows for each, rows in self.tasks.items() if each in self.heard_ms}
        self.calls = {each: call for each, call in self.calls.items() if each in self.heard_ms}
        self.names = {each: name for each, name in self.names.items() if each in self.heard_ms}
        self.joins = {each: said for each, said in self.joins.items() if said[0] >= since_ms}
        self.transactional_ids = {
            each for _, join in self.joins.values() for each in join.transactional_ids
        }
        self.refused = {each: said for each, said in self.refused.items() if said[0] >= since_ms}
        self.ready = {each: at for each, at in self.ready.items() if at >= since_ms}
        self.failed = {each: said for each, said in self.failed.items() if said[0] >= since_ms}

    def speaking(self, group: Group, now_ms: int) -> tuple[str, ...]:
        """Return the names of members that were heard within twice their session timeout and have not left.

        Where there is no log, everybody counts who spoke.
        """
        found: set[str] = set()
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
                found.add(self.names[incarnation])
        return tuple(sorted(found))

    def _leader_beat(self, at_ms: int, beat: LeaderBeat) -> None:
        self._leader_beats.pop(beat.leader_epoch, None)
        self._leader_beats[beat.leader_epoch] = (at_ms, beat)
        while len(self._leader_beats) > _LEADERS_MAX:
            del self._leader_beats[next(iter(self._leader_beats))]

    def _beat(self, at_ms: int, beat: Beat) -> None:
        self.heard_ms[beat.incarnation] = at_ms
        self.calls[beat.incarnation] = beat.call
        known = self.tasks.setdefault(beat.incarnation, {})
        if beat.full:
            known.clear()
        known |= {(each.task, each.role): (at_ms, each) for each in beat.tasks}
