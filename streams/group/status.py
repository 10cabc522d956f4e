"""Group status from its log and the last heartbeats; no I/O.

Figures older than their member's session timeout are *stale*. Ages compare record timestamps with
the reader's clock: a clock difference only shifts the ages shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidewheel.rebalance.inspect.describe import (
    LogFold,
    Since,
    displayed_tasks,
    duration_text,
    member_name,
    program_name,
    task_phase_text,
)
from tidewheel.rebalance.model import TaskId, TaskRole
from tidewheel.rebalance.protocol.field_types import OFFSET_MAX
from tidewheel.rebalance.protocol.group import LIVE, Group
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import Copy, MemberRecord
from tidewheel.rebalance.protocol.task_status import BlockingCoroutine, TaskStatus
from tidewheel.streams.group.alarms import Alarm, BrokerFacts, GroupView, alarms
from tidewheel.streams.group.inbox import SESSION_MS, InboxFold
from tidewheel.streams.group.range_map import InputRanges, range_map, topic_readers

#: Longer times until a copy has caught up are shown as unknown: ten years.
_ETA_MAX_S: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """Incarnation of a member. Ages are in ms.

    Attributes:
        member: Lasting name; `name` is the one for people.
        slot: Number of its state directory on the host; -1: unknown.
        pid: 0: unknown.
        call: User function that has been running for at least 1 s, or "".
        call_ms: Running time of `call`.
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
    name: str = ""
    slot: int = -1
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRecord:
    """Record that a key range has processed for long, which delays that range only.

    Attributes:
        age_ms: Processing time at the report.
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
    """Coroutine that blocks the event loop, which delays all key ranges of a worker.

    Attributes:
        age_ms: Shortest possible blocking time at the report.
        first: Lowest key hash of its range.
        topic, partition, offset, key_hash: Current record.
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
class MemberTask:
    """Task in one role at one member.

    Attributes:
        phase: As in the log, or WARMING while a learner restores the task's state for a move; of a
            copy, "READY" or "FOLLOWING".
        epoch: Task epoch; of a copy, the number that the leader gave it (learn epoch).
        state: State in the worker's report, such as RUNNING.
        since_ms: Start of the phase (ms since the epoch); if not `since_known`, it began earlier.
        target: Future owner, if different.
        lag: Records to process (active) or to restore (copies).
        rate: Records per second.
        done, end: Sums of a copy's changelog offsets: restored ones, and the ends.
        eta_s: Seconds until a copy has caught up at this rate; None if unknown or above ten years.
        member_name, target_name: Names of `member` and `target` for people.
        dropped: Late records and null keys dropped since the owner started.
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
    ranges: tuple[SlowRecord, ...] = ()
    blocked: BlockedLoop | None = None
    dropped: int = 0
    skipped: int = 0
    member_name: str = ""
    target_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Status of a group.

    Attributes:
        read_ms: Time of reading (ms since the epoch).
        waiting: Tasks whose move waits for a free learner slot.
        key_ranges: None if not requested.
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
    tasks: tuple[MemberTask, ...] = ()
    learners: tuple[MemberTask, ...] = ()
    standbys: tuple[MemberTask, ...] = ()
    waiting: tuple[str, ...] = ()
    key_ranges: tuple[InputRanges, ...] | None = None
    alarms: tuple[Alarm, ...] = ()
    leader_name: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def group_status(
    application_id: str,
    log: LogFold,
    inbox: InboxFold,
    *,
    now_ms: int,
    around: BrokerFacts | None = None,
) -> GroupStatus:
    view = _StatusView(log, inbox, now_ms)
    around = around or BrokerFacts()
    group, beat = log.group, inbox.leader_beat(log.group)
    return GroupStatus(
        application_id=application_id,
        read_ms=now_ms,
        phase=log.phase.value,
        leader=group.leader,
        leader_name=program_name(group, group.leader),
        leader_epoch=group.leader_epoch,
        leader_heard_ms_ago=None if beat is None else max(now_ms - beat[0], 0),
        group_epoch=group.target.group_epoch,
        step_epoch=group.step.step_epoch,
        protocol=group.about.group_version,
        topology_epoch=group.about.topology_epoch,
        topology_hash=group.about.topology_hash,
        assignor=group.about.assignor,
        members=view.members(),
        tasks=tuple(view.active(task) for task in displayed_tasks(group)),
        learners=tuple(
            view.copy(task, copy, TaskRole.LEARNER)
            for task, copy in sorted(group.step.learners.items())
        ),
        standbys=tuple(
            view.copy(task, copy, TaskRole.STANDBY)
            for task, copies in sorted(group.step.standbys.items())
            for copy in copies
        ),
        waiting=tuple(map(str, sorted(group.step.parked))) if group.live() else (),
        key_ranges=(
            None
            if around.progress is None
            else range_map(around.progress, topic_readers(group, inbox), view.busy(), group.tasks)
        ),
        alarms=alarms(
            GroupView(
                application_id=application_id,
                log=log,
                inbox=inbox,
                now_ms=now_ms,
                around=around,
            )
        ),
    )


class _StatusView:
    def __init__(self, log: LogFold, inbox: InboxFold, now_ms: int) -> None:
        self.log = log
        self.inbox = inbox
        self.now_ms = now_ms
        step = log.group.step
        owners = ((task, state.owner) for task, state in log.group.states.items() if state.owner)
        self._owned = _tasks_by_incarnation(owners)
        self._learners = _tasks_by_incarnation(
            (task, copy.incarnation) for task, copy in step.learners.items()
        )
        self._standbys = _tasks_by_incarnation(
            (task, copy.incarnation) for task, copies in step.standbys.items() for copy in copies
        )
        self._names = {record.member: display_name(record) for record in log.group.members.values()}

    @property
    def group(self) -> Group:
        return self.log.group

    def silent_ms(self, incarnation: str) -> int | None:
        heard_ms = self.inbox.heard_ms.get(incarnation)
        return None if heard_ms is None else max(self.now_ms - heard_ms, 0)

    def is_stale(self, incarnation: str, at_ms: int | None) -> bool:
        record = self.group.members.get(incarnation)
        timeout_ms = SESSION_MS if record is None else record.session_timeout_ms
        return at_ms is None or self.now_ms - at_ms > timeout_ms

    def members(self) -> tuple[MemberStatus, ...]:
        records = sorted(
            self.group.members.values(), key=lambda record: (record.member, record.incarnation)
        )
        return tuple(map(self._member, records))

    def active(self, task: TaskId) -> MemberTask:
        state = self.group.states.get(task)
        since = self.log.task_since.get(task)
        # Nothing moves while no member lives; the last target has no meaning for readers then.
        target = self.group.target.owners.get(task) if self.group.live() else None
        member = "" if state is None else state.member or ""
        incarnation = "" if state is None else state.owner or ""
        at_ms, status = self._status(task, TaskRole.ACTIVE, incarnation)
        return MemberTask(
            task=str(task),
            role=TaskRole.ACTIVE.value,
            member=member,
            member_name=self._names.get(member, member),
            target_name=self._names.get(target, target) if target and target != member else "",
            incarnation=incarnation,
            phase=task_phase_text(self.group, task),
            epoch=0 if state is None else state.task_epoch,
            target=target if target != member else None,
            stale=bool(incarnation)
            and self.is_stale(incarnation, self._fresh_ms(incarnation, at_ms)),
            range_count=1 if status is None else status.range_count,
            ranges=() if status is None else tuple(map(_slow_record, status.ranges)),
            blocked=None if status is None else _blocked(status.blocking),
            **_since(since),
            **_figures(status),
        )

    def busy(self) -> dict[str, dict[int, int]]:
        statuses = {
            str(task): self._status(task, TaskRole.ACTIVE, state.owner or "")[1]
            for task, state in self.group.states.items()
        }
        return {
            task: dict(status.busiest) for task, status in statuses.items() if status is not None
        }

    def copy(self, task: TaskId, copy: Copy, role: TaskRole) -> MemberTask:
        at_ms, status = self._status(task, role, copy.incarnation)
        since = self.log.copy_since.get((task, copy.incarnation, copy.learn_epoch))
        if status is not None and status.epoch != copy.learn_epoch:
            status = None  # of an earlier copy
        figures = _figures(status)
        lag, rate = figures["lag"], figures["rate"]
        name = member_name(self.group, copy.incarnation)
        is_ready = (str(task), copy.incarnation, copy.learn_epoch) in self.inbox.ready
        return MemberTask(
            task=str(task),
            role=role.value,
            member=name,
            member_name=self._names.get(name, name),
            incarnation=copy.incarnation,
            phase="READY" if is_ready else "FOLLOWING",
            epoch=copy.learn_epoch,
            done=0 if status is None else _total(status.changelog),
            end=0 if status is None else _total(status.ends),
            eta_s=_eta_s(lag, rate),
            stale=self.is_stale(copy.incarnation, self._fresh_ms(copy.incarnation, at_ms)),
            **_since(since),
            **figures,
        )

    def _member(self, record: MemberRecord) -> MemberStatus:
        incarnation = record.incarnation
        since = self.log.member_since.get(incarnation)
        silent_ms = self.silent_ms(incarnation)
        call = self.inbox.calls.get(incarnation)
        return MemberStatus(
            member=record.member,
            name=display_name(record),
            slot=record.slot,
            pid=self._pid(record),
            incarnation=incarnation,
            phase=record.phase,
            reason=record.reason,
            static=record.static,
            host=record.host,
            rack=record.rack,
            process_id=record.process_id,
            threads=record.threads,
            leads=bool(record.process_id) and record.process_id == self.group.leader,
            active=self._owned.get(incarnation, ()),
            standby=self._standbys.get(incarnation, ()),
            learner=self._learners.get(incarnation, ()),
            since_ms=None if since is None else since.at_ms,
            heard_ms_ago=silent_ms,
            call="" if call is None else call.text,
            call_ms=0 if call is None else call.ms,
            stale=record.phase in LIVE
            and self.is_stale(incarnation, self.inbox.heard_ms.get(incarnation)),
        )

    def _pid(self, record: MemberRecord) -> int:
        """Return the process id, which older leaders leave out of the log but not its join."""
        joined = self.inbox.joins.get(record.incarnation)
        return record.pid or (0 if joined is None else joined[1].pid)

    def _status(
        self, task: TaskId, role: TaskRole, incarnation: str
    ) -> tuple[int | None, TaskStatus | None]:
        status = self.inbox.tasks.get(incarnation, {}).get((str(task), role.value))
        return (None, None) if status is None else status

    def _fresh_ms(self, incarnation: str, at_ms: int | None) -> int | None:
        """Return the last heartbeat's time: it confirms the unchanged tasks that it leaves out."""
        return None if at_ms is None else self.inbox.heard_ms.get(incarnation, at_ms)


