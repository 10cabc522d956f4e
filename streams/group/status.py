"""What is known of a group at a moment, from its log and the last beats of its inbox. Pure.

Who owns what, since when and why is the log's; how far each task is, is what members last said. A figure older than its
member's session timeout is *stale*: nobody vouches for it. Times are those of the topics' records, compared with the
moment of reading; clocks that differ by seconds make ages differ by as much, and decide nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidewheel.rebalance.group import LIVE, Group
from tidewheel.rebalance.inspect.describe import (
    LogFold,
    Since,
    duration_text,
    member_name,
    task_phase_text,
    tasks_shown,
)
from tidewheel.rebalance.model import TaskId, TaskRole
from tidewheel.rebalance.protocol.records import Copy, MemberRecord
from tidewheel.rebalance.protocol.task_status import BlockingCoroutine, TaskStatus
from tidewheel.streams.group.alarms import Alarm, Sight, Surroundings, alarms
from tidewheel.streams.group.inbox import SESSION_MS, InboxFold
from tidewheel.streams.group.range_map import InputRanges, range_map, topic_readers


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One incarnation of a member. Ages are in ms; None where nothing is known.

    Attributes:
        call: The call of user code that its worker has been in for a second or more; empty for none.
        call_ms: For how long.
    """

    member: str
    incarnation: str
    phase: str
    reason: str
    static: bool
    host: str
    rack: str | None
    process_id: str
    threads: int
    leads: bool
    active: tuple[str, ...]
    standby: tuple[str, ...]
    learner: tuple[str, ...]
    since_ms: int | None
    heard_ms_ago: int | None
    stale: bool
    call: str = ""
    call_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordInHand:
    """A record that a key range has been at for long, which holds up the other records of that range only.

    Attributes:
        key_hash: Hash of its key, by which the ranges are cut.
        offset: Its offset in the task's input partition.
        age_ms: For how long it had been in hand when its worker said so.
    """

    key_hash: int
    offset: int
    age_ms: int

    def __str__(self) -> str:
        return (
            f"key hash {self.key_hash:08x}, offset {self.offset}, for {duration_text(self.age_ms)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedLoop:
    """A coroutine that blocks the event loop that key ranges of a worker share, which holds up them all.

    Attributes:
        function: Where it is, as "Shop.process (shop.py:12)".
        age_ms: For how long at least it had blocked when its worker said so.
        first: The lowest key hash of the range whose it is.
        node: The processor at work there; None for none.
        topic, partition, offset, key_hash: The range's record at hand; None for none.
    """

    function: str
    age_ms: int
    first: str
    node: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    key_hash: int | None

    def __str__(self) -> str:
        parts = [self.function, f"for {duration_text(self.age_ms)}"]
        if self.node is not None:
            parts.append(f"node {self.node}")
        if self.key_hash is not None:
            parts.append(
                f"{self.topic}-{self.partition} offset {self.offset}, key hash {self.key_hash:08x}"
            )
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """A task in one role at one member.

    Attributes:
        task, role, member, incarnation: What and where.
        phase: Of an active task as in the log, or WARMING; of a copy, "READY" or "FOLLOWING".
        epoch: Task epoch, or a copy's learn epoch.
        state: The worker's own word, such as RUNNING or RESTORING; "" if nothing was heard.
        since_ms: Since when (ms since the epoch); `since_known` is False if it is at least that long ago.
        target: Who shall have it, where that is somebody else.
        lag: Records to process (active) or to restore (copies); None if not known.
        rate: Records per second; None if not known.
        done, end: Of a copy: how far of its changelogs, in offsets.
        eta_s: Of a copy: seconds until it has caught up, at this rate.
        stale: Whether the figures are older than the member's session timeout.
        range_count: Of an active task: its key ranges.
        ranges: Records that its key ranges have had in hand for long, the longest first.
        dropped: Of an active task: records dropped by a rule since its owner began it.
        skipped: Of an active task: records that its exception handlers have skipped.
        blocked: The coroutine of an active task that blocks the event loop of its worker; None if none does.
    """

    task: str
    role: str
    member: str
    incarnation: str
    phase: str
    epoch: int
    state: str = ""
    since_ms: int | None = None
    since_known: bool = True
    target: str | None = None
    lag: int | None = None
    rate: float | None = None
    done: int = 0
    end: int = 0
    eta_s: float | None = None
    stale: bool = False
    range_count: int = 1
    ranges: tuple[RecordInHand, ...] = ()
    blocked: BlockedLoop | None = None
    dropped: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group at a moment.

    Attributes:
        application_id: Whose.
        read_ms: The moment (ms since the epoch).
        phase: See `tidewheel.rebalance.inspect.describe.GroupPhase`.
        leader, leader_epoch, leader_heard_ms_ago: Who decides, and when it last said so.
        group_epoch, step_epoch: Of the target and of the way there.
        protocol, topology_epoch, topology_hash, assignor: What the group runs.
        members, tasks, learners, standbys: See there; the latter two are copies.
        waiting: Tasks whose move waits for a place among the learners.
        key_ranges: Where each key range of each task stands, as last committed; None if not asked for.
        alarms: What should be looked at.
    """

    application_id: str
    read_ms: int
    phase: str
    leader: str
    leader_epoch: int
    leader_heard_ms_ago: int | None
    group_epoch: int
    step_epoch: int
    protocol: int
    topology_epoch: int
    topology_hash: str
    assignor: str
    members: tuple[MemberStatus, ...] = ()
    tasks: tuple[TaskFigures, ...] = ()
    learners: tuple[TaskFigures, ...] = ()
    standbys: tuple[TaskFigures, ...] = ()
    waiting: tuple[str, ...] = ()
    key_ranges: tuple[InputRanges, ...] | None = None
    alarms: tuple[Alarm, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)


def group_status(
    application_id: str,
    log: LogFold,
    inbox: InboxFold,
    *,
    now_ms: int,
    around: Surroundings | None = None,
) -> GroupStatus:
    """Return what is known of a group now (ms since the epoch)."""
    view = _View(log, inbox, now_ms)
    around = around or Surroundings()
    group, beat = log.group, inbox.leader_beat(log.group)
    return GroupStatus(
        application_id=application_id,
        read_ms=now_ms,
        phase=log.phase.value,
        leader=group.leader,
        leader_epoch=group.leader_epoch,
        leader_heard_ms_ago=None if beat is None else max(now_ms - beat[0], 0),
        group_epoch=group.target.group_epoch,
        step_epoch=group.step.step_epoch,
        protocol=group.about.group_version,
        topology_epoch=group.about.topology_epoch,
        topology_hash=group.about.topology_hash,
        assignor=group.about.assignor,
        members=view.members(),
        tasks=tuple(view.active(task) for task in tasks_shown(group)),
        learners=tuple(
            view.copy(task, copy, TaskRole.LEARNER)
            for task, copy in sorted(group.step.learners.items())
        ),
        standbys=tuple(
            view.copy(task, copy, TaskRole.STANDBY)
            for task, copies in sorted(group.step.standbys.items())
            for copy in copies
        ),
        waiting=tuple(map(str, sorted(group.step.parked))),
        key_ranges=(
            None
            if around.progress is None
            else range_map(around.progress, topic_readers(group, inbox), view.busy())
        ),
        alarms=alarms(
            Sight(
                application_id=application_id,
                log=log,
                inbox=inbox,
                now_ms=now_ms,
                around=around,
            )
        ),
    )


class _View:
    """Log and inbox side by side, at a moment."""

    def __init__(self, log: LogFold, inbox: InboxFold, now_ms: int) -> None:
        self.log = log
        self.inbox = inbox
        self.now_ms = now_ms

    @property
    def group(self) -> Group:
        return self.log.group

    def silent_ms(self, incarnation: str) -> int | None:
        """Return for how long an incarnation has said nothing; None if it never did."""
        heard_ms = self.inbox.heard_ms.get(incarnation)
        return None if heard_ms is None else max(self.now_ms - heard_ms, 0)

    def is_stale(self, incarnation: str, at_ms: int | None) -> bool:
        """Return whether something said at a time is too old to be believed."""
        record = self.group.members.get(incarnation)
        timeout_ms = SESSION_MS if record is None else record.session_timeout_ms
        return at_ms is None or self.now_ms - at_ms > timeout_ms

    def members(self) -> tuple[MemberStatus, ...]:
        records = sorted(
            self.group.members.values(), key=lambda each: (each.member, each.incarnation)
        )
        return tuple(map(self._member, records))

    def active(self, task: TaskId) -> TaskFigures:
        state = self.group.states.get(task)
        since = self.log.task_since.get(task)
        wanted = self.group.target.owners.get(task)
        member = "" if state is None else state.member or ""
        incarnation = "" if state is None else state.owner or ""
        at_ms, told = self._said(task, TaskRole.ACTIVE, incarnation)
        return TaskFigures(
            task=str(task),
            role=TaskRole.ACTIVE.value,
            member=member,
            incarnation=incarnation,
            phase=task_phase_text(self.group, task),
            epoch=0 if state is None else state.task_epoch,
            target=wanted if wanted != member else None,
            stale=bool(incarnation)
            and self.is_stale(incarnation, self._fresh_ms(incarnation, at_ms)),
            range_count=1 if told is None else told.range_count,
            ranges=() if told is None else tuple(map(_in_hand, told.ranges)),
            blocked=None if told is None else _blocked(told.blocking),
            **_since(since),
            **_figures(told),
        )

    def busy(self) -> dict[str, dict[int, int]]:
        """Return how busy the ranges of each task are, by their first hash, as its owner last said."""
        told = {
            str(task): self._said(task, TaskRole.ACTIVE, state.owner or "")[1]
            for task, state in self.group.states.items()
        }
        return {task: dict(said.busiest) for task, said in told.items() if said is not None}

    def copy(self, task: TaskId, copy: Copy, role: TaskRole) -> TaskFigures:
        at_ms, told = self._said(task, role, copy.incarnation)
        since = self.log.copy_since.get((task, copy.incarnation, copy.learn_epoch))
        if told is not None and told.epoch != copy.learn_epoch:
            told = None  # said of an earlier copy
        figures = _figures(told)
        lag, rate = figures["lag"], figures["rate"]
        is_ready = (str(task), copy.incarnation, copy.learn_epoch) in self.inbox.ready
        return TaskFigures(
            task=str(task),
            role=role.value,
            member=member_name(self.group, copy.incarnation),
            incarnation=copy.incarnation,
            phase="READY" if is_ready else "FOLLOWING",
            epoch=copy.learn_epoch,
            done=0 if told is None else sum(told.changelog.values()),
            end=0 if told is None else sum(told.ends.values()),
            eta_s=lag / rate if lag is not None and rate else None,
            stale=self.is_stale(copy.incarnation, self._fresh_ms(copy.incarnation, at_ms)),
            **_since(since),
            **figures,
        )

    def _member(self, record: MemberRecord) -> MemberStatus:
        step, incarnation = self.group.step, record.incarnation
        since = self.log.member_since.get(incarnation)
        silent_ms = self.silent_ms(incarnation)
        call = self.inbox.calls.get(incarnation)
        return MemberStatus(
            member=record.member,
            incarnation=incarnation,
            phase=record.phase,
            reason=record.reason,
            static=record.static,
            host=record.host,
            rack=record.rack,
            process_id=record.process_id,
            threads=record.threads,
            leads=bool(record.process_id) and record.process_id == self.group.leader,
            active=tuple(map(str, self.group.owned(incarnation))),
            standby=_held(step.standbys, incarnation),
            learner=_held({task: (copy,) for task, copy in step.learners.items()}, incarnation),
            since_ms=None if since is None else since.at_ms,
            heard_ms_ago=silent_ms,
            call="" if call is None else call.text,
            call_ms=0 if call is None else call.ms,
            stale=record.phase in LIVE
            and self.is_stale(incarnation, self.inbox.heard_ms.get(incarnation)),
        )

    def _said(
        self, task: TaskId, role: TaskRole, incarnation: str
    ) -> tuple[int | None, TaskStatus | None]:
        told = self.inbox.tasks.get(incarnation, {}).get((str(task), role.value))
        return (None, None) if told is None else told

    def _fresh_ms(self, incarnation: str, at_ms: int | None) -> int | None:
        """Return when figures were last vouched for: a beat leaves out tasks that have not changed."""
        return None if at_ms is None else self.inbox.heard_ms.get(incarnation, at_ms)


def _held(copies: Mapping[TaskId, Iterable[Copy]], incarnation: str) -> tuple[str, ...]:
    return tuple(
        str(task)
        for task, each in sorted(copies.items())
        if any(copy.incarnation == incarnation for copy in each)
    )


def _since(since: Since | None) -> dict[str, Any]:
    return {} if since is None else {"since_ms": since.at_ms, "since_known": since.known}


def _in_hand(told: tuple[int, int, int]) -> RecordInHand:
    key_hash, offset, age_ms = told
    return RecordInHand(key_hash=key_hash, offset=offset, age_ms=age_ms)


def _blocked(told: BlockingCoroutine | None) -> BlockedLoop | None:
    if told is None:
        return None
    at_record = bool(told.topic)
    return BlockedLoop(
        function=told.function,
        age_ms=told.ms,
        first=f"{told.first_hash:08x}",
        node=told.node or None,
        topic=told.topic if at_record else None,
        partition=told.partition if at_record else None,
        offset=told.offset if at_record else None,
        key_hash=told.key_hash if at_record else None,
    )


def _figures(told: TaskStatus | None) -> dict[str, Any]:
    if told is None:
        return {"state": "", "lag": None, "rate": None}
    return {
        "state": told.state,
        "lag": told.lag if told.lag >= 0 else None,
        "rate": told.rate,
        "dropped": told.dropped,
        "skipped": told.skipped,
    }
