"""A group as text, with its phase and the age of its parts, from the log alone."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from tidewheel.rebalance.leader.compatibility import is_assignable
from tidewheel.rebalance.leader.log_steps import is_command_leader
from tidewheel.rebalance.leader.targets import has_basis, is_outdated
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase
from tidewheel.rebalance.protocol.decoding import RejectedRecord, Rejection
from tidewheel.rebalance.protocol.group import Group, Target, apply, changed_keys, refusal_of
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    GroupRecord,
    MemberRecord,
    SnapshotEnd,
    TaskRecord,
)

WARMING: Final = "WARMING"

_SECOND_MS: Final = 1_000
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", _SECOND_MS))

REJECTED_MAX: Final = 8

_SHORT: Final = 8
_REMEMBERED: Final = 16
_MEMBERS_REMEMBERED: Final = 1_000


class GroupPhase(StrEnum):
    """Phase of a group, named as in KIP-345 and KIP-848.

    NOT_READY: the leader decides nothing (`GroupRecord.held`). ASSIGNING: the target is outdated.
    RECONCILING: members move to the target. RUNNING: they have reached it.
    """

    EMPTY = "EMPTY"
    NOT_READY = "NOT_READY"
    ASSIGNING = "IN_REBALANCE (ASSIGNING)"
    RECONCILING = "SYNC (RECONCILING)"
    RUNNING = "RUNNING"


class LogEntry(NamedTuple):
    offset: int
    timestamp_ms: int
    record: AnyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """Start of a state (Unix time in ms); if not `known`, it began earlier."""

    at_ms: int
    known: bool = True


class LogFold:
    """Group folded from log entries in offset order, with the start of each state."""

    def __init__(self, topic: str = "group-state") -> None:
        self._topic = topic
        self.group = Group()
        self.end = 0
        self.rejected: deque[RejectedRecord] = deque(maxlen=REJECTED_MAX)
        self.rejected_count = 0
        self.leader_since: Since | None = None
        self.task_since: dict[TaskId, Since] = {}
        self.member_since: dict[str, Since] = {}
        self.copy_since: dict[tuple[TaskId, str, int], Since] = {}
        #: Unix times (ms) of each member's last starts and of the last leader claims: alarms count
        #: them to detect restart loops. Claims by a command, and those after it, are left out.
        self.begun: dict[str, deque[int]] = {}
        self.claims: deque[int] = deque(maxlen=_REMEMBERED)
        #: True if the target is outdated; None: unknown since the last change.
        self._assigning: bool | None = False
        #: Tasks that are not settled (see `_is_settled`); None: unknown since the last change.
        self._unsettled: set[TaskId] | None = None
        self._assignable = 0
        #: Target, GROUP record and number of assignable members that last fitted each other.
        self._fitting: tuple[Target | None, GroupRecord | None, int] = (None, None, 0)

    @property
    def phase(self) -> GroupPhase:
        if self._assigning is None:
            self._assigning = self._is_outdated()
        if self._unsettled is None:
            self._unsettled = _unsettled(self.group)
        return phase_of(self.group, assigning=self._assigning, unsettled=self._unsettled)

    def _is_outdated(self) -> bool:
        group, (target, about, count) = self.group, self._fitting
        # Another number of members has another digest, which costs too much per record.
        if group.target is target and group.about is about and self._assignable not in (0, count):
            return True
        outdated = is_outdated(group)
        if not outdated and group.tasks and self._assignable and has_basis(group.target):
            self._fitting = (group.target, group.about, self._assignable)
        return outdated

    def add(self, entry: LogEntry | RejectedRecord) -> bool:
        """Fold an entry; return False if it changes nothing."""
        self.end = entry.offset + 1
        if isinstance(entry, RejectedRecord):
            return self._reject(entry)
        refusal = refusal_of(self.group, entry.record)
        if refusal is not None:
            return self._reject(self._rejected(entry, refusal))
        before, self.group = self.group, apply(self.group, entry.record)
        after = self.group
        if after is before:
            return False
        since = Since(at_ms=entry.timestamp_ms, known=not isinstance(entry.record, SnapshotEnd))
        if after.leader_epoch != before.leader_epoch:
            self.leader_since = since
            of_command = is_command_leader(before.leader) or is_command_leader(after.leader)
            if since.known and not of_command:
                self.claims.append(since.at_ms)
        self._track_changes(before, after, since, entry.record)
        if self._unsettled is not None:
            self._settle(_resettled(before, after, entry.record))
        if after.about is not before.about or after.target is not before.target:
            self._assigning = None
        return True

    def _rejected(self, entry: LogEntry, rejection: Rejection) -> RejectedRecord:
        return RejectedRecord(
            topic=self._topic,
            partition=0,
            offset=entry.offset,
            timestamp_ms=entry.timestamp_ms,
            rejection=rejection,
        )

    def _reject(self, rejected: RejectedRecord) -> bool:
        self.rejected.append(rejected)
        self.rejected_count += 1
        return False

    def _track_changes(self, before: Group, after: Group, since: Since, record: AnyRecord) -> None:
        match record:
            case TaskRecord() if after.pending is None:
                self._track_task(TaskId.parse(record.task), before, after, since)
            case MemberRecord() if after.pending is None:
                self._track_member(record.incarnation, before, after, since)
            case SnapshotEnd() if (
                after.states is not before.states or after.members is not before.members
            ):
                for task in {**before.states, **after.states}:
                    self._track_task(task, before, after, since)
                for incarnation in {**before.members, **after.members}:
                    self._track_member(incarnation, before, after, since)
            case _:
                pass
        for task in after.step.changed_tasks(before.step):
            old, new = before.step.copies(task), after.step.copies(task)
            for copy in old:
                if copy not in new:
                    self.copy_since.pop((task, copy.incarnation, copy.learn_epoch), None)
            for copy in new:
                self.copy_since.setdefault((task, copy.incarnation, copy.learn_epoch), since)

    def _settle(self, tasks: set[TaskId] | None) -> None:
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is None or tasks is None:
            return
        unsettled -= tasks
        unsettled.update(task for task in tasks if not _is_settled(self.group, task))
        self._unsettled = unsettled

    def _track_task(self, task: TaskId, before: Group, after: Group, since: Since) -> None:
        old, state = before.states.get(task), after.states.get(task)
        if state is None:
            return
        now = (state.task_epoch, state.phase, state.owner)
        if old is None or (old.task_epoch, old.phase, old.owner) != now:
            self.task_since[task] = since

    def _track_member(self, incarnation: str, before: Group, after: Group, since: Since) -> None:
        old, record = before.members.get(incarnation), after.members.get(incarnation)
        was, is_now = (row is not None and is_assignable(row) for row in (old, record))
        self._assignable += is_now - was
        if was or is_now:
            self._assigning = None
        if record is None:
            self.member_since.pop(incarnation, None)
            return
        if old is None or old.phase != record.phase:
            self.member_since[incarnation] = since
        if old is None and since.known:
            self._track_start(record.member, since.at_ms)

    def _track_start(self, member: str, at_ms: int) -> None:
        starts = self.begun.pop(member, None) or deque(maxlen=_REMEMBERED)
        starts.append(at_ms)
        self.begun[member] = starts  # At the end: the first one started longest ago.
        if len(self.begun) > _MEMBERS_REMEMBERED:
            del self.begun[next(iter(self.begun))]


def fold_log(entries: Iterable[LogEntry | RejectedRecord]) -> LogFold:
    fold = LogFold()
    for entry in entries:
        fold.add(entry)
    return fold


def phase_of(
    group: Group, *, assigning: bool | None = None, unsettled: Collection[TaskId] | None = None
) -> GroupPhase:
    """Return a group's phase.

    `assigning` is the result of `is_outdated`, and `unsettled` that of `_unsettled`, if known.

    >>> phase_of(Group()).value
    'EMPTY'
    """
    if group.about.held:
        return GroupPhase.NOT_READY
    if not group.members:
        return GroupPhase.EMPTY
    if is_outdated(group) if assigning is None else assigning:
        return GroupPhase.ASSIGNING
    unsettled = _unsettled(group) if unsettled is None else unsettled
    return GroupPhase.RUNNING if _is_at_target(group, unsettled) else GroupPhase.RECONCILING


def task_phase_text(group: Group, task: TaskId) -> str:
    phase = group.phase_of(task)
    return WARMING if phase is TaskPhase.RUNNING and task in group.step.learners else phase.value


def member_name(group: Group, incarnation: str) -> str:
    record = group.members.get(incarnation)
    return incarnation[:_SHORT] if record is None else record.member


def program_name(group: Group, process_id: str) -> str:
    """Return the first member of a program, which stands for it; else the beginning of its id."""
    names = sorted(
        display_name(record)
        for record in group.members.values()
        if process_id and record.process_id == process_id
    )
    return names[0] if names else process_id[:_SHORT]


def displayed_tasks(group: Group) -> list[TaskId]:
    """Return current tasks, and owned ones whose topics are gone."""
    return sorted({*group.tasks, *_owned(group)})


def _owned(group: Group) -> set[TaskId]:
    return {task for task, state in group.states.items() if state.owner is not None}


def describe_group(group: Group, phase: GroupPhase | None = None) -> str:
    """Return deterministic text for transcripts, logs and bug reports.

    >>> print(describe_group(Group()))
    group EMPTY: without a leader, target 0, step 0
    """
    phase = phase_of(group) if phase is None else phase
    leader = (
        f"led by {group.leader} (epoch {group.leader_epoch})"
        if group.leader
        else "without a leader"
    )
    lines = [
        f"group {phase.value}: {leader}, target {group.target.group_epoch}, step {group.step.step_epoch}"
    ]
    if group.about.topology_hash:
        about = group.about
        lines.append(
            f"  runs topology {about.topology_epoch} ({about.topology_hash}), protocol {about.group_version}, "
            f"assignor {about.assignor}"
        )
    if group.about.held:
        lines.append(f"  held: {group.about.held}")
    if group.about.rest is not None:
        lines.append(f"  comes to rest, ordered in epoch {group.about.rest.epoch}")
    lines += _member_lines(group)
    lines += _task_lines(group)
    return "\n".join(lines)


def duration_text(milliseconds: int) -> str:
    """Return a duration in its two largest units.

    >>> [duration_text(each) for each in (17, 4_210, 75_000, 7_500_000, 200_000_000)]
    ['17 ms', '4.2 s', '1 min 15 s', '2 h 5 min', '2 d 7 h']
    """
    ms = max(milliseconds, 0)
    if ms < _SECOND_MS:
        return f"{ms} ms"
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if ms >= size:
            whole, remainder = divmod(ms, size)
            return f"{whole} {unit} {remainder // part} {smaller}"
    return f"{ms // 100 / 10} s"


def _is_at_target(group: Group, unsettled: Collection[TaskId]) -> bool:
    if unsettled or group.step.learners:
        return False
    return all(
        record.phase in (MemberPhase.ACTIVE, MemberPhase.PARKED)
        for record in group.members.values()
    )


def _unsettled(group: Group) -> set[TaskId]:
    return {task for task in {*group.tasks, *group.states} if not _is_settled(group, task)}


def _resettled(before: Group, after: Group, record: AnyRecord) -> set[TaskId] | None:
    """Return the tasks that a record may settle or unsettle; None: any."""
    if isinstance(record, SnapshotEnd) or after.about is not before.about:
        return None
    # Standbys count by the names of their members.
    if after.members is not before.members and after.target.standbys:
        return None
    tasks = set[TaskId]()
    if isinstance(record, TaskRecord):
        tasks.add(TaskId.parse(record.task))
    if after.target is not before.target:
        tasks |= changed_keys(after.target.owners, before.target.owners)
        tasks |= changed_keys(after.target.standbys, before.target.standbys)
    return tasks | changed_keys(after.step.standbys, before.step.standbys)


def _is_settled(group: Group, task: TaskId) -> bool:
    """Return True if a task is where the target has it, or if it is gone and has no owner."""
    if task in group.tasks:
        return _is_at_home(group, task)
    state = group.states.get(task)
    return state is None or state.owner is None


def _is_at_home(group: Group, task: TaskId) -> bool:
    state = group.states.get(task)
    wanted = group.target.owners.get(task)
    if state is None or state.phase != TaskPhase.RUNNING or state.member != wanted:
        return False
    names = {member_name(group, copy.incarnation) for copy in group.step.standbys.get(task, ())}
    return names.issuperset(group.target.standbys.get(task, ()))


def _member_lines(group: Group) -> list[str]:
    lines = ["members"] if group.members else []
    tasks_by_role = _tasks_by_role(group)
    for incarnation, record in sorted(
        group.members.items(), key=lambda item: (item[1].member, item[0])
    ):
        words = [record.member, f"({incarnation})", record.phase]
        words += ["static"] if record.static else []
        words += [f"on {record.host}"] if record.host else []
        words += [f"threads {record.threads}"]
        words += [f"back within {duration_text(record.rejoin_ms)}"] if record.rejoin_ms else []
        if record.reason and record.phase != MemberPhase.ACTIVE:
            words.append(f"- {record.reason}")
        lines.append(f"  {' '.join(words)}")
        lines += [
            f"    {role} {' '.join(map(str, tasks[incarnation]))}"
            for role, tasks in tasks_by_role.items()
            if incarnation in tasks
        ]
    return lines


def _tasks_by_role(group: Group) -> dict[str, dict[str, list[TaskId]]]:
    """Return tasks, sorted, by role and incarnation."""
    step = group.step
    places = {
        "active": [(task, state.owner) for task, state in group.states.items() if state.owner],
        "learner": [(task, copy.incarnation) for task, copy in step.learners.items()],
        "standby": [
            (task, incarnation)
            for task, copies in step.standbys.items()
            for incarnation in {copy.incarnation for copy in copies}
        ],
    }
    tasks: dict[str, dict[str, list[TaskId]]] = {role: {} for role in places}
    for role, pairs in places.items():
        for task, incarnation in sorted(pairs):
            tasks[role].setdefault(incarnation, []).append(task)
    return tasks


def _task_lines(group: Group) -> list[str]:
    tasks = displayed_tasks(group)
    return [*(["tasks"] if tasks else []), *(f"  {_task_line(group, task)}" for task in tasks)]


def _task_line(group: Group, task: TaskId) -> str:
    state = group.states.get(task)
    words = [str(task), task_phase_text(group, task)]
    if state is not None:
        words += [f"at {state.member} epoch {state.task_epoch}"] if state.member else []
        words += [f"last epoch {state.task_epoch}"] if not state.member else []
    wanted = group.target.owners.get(task)
    if wanted is not None and (state is None or wanted != state.member):
        words.append(f"target {wanted}")
    learner = group.step.learners.get(task)
    if learner is not None:
        words.append(
            f"learner at {member_name(group, learner.incarnation)} learn epoch {learner.learn_epoch}"
        )
    words += [
        f"standby at {member_name(group, copy.incarnation)} learn epoch {copy.learn_epoch}"
        for copy in group.step.standbys.get(task, ())
    ]
    words += ["parked"] if task in group.step.parked else []
    return ", ".join([" ".join(words[:3]), *words[3:]])
