"""The leader's observations: knowledge outside the group log.

A new leader starts empty. It waits a full session timeout before it judges a member dead (H5), and
trusts no copy before its next announcement. Messages count only if their incarnation and epoch
match the log (H20).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase, TaskRole, TaskShape
from tidewheel.rebalance.protocol.group import LIVE, Group
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    DrainMember,
    EraseKey,
    GrantedOk,
    JoinGroup,
    JoinRefused,
    KeyErased,
    LeaderBeat,
    Leave,
    MemberDied,
    NotReady,
    Ready,
    Revoked,
    ShutDown,
    Suspect,
    TaskFailed,
    TransactionalIdWanted,
)
from tidewheel.rebalance.protocol.records import Copy, MemberRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus

#: Messages accepted only from incarnations in the group.
_OfMember = (
    Beat
    | Ready
    | NotReady
    | Revoked
    | GrantedOk
    | TaskFailed
    | TransactionalIdWanted
    | Leave
    | ShutDown
)

#: Pause before a member gets a task again that it failed to open; doubles per failure.
FAILURE_BACK_OFF_MS: Final = 1_000
FAILURE_BACK_OFF_MS_MAX: Final = 60_000

TRANSACTIONAL_IDS_MAX: Final = 1_000

#: READY messages kept per copy. End offsets are compared with positions received before the leader
#: requested them: later positions would show too small a lag.
ANNOUNCEMENTS_MAX: Final = 8

#: Time for which the leader uses the disk positions of a join. After it, the member may have opened
#: the stores and changed them.
DISK_FRESH_MS: Final = 10_000

#: Ended incarnations remembered, to refuse their late joins.
ENDED_MAX: Final = 10_000


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """A copy's latest READY, with the leader's own end-offset check."""

    incarnation: str
    learn_epoch: int
    store_uuid: str
    positions: Mapping[str, int]
    since_ms: int  # Start of its uninterrupted READY announcements.
    heard_ms: int
    #: Last announcements as (time, positions), this one included.
    history: tuple[tuple[int, Mapping[str, int]], ...] = ()
    checked_ms: int | None = None  # Request time of the checked end offsets; None: unchecked.
    lag: int = -1  # Changelog records behind the checked ends; -1 if unchecked.


class End(NamedTuple):
    offset: int
    requested_ms: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Close failures of a member to run a task; it gets no grant before `until_ms`."""

    count: int
    until_ms: int


class MemberObservations(msgspec.Struct, kw_only=True):
    heard_ms: int  # Time of its last join or beat; initially of the leader's claim.
    join: JoinGroup | None = None
    joined_ms: int = 0
    sequence: int = -1
    #: Start of `settling_ms`. None: it was in the group before, and is settled once heard again.
    admitted_ms: int | None = None
    #: True if its next beat must trigger a decision: moves to it, or joins, wait for a sign of
    #: life.
    awaited: bool = False
    in_call_ms: int = 0  # Time of the last report of a long call of user code.
    died: str = ""
    leave: Leave | None = None
    shutdown: str = ""
    rows: dict[TaskId, TaskStatus] = msgspec.field(default_factory=dict[TaskId, TaskStatus])
    ids_wanted: dict[int, str] = msgspec.field(default_factory=dict[int, str])