def _tasks_by_incarnation(places: Iterable[tuple[TaskId, str]]) -> dict[str, tuple[str, ...]]:
    tasks: dict[str, dict[TaskId, None]] = {}
    for task, incarnation in sorted(places):
        tasks.setdefault(incarnation, {})[task] = None
    return {incarnation: tuple(map(str, each)) for incarnation, each in tasks.items()}


def _since(since: Since | None) -> dict[str, Any]:
    return {} if since is None else {"since_ms": since.at_ms, "since_known": since.known}


def _slow_record(report: tuple[int, int, int]) -> SlowRecord:
    key_hash, offset, age_ms = report
    return SlowRecord(key_hash=key_hash, offset=offset, age_ms=age_ms)


def _blocked(report: BlockingCoroutine | None) -> BlockedLoop | None:
    if report is None:
        return None
    at_record = bool(report.topic)
    return BlockedLoop(
        function=report.function,
        age_ms=report.ms,
        first=f"{report.first_hash:08x}",
        node=report.node or None,
        topic=report.topic if at_record else None,
        partition=report.partition if at_record else None,
        offset=report.offset if at_record else None,
        key_hash=report.key_hash if at_record else None,
    )


def _total(positions: Mapping[str, int]) -> int:
    """Return the sum of offsets, at most that of a single offset: JSON readers take 64 bits."""
    return min(sum(positions.values()), OFFSET_MAX)


def _eta_s(lag: int | None, rate: float | None) -> float | None:
    if lag is None or not rate or lag > rate * _ETA_MAX_S:
        return None
    return lag / rate


def _figures(status: TaskStatus | None) -> dict[str, Any]:
    if status is None:
        return {"state": "", "lag": None, "rate": None}
    return {
        "state": status.state,
        "lag": status.lag if status.lag >= 0 else None,
        "rate": status.rate,
        "dropped": status.dropped,
        "skipped": status.skipped,
    }
