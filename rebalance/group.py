"""The group as the log tells it: a fold over records, and the only way it changes.

`apply(group, record)` is a pure function; whoever has read the same records has the same group, also after compaction
and after snapshot and tail. Timers, lags and beats are not in the log: they belong to whoever leads.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.model import EPOCH_MAX, MemberPhase, TaskId, TaskPhase, TaskShape
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.messages import LeaderBeat
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    BootstrappedRecord,
    BootstrapRecord,
    Copy,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    SnapshotBegin,
    SnapshotEnd,
    StepRecord,
    TargetRecord,
    TaskRecord,
    TaskRow,
    checksum,
)

_R = TypeVar("_R", GroupRecord, MemberRecord, TaskRecord, BootstrapRecord | BootstrappedRecord)

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

#: Phases in which an incarnation may own tasks or be given some.
LIVE = frozenset({MemberPhase.ACTIVE, MemberPhase.LEAVING, MemberPhase.PARKED})

#: Claims that compaction may have removed between two that are read.
EPOCHS_SKIPPED_MAX = 1 << 20

#: Any claim may have an epoch so high: a recovery claims above every committed task epoch (at most `EPOCH_MAX`).
FIRST_EPOCH_MAX = EPOCH_MAX + EPOCHS_SKIPPED_MAX

#: So many incarnations that ended are remembered.
ENDED_MAX = 256


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where every task belongs in the end; owners and standbys by members' names."""

    group_epoch: int = 0
    owners: Mapping[TaskId, str] = msgspec.field(default_factory=lambda: _NOTHING)
    standbys: Mapping[TaskId, tuple[str, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    basis: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The copies that are kept now, by task; a copy names an incarnation."""

    group_epoch: int = 0
    step_epoch: int = 0
    learners: Mapping[TaskId, Copy] = msgspec.field(default_factory=lambda: _NOTHING)
    standbys: Mapping[TaskId, tuple[Copy, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    parked: frozenset[TaskId] = frozenset()

    def copies(self, task: TaskId) -> tuple[Copy, ...]:
        """Return every copy of a task, a learner first."""
        learner = self.learners.get(task)
        return ((learner,) if learner is not None else ()) + self.standbys.get(task, ())


class Group(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything the log says. Groups are equal if all but `ended` is.

    Attributes:
        leader_epoch, leader: Of the newest claim.
        topic_ids: Ids of the control topics at that claim.
        about: Program, version, tasks (`GroupRecord`).
        tasks: Shape by task.
        members: By incarnation; those that are GONE are left out, unless their tasks wait for their return.
        target, step: See there.
        states: The last record of each task that ever had one.
        bootstraps: How the loading of each store from outside stands that ever was, by store.
        pending: Records of a snapshot that has not ended, or None.
        ended: Incarnations that are over, the last `ENDED_MAX`, oldest first: whatever they say, also late, counts no
            more, whoever leads. Who reads a compacted log may know of fewer.
    """

    leader_epoch: int = 0
    leader: str = ""
    topic_ids: Mapping[str, str] = _NOTHING
    about: GroupRecord = GroupRecord(leader_epoch=0)
    tasks: Mapping[TaskId, TaskShape] = _NOTHING
    members: Mapping[str, MemberRecord] = _NOTHING
    target: Target = Target()
    step: Step = Step()
    states: Mapping[TaskId, TaskRecord] = _NOTHING
    bootstraps: Mapping[str, BootstrapRecord | BootstrappedRecord] = _NOTHING
    pending: tuple[AnyRecord, ...] | None = None
    ended: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # as of whatever is compared by mappings

    def phase_of(self, task: TaskId) -> TaskPhase:
        """Return a task's phase; UNOWNED for one without a record."""
        state = self.states.get(task)
        return TaskPhase.UNOWNED if state is None else TaskPhase(state.phase)

    def live(self) -> dict[str, MemberRecord]:
        """Return the incarnations that may own tasks, by incarnation, in the order of their names."""
        found = {each: record for each, record in self.members.items() if record.phase in LIVE}
        return dict(sorted(found.items(), key=lambda item: (item[1].member, item[0])))

    def incarnation_of(self, member: str) -> str | None:
        """Return the live incarnation of a member's name, or None."""
        for incarnation, record in self.members.items():
            if record.member == member and record.phase in LIVE:
                return incarnation
        return None

    def owned(self, incarnation: str) -> dict[TaskId, TaskRecord]:
        """Return the tasks that an incarnation may commit for, in order."""
        found = [(task, state) for task, state in self.states.items() if state.owner == incarnation]
        return dict(sorted(found, key=itemgetter(0)))


def _compared(group: Group) -> tuple[object, ...]:
    return msgspec.structs.astuple(replace(group, ended=()))


def apply(group: Group, record: AnyRecord) -> Group:
    """Return the group after a record.

    A record of a lower leader epoch than the highest claim changes nothing (H1), nor does anything inside a snapshot that
    never ends.
    """
    if record.leader_epoch < group.leader_epoch:
        return group
    if isinstance(record, LeaderClaim):
        counts = record.leader_epoch > group.leader_epoch and refusal_of(group, record) is None
        return _claimed(group, record) if counts else group
    if record.leader_epoch > group.leader_epoch:
        return group  # its claim was never seen: nothing it says can be judged
    if isinstance(record, SnapshotBegin) or group.pending is not None:
        return _in_snapshot(group, record)
    return _changed(group, record)


def _in_snapshot(group: Group, record: AnyRecord) -> Group:
    """Return the group after a record that came after the begin of a snapshot; its end counts, or drops, them all."""
    match record:
        case SnapshotEnd():
            return _with_snapshot(group, record)
        case SnapshotBegin():
            return replace(group, pending=())
        case _:
            return replace(group, pending=(*(group.pending or ()), record))


def _claimed(group: Group, claim: LeaderClaim) -> Group:
    return replace(
        group,
        leader_epoch=claim.leader_epoch,
        leader=claim.leader,
        topic_ids=dict(claim.topic_ids),
        pending=None,
    )


def refusal_of(group: Group, record: AnyRecord) -> Rejection | None:
    """Return why a well-formed record can't follow this group, or None; readers skip it then.

    An epoch counts claims. One far above all that were read would leave no room for the next leader's.
    """
    if not isinstance(record, LeaderClaim):
        return None
    if record.leader_epoch > highest_claim(group):
        return Rejection("leader_epoch", f"is far above {group.leader_epoch}, the newest claim's")
    return None


def highest_claim(group: Group) -> int:
    """Return the greatest epoch that a claim may have after this group."""
    return max(group.leader_epoch + EPOCHS_SKIPPED_MAX, FIRST_EPOCH_MAX)


def is_of_leader(beat: LeaderBeat, group: Group) -> bool:
    """Return whether a beat may be of the leader that the log names, or of a later one whose claim was not read yet."""
    if beat.leader_epoch == group.leader_epoch:
        return beat.incarnation == group.leader
    return beat.leader_epoch > group.leader_epoch


def replay(records: Iterable[AnyRecord], group: Group | None = None) -> Group:
    """Return the group after some records.

    >>> replay([LeaderClaim(leader_epoch=1, leader="a"), LeaderClaim(leader_epoch=3, leader="b")]).leader
    'b'
    """
    group = Group() if group is None else group
    for record in records:
        group = apply(group, record)
    return group


def snapshot(group: Group, leader_epoch: int) -> list[AnyRecord]:
    """Return the records, under a leader's epoch, whose fold is this group; the new leader writes them after its claim."""
    target, step = group.target, group.step
    about = replace(group.about, ended=group.ended)
    items: list[AnyRecord] = [_under(about, leader_epoch)]
    items += [_under(record, leader_epoch) for _, record in sorted(group.members.items())]
    items.append(
        TargetRecord(
            leader_epoch=leader_epoch,
            group_epoch=target.group_epoch,
            owners={str(task): member for task, member in sorted(target.owners.items())},
            standbys={str(task): members for task, members in sorted(target.standbys.items())},
            basis=target.basis,
            reason="snapshot",
        )
    )
    items.append(step_record(step, leader_epoch, step.step_epoch))
    items += [_under(record, leader_epoch) for _, record in sorted(group.states.items())]
    end = SnapshotEnd(leader_epoch=leader_epoch, count=len(items), crc=checksum(items))
    # Behind the end: who does not know this kind could not count it.
    loads = [_under(record, leader_epoch) for _, record in sorted(group.bootstraps.items())]
    return [SnapshotBegin(leader_epoch=leader_epoch), *items, end, *loads]


def step_record(step: Step, leader_epoch: int, step_epoch: int) -> StepRecord:
    """Return the record that says which copies are kept now."""
    return StepRecord(
        leader_epoch=leader_epoch,
        group_epoch=step.group_epoch,
        step_epoch=step_epoch,
        learners={str(task): copy for task, copy in sorted(step.learners.items())},
        standbys={str(task): copies for task, copies in sorted(step.standbys.items())},
        parked=tuple(map(str, sorted(step.parked))),
    )


def _under(record: _R, leader_epoch: int) -> _R:
    return replace(record, leader_epoch=leader_epoch)


def _with_snapshot(group: Group, end: SnapshotEnd) -> Group:
    items = list(group.pending or ())
    if len(items) != end.count or checksum(items) != end.crc:
        return replace(group, pending=None)
    fresh = Group(
        leader_epoch=group.leader_epoch,
        leader=group.leader,
        topic_ids=group.topic_ids,
        ended=group.ended,
    )
    for item in items:
        fresh = _changed(fresh, item)
    return fresh


def _changed(group: Group, record: AnyRecord) -> Group:  # noqa: PLR0911 - one answer per kind
    match record:
        case GroupRecord():
            tasks = {TaskId.parse(task): _shape(row) for task, row in record.tasks.items()}
            return replace(
                group,
                about=replace(record, ended=()),
                tasks=dict(sorted(tasks.items())),
                ended=_latest(record.ended, group.ended),
            )
        case MemberRecord():
            return _with_member(group, record)
        case TargetRecord():
            return replace(group, target=_target(record))
        case StepRecord():
            return replace(group, step=_step(record))
        case TaskRecord():
            return replace(group, states={**group.states, TaskId.parse(record.task): record})
        case BootstrapRecord() | BootstrappedRecord():
            return replace(group, bootstraps={**group.bootstraps, record.store: record})
        case LeaderClaim() | SnapshotBegin() | SnapshotEnd():
            return group  # an end without a begin
        case _:
            assert_never(record)


def _with_member(group: Group, record: MemberRecord) -> Group:
    members, ended = dict(group.members), group.ended
    if record.phase == MemberPhase.GONE:
        ended = _latest(ended, (record.incarnation,))
    if record.phase == MemberPhase.GONE and not record.rejoin_ms:
        members.pop(record.incarnation, None)
    else:
        members[record.incarnation] = record
    return replace(group, members=members, ended=ended)


def _latest(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*earlier, *later)))[-ENDED_MAX:]


def _shape(row: TaskRow) -> TaskShape:
    return TaskShape(stateful=row.stateful, changelogs=row.changelogs)


def _target(record: TargetRecord) -> Target:
    return Target(
        group_epoch=record.group_epoch,
        owners={TaskId.parse(task): member for task, member in sorted(record.owners.items())},
        standbys={TaskId.parse(task): each for task, each in sorted(record.standbys.items())},
        basis=record.basis,
    )


def _step(record: StepRecord) -> Step:
    return Step(
        group_epoch=record.group_epoch,
        step_epoch=record.step_epoch,
        learners={TaskId.parse(task): copy for task, copy in sorted(record.learners.items())},
        standbys={TaskId.parse(task): each for task, each in sorted(record.standbys.items())},
        parked=frozenset(map(TaskId.parse, record.parked)),
    )