class Observations(msgspec.Struct, kw_only=True):
    claimed_ms: int
    ready_lag_max: int
    members: dict[str, MemberObservations] = msgspec.field(
        default_factory=dict[str, MemberObservations]
    )
    ended: dict[str, None] = msgspec.field(default_factory=dict[str, None])
    #: Ended incarnations that asked to join again; the next decision refuses them.
    returned: list[str] = msgspec.field(default_factory=list[str])
    announced: dict[TaskId, dict[str, Announced]] = msgspec.field(
        default_factory=dict[TaskId, dict[str, Announced]]
    )
    revoked: dict[TaskId, Revoked] = msgspec.field(default_factory=dict[TaskId, Revoked])
    running: dict[TaskId, int] = msgspec.field(default_factory=dict[TaskId, int])
    failures: dict[tuple[TaskId, str], Failure] = msgspec.field(
        default_factory=dict[tuple[TaskId, str], Failure]
    )
    failed_copies: dict[tuple[TaskId, str], int] = msgspec.field(
        default_factory=dict[tuple[TaskId, str], int]
    )
    failed_tasks: dict[TaskId, int] = msgspec.field(default_factory=dict[TaskId, int])
    drains: dict[str, DrainMember] = msgspec.field(default_factory=dict[str, DrainMember])
    fence_requested_ms: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    fenced: set[str] = msgspec.field(default_factory=set[str])
    #: Start of each incarnation's phase and each task's revocation; missing: before the claim.
    phase_ms: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    revoked_ms: dict[TaskId, int] = msgspec.field(default_factory=dict[TaskId, int])
    joins_recorded: int = 0  # Number of new and changed joins.
    #: (members, joins_recorded) at the last check of program and member records. If equal
    #: now, the leader skips the check.
    program_checked: tuple[Mapping[str, MemberRecord], int] | None = None
    corrected: tuple[Mapping[str, MemberRecord], int] | None = None
    last_join_ms: int | None = None
    first_join_ms: int | None = None
    ends: dict[str, End] = msgspec.field(default_factory=dict[str, End])
    ends_requested_ms: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    #: Tasks revoked for planned moves and not granted yet; time of the last such grant.
    planned: set[TaskId] = msgspec.field(default_factory=set[TaskId])
    moved_ms: int | None = None
    #: (task epoch, True if the member had some state) of grants without a caught-up copy.
    cold: dict[TaskId, tuple[int, bool]] = msgspec.field(
        default_factory=dict[TaskId, tuple[int, bool]]
    )
    news: list[str] = msgspec.field(default_factory=list[str])
    #: Alarm per task whose logged phase contradicts a due move: the leader leaves it unchanged.
    set_aside: dict[TaskId, str] = msgspec.field(default_factory=dict[TaskId, str])
    suspected: bool = False

    def of(self, incarnation: str) -> MemberObservations:
        heard = self.members.get(incarnation)
        if heard is None:
            heard = self.members[incarnation] = MemberObservations(heard_ms=self.claimed_ms)
        return heard

    def is_unheard(self, incarnation: str) -> bool:
        heard = self.members.get(incarnation)
        return heard is None or (heard.sequence < 0 and heard.join is None)

    def pending(self, group: Group) -> list[JoinGroup]:
        return [
            heard.join
            for incarnation, heard in self.members.items()
            if heard.join is not None and incarnation not in group.members
        ]

    def process(self, message: AnyMessage, group: Group, now_ms: int) -> bool:
        """Process a message; return True if it can change a decision."""
        match message:
            case JoinGroup():
                changed = self._join(message, group, now_ms)
            case Suspect():
                changed = message.leader_epoch >= group.leader_epoch
                self.suspected = self.suspected or changed
            case DrainMember():
                changed = self._drain(message, group)
            case MemberDied():
                changed = self._died(message, group)
            case LeaderBeat() | JoinRefused() | EraseKey() | KeyErased():
                changed = False  # from a leader, or between `tidewheel state delete` and an owner
            case _:
                live = _is_live(group, message.incarnation)
                changed = live and self._process_of_member(message, group, now_ms)
        return changed

    def _process_of_member(self, message: _OfMember, group: Group, now_ms: int) -> bool:
        match message:
            case Beat():
                changed = self._beat(message, now_ms)
            case Ready() | NotReady():
                changed = self._copy(message, group, now_ms)
            case Revoked() | GrantedOk():
                changed = self._task(message, group)
            case TaskFailed():
                changed = self._failed(message, group, now_ms)
            case TransactionalIdWanted():
                changed = self._id_wanted(message, group)
            case Leave():
                heard = self.of(message.incarnation)
                changed = heard.leave != message
                heard.leave = message
            case ShutDown():
                heard = self.of(message.incarnation)
                changed = not heard.shutdown
                heard.shutdown = heard.shutdown or message.reason or "no reason given"
            case _:
                assert_never(message)
        return changed

    def forget(self, incarnation: str) -> None:
        self.members.pop(incarnation, None)
        self.drains.pop(incarnation, None)
        self.fence_requested_ms.pop(incarnation, None)
        self.fenced.discard(incarnation)
        for key in [pair for pair in self.failed_copies if pair[1] == incarnation]:
            del self.failed_copies[key]
        for copies in self.announced.values():
            copies.pop(incarnation, None)
        self.ended[incarnation] = None
        while len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def _join(self, join: JoinGroup, group: Group, now_ms: int) -> bool:
        record = group.members.get(join.incarnation)
        if join.incarnation in self.ended:
            self.returned.append(join.incarnation)
            return True
        if record is not None and record.phase not in LIVE:
            return False
        heard = self.of(join.incarnation)
        heard.heard_ms = now_ms
        changed = heard.join != join
        if changed:
            heard.join, heard.joined_ms = self._share_tasks(join), now_ms
        self.joins_recorded += changed
        return changed

    def _share_tasks(self, join: JoinGroup) -> JoinGroup:
        """Share equal task tuples between joins: `updated_program` reads each tuple only once."""
        joins = (member.join for member in self.members.values() if member.join is not None)
        for present in joins:
            if present.tasks == join.tasks:
                return replace(join, tasks=present.tasks)
        return join

    def _drain(self, message: DrainMember, group: Group) -> bool:
        incarnation = group.incarnation_of(message.target)
        if incarnation is None or group.members[incarnation].phase == MemberPhase.LEAVING:
            return False
        self.drains[incarnation] = message
        return True

    def _died(self, message: MemberDied, group: Group) -> bool:
        if _is_live(group, message.incarnation):
            heard = self.of(message.incarnation)
            heard.died = heard.died or message.reason or "its process ended"
            return True
        if message.incarnation in self.members and message.incarnation not in group.members:
            self.forget(message.incarnation)
        return False

    def _beat(self, beat: Beat, now_ms: int) -> bool:
        heard = self.of(beat.incarnation)
        if beat.seq <= heard.sequence:
            return False  # a late or repeated beat proves nothing about now
        heard.sequence = beat.seq
        heard.heard_ms = now_ms
        changed, heard.awaited = heard.awaited, False
        if beat.in_call:
            heard.in_call_ms = now_ms
        if beat.full:
            heard.rows = {}
        for row in beat.tasks:
            task = _task_id(row.task)
            if task is not None:
                heard.rows[task] = row
        return changed

    def _copy(self, message: Ready | NotReady, group: Group, now_ms: int) -> bool:
        task = _task_id(message.task)
        if task is None or not _is_copy(group, task, message.incarnation, message.learn_epoch):
            return False
        copies = self.announced.setdefault(task, {})
        before = copies.get(message.incarnation)
        if isinstance(message, NotReady):
            return copies.pop(message.incarnation, None) is not None
        announced = Announced(
            incarnation=message.incarnation,
            learn_epoch=message.learn_epoch,
            store_uuid=message.store_uuid,
            positions=message.positions,
            since_ms=now_ms,
            heard_ms=now_ms,
            history=((now_ms, message.positions),),
        )
        continues = before is not None and _continues(before, announced)
        if before is not None and continues:
            announced = replace(
                announced,
                since_ms=before.since_ms,
                history=(*before.history, *announced.history)[-ANNOUNCEMENTS_MAX:],
                checked_ms=before.checked_ms,
                lag=before.lag,
            )
        copies[message.incarnation] = announced
        return not continues or announced.lag > self.ready_lag_max

    def _task(self, message: Revoked | GrantedOk, group: Group) -> bool:
        task = _task_id(message.task)
        state = None if task is None else group.states.get(task)
        if task is None or state is None:
            return False
        if state.owner != message.incarnation or state.task_epoch != message.task_epoch:
            return False
        if isinstance(message, Revoked):
            if state.phase != TaskPhase.REVOKING:
                return False
            self.revoked[task] = message
            return True
        changed = self.running.get(task) != message.task_epoch
        self.running[task] = message.task_epoch
        return changed

    def _failed(self, message: TaskFailed, group: Group, now_ms: int) -> bool:
        task = _task_id(message.task)
        if task is None:
            return False
        member = group.members[message.incarnation].member
        if message.role == TaskRole.ACTIVE:
            state = group.states.get(task)
            if state is None or state.owner != message.incarnation:
                return False
            if state.task_epoch != message.epoch or self.failed_tasks.get(task) == message.epoch:
                return False
            self.failed_tasks[task] = message.epoch
        else:
            key = (task, message.incarnation)
            if not _is_copy(group, task, message.incarnation, message.epoch):
                return False
            if self.failed_copies.get(key) == message.epoch:
                return False
            self.failed_copies[key] = message.epoch
            self.announced.get(task, {}).pop(message.incarnation, None)
        before = self.failures.get((task, member))
        is_close = before is not None and now_ms - before.until_ms < FAILURE_BACK_OFF_MS_MAX
        count = before.count + 1 if before is not None and is_close else 1
        pause_ms = min(FAILURE_BACK_OFF_MS << min(count - 1, 10), FAILURE_BACK_OFF_MS_MAX)
        self.failures[task, member] = Failure(count=count, until_ms=now_ms + pause_ms)
        return True

    def _id_wanted(self, message: TransactionalIdWanted, group: Group) -> bool:
        logged_ids = group.members[message.incarnation].transactional_ids
        wanted = self.of(message.incarnation).ids_wanted
        if message.transactional_id in logged_ids or len(logged_ids) >= TRANSACTIONAL_IDS_MAX:
            return False
        wanted[message.number] = message.transactional_id
        return True

    def record_ends(
        self, ends: Mapping[str, int], requested_ms: int, tasks: Mapping[TaskId, TaskShape]
    ) -> None:
        for key, end in ends.items():
            if (
                requested_ms
                >= self.ends.get(key, End(offset=0, requested_ms=requested_ms)).requested_ms
            ):
                self.ends[key] = End(offset=end, requested_ms=requested_ms)
            if self.ends_requested_ms.get(key, requested_ms + 1) <= requested_ms:
                del self.ends_requested_ms[key]
        for task, copies in self.announced.items():
            keys = changelog_keys(task, tasks.get(task))
            if not keys or not ends.keys() >= set(keys):
                continue
            for incarnation, announced in copies.items():
                older = [
                    positions for at_ms, positions in announced.history if at_ms <= requested_ms
                ]
                if older:
                    lag = lag_of(older[-1], ends, keys)
                    copies[incarnation] = replace(announced, checked_ms=requested_ms, lag=lag)


def changelog_keys(task: TaskId, shape: TaskShape | None) -> tuple[str, ...]:
    """Return the position keys of a task's changelog partitions.

    >>> changelog_keys(TaskId(0, 2), TaskShape(stateful=True, changelogs=("app-counts-changelog",)))
    ('app-counts-changelog-2',)
    """
    return () if shape is None else _partitions_of(shape.changelogs, task.partition)


@lru_cache(maxsize=1 << 14)
def _partitions_of(topics: tuple[str, ...], partition: int) -> tuple[str, ...]:
    return tuple(f"{topic}-{partition}" for topic in topics)


def lag_of(positions: Mapping[str, int], ends: Mapping[str, int], keys: tuple[str, ...]) -> int:
    """Return the changelog records between positions and ends.

    >>> lag_of({"c-0": 7}, {"c-0": 10, "d-0": 2}, ("c-0", "d-0"))
    5
    """
    return sum(max(ends[key] - positions.get(key, 0), 0) for key in keys)


def _is_live(group: Group, incarnation: str) -> bool:
    record = group.members.get(incarnation)
    return record is not None and record.phase in LIVE


def _is_copy(group: Group, task: TaskId, incarnation: str, learn_epoch: int) -> bool:
    copy = Copy(incarnation=incarnation, learn_epoch=learn_epoch)
    return copy in group.step.copies(task)


def _continues(before: Announced, now: Announced) -> bool:
    return (
        before.learn_epoch == now.learn_epoch
        and before.store_uuid == now.store_uuid
        and all(now.positions.get(key, 0) >= at for key, at in before.positions.items())
    )


def _task_id(text: str) -> TaskId | None:
    try:
        return TaskId.parse(text)
    except ValueError:
        return None
