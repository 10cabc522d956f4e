"""The group as a pure fold over the records of the group log.

All readers of the same records have the same group, also after compaction. Timers, lags and beats
are not in the log: each leader observes them itself.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.model import EPOCH_MAX, MemberPhase, Shard, TaskId, TaskPhase, TaskShape
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.messages import LeaderBeat
from tidewheel.rebalance.protocol.records import (
    GROUP_TASKS_MAX,
    AnyRecord,
    BootstrappedRecord,
    BootstrapRecord,
    Copy,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    ShardRecord,
    SnapshotBegin,
    SnapshotEnd,
    StepRecord,
    TargetRecord,
    TaskRecord,
    TaskRow,
    checksum,
    whole_and_shards,
)
from tidewheel.rebalance.protocol.table import Table, table_of

_R = TypeVar("_R", GroupRecord, MemberRecord, TaskRecord, BootstrapRecord | BootstrappedRecord)

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

#: Phases in which an incarnation can own tasks.
LIVE = frozenset({MemberPhase.ACTIVE, MemberPhase.LEAVING, MemberPhase.PARKED})

#: A claim whose leader epoch is further above the last one is forged: readers skip it. Smaller
#: gaps are claims that compaction removed.
EPOCHS_SKIPPED_MAX = 1 << 20

#: Claims up to this are always valid: `tidewheel group recover` starts a new log above all
#: committed task epochs (at most `EPOCH_MAX`). Compaction may remove its first claims.
FIRST_EPOCH_MAX = EPOCH_MAX + EPOCHS_SKIPPED_MAX

ENDED_MAX = 256

#: Readers skip records of further members: a leader's beat of 256 KiB names 5,000 live ones.
MEMBERS_MAX: Final = 10_000
#: Readers skip records of further tasks that no GROUP record lists.
TASKS_MAX: Final = GROUP_TASKS_MAX
#: Readers skip records of further loads of stores.
BOOTSTRAPS_MAX: Final = 10_000
#: Readers skip further records of one snapshot: it has these, and GROUP, TARGET and STEP.
PENDING_MAX: Final = 2 * TASKS_MAX + MEMBERS_MAX + 3


class Target(msgspec.Struct, frozen=True, kw_only=True):
    group_epoch: int = 0
    owners: Mapping[TaskId, str] = msgspec.field(default_factory=lambda: _NOTHING)
    standbys: Mapping[TaskId, tuple[str, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    basis: str = ""


class IntermediateAssignment(msgspec.Struct, frozen=True, kw_only=True):
    group_epoch: int = 0
    step_epoch: int = 0
    learners: Mapping[TaskId, Copy] = msgspec.field(default_factory=lambda: _NOTHING)
    standbys: Mapping[TaskId, tuple[Copy, ...]] = msgspec.field(default_factory=lambda: _NOTHING)
    parked: frozenset[TaskId] = frozenset()

    def copies(self, task: TaskId) -> tuple[Copy, ...]:
        learner = self.learners.get(task)
        return ((learner,) if learner is not None else ()) + self.standbys.get(task, ())

    def changed_tasks(self, earlier: "IntermediateAssignment") -> set[TaskId]:
        """Return tasks that have other copies than in `earlier`."""
        learners = changed_keys(self.learners, earlier.learners)
        return learners | changed_keys(self.standbys, earlier.standbys)


def changed_keys(now: Mapping[TaskId, Any], before: Mapping[TaskId, Any]) -> set[TaskId]:
    """Return the tasks that only one of the mappings has, or both with different values.

    >>> changed_keys({TaskId(0, 1): "a"}, {TaskId(0, 1): "b"}) == {TaskId(0, 1)}
    True
    """
    if now is before or now == before:  # comparing costs less than the sets
        return set()
    return {task for task, _ in now.items() ^ before.items()}


class Group(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Group log content; `==` ignores `ended`: late readers know fewer ended incarnations."""

    leader_epoch: int = 0
    leader: str = ""
    topic_ids: Mapping[str, str] = _NOTHING
    about: GroupRecord = GroupRecord(leader_epoch=0)
    tasks: Mapping[TaskId, TaskShape] = _NOTHING
    #: By incarnation; without GONE members, unless their tasks wait for their return.
    members: Mapping[str, MemberRecord] = _NOTHING
    target: Target = Target()
    step: IntermediateAssignment = IntermediateAssignment()
    states: Mapping[TaskId, TaskRecord] = _NOTHING
    bootstraps: Mapping[str, BootstrapRecord | BootstrappedRecord] = _NOTHING
    #: Records of an unfinished snapshot by position, or None.
    pending: Mapping[int, AnyRecord] | None = None
    #: The last `ENDED_MAX` ended incarnations, oldest first: their messages no longer count.
    ended: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # mutable mappings inside

    def phase_of(self, task: TaskId) -> TaskPhase:
        state = self.states.get(task)
        return TaskPhase.UNOWNED if state is None else TaskPhase(state.phase)

    def live(self) -> dict[str, MemberRecord]:
        live = {
            incarnation: record
            for incarnation, record in self.members.items()
            if record.phase in LIVE
        }
        return dict(sorted(live.items(), key=lambda item: (item[1].member, item[0])))

    def incarnation_of(self, member: str) -> str | None:
        for incarnation, record in self.members.items():
            if record.member == member and record.phase in LIVE:
                return incarnation
        return None

    def owned(self, incarnation: str) -> dict[TaskId, TaskRecord]:
        owned = [(task, state) for task, state in self.states.items() if state.owner == incarnation]
        return dict(sorted(owned, key=itemgetter(0)))


def _compared(group: Group) -> tuple[object, ...]:
    return msgspec.structs.astuple(replace(group, ended=()))


def apply(group: Group, record: AnyRecord) -> Group:
    """Return the group after a record.

    Records of deposed leaders (lower epochs) and unfinished snapshots change nothing.
    """
    if record.leader_epoch < group.leader_epoch:
        return group
    if isinstance(record, LeaderClaim):
        counts = record.leader_epoch > group.leader_epoch and refusal_of(group, record) is None
        return _claimed(group, record) if counts else group
    if record.leader_epoch > group.leader_epoch or _excess(group, record) is not None:
        return group
    if isinstance(record, SnapshotBegin) or group.pending is not None:
        return _in_snapshot(group, record)
    return _changed(group, record)


def _in_snapshot(group: Group, record: AnyRecord) -> Group:
    match record:
        case SnapshotEnd():
            return _with_snapshot(group, record)
        case SnapshotBegin():
            return replace(group, pending=Table())
        case _:
            pending = table_of(group.pending or {})
            return replace(group, pending=pending.with_item(len(pending), record))


def _claimed(group: Group, claim: LeaderClaim) -> Group:
    return replace(
        group,
        leader_epoch=claim.leader_epoch,
        leader=claim.leader,
        topic_ids=dict(claim.topic_ids),
        pending=None,
    )


def refusal_of(group: Group, record: AnyRecord) -> Rejection | None:
    """Return why readers skip a well-formed record, or None.

    A claim far above all earlier epochs would leave no higher epoch for the next leader. Groups
    beyond the maximum number of members, tasks or loads exist in forged logs only.
    """
    if not isinstance(record, LeaderClaim):
        return _excess(group, record) if record.leader_epoch == group.leader_epoch else None
    if record.leader_epoch > highest_claim(group):
        return Rejection("leader_epoch", f"is far above {group.leader_epoch}, the newest claim's")
    return None


def _excess(group: Group, record: AnyRecord) -> Rejection | None:
    if group.pending is not None:
        is_more = not isinstance(record, SnapshotBegin | SnapshotEnd)
        return _full("record", "records of a snapshot", group.pending, PENDING_MAX, is_more=is_more)
    match record:
        case MemberRecord():
            is_more = record.incarnation not in group.members and not _is_removal(record)
            return _full("member", "members", group.members, MEMBERS_MAX, is_more=is_more)
        case TaskRecord():
            task = TaskId.parse(record.task)
            is_more = task not in group.states and task not in group.tasks
            return _full("task", "tasks", group.states, TASKS_MAX, is_more=is_more)
        case BootstrapRecord() | BootstrappedRecord():
            is_more = record.store not in group.bootstraps
            return _full("store", "loads", group.bootstraps, BOOTSTRAPS_MAX, is_more=is_more)
        case _:
            return None


def _full(
    field: str, noun: str, present: Mapping[Any, Any], most: int, *, is_more: bool
) -> Rejection | None:
    if is_more and len(present) >= most:
        return Rejection(field, f"is beyond the maximum of {most} {noun}")
    return None


def highest_claim(group: Group) -> int:
    return max(group.leader_epoch + EPOCHS_SKIPPED_MAX, FIRST_EPOCH_MAX)


def is_of_leader(beat: LeaderBeat, group: Group) -> bool:
    """Return True for a beat of the logged leader, or of one whose claim is not read yet."""
    if beat.leader_epoch == group.leader_epoch:
        return beat.incarnation == group.leader
    return beat.leader_epoch > group.leader_epoch


def replay(records: Iterable[AnyRecord], group: Group | None = None) -> Group:
    """Return the group after these records.

    >>> replay([LeaderClaim(leader_epoch=1, leader="a"), LeaderClaim(leader_epoch=3, leader="b")]).leader
    'b'
    """
    group = Group() if group is None else group
    for record in records:
        group = apply(group, record)
    return group


def snapshot(group: Group, leader_epoch: int) -> list[AnyRecord]:
    """Return records that rebuild this group; a new leader writes them after its claim."""
    target, step = group.target, group.step
    about = replace(group.about, ended=group.ended)
    items: list[AnyRecord] = [_with_leader_epoch(about, leader_epoch)]
    items += [
        _with_leader_epoch(record, leader_epoch) for _, record in sorted(group.members.items())
    ]
    items.append(target_record(target, leader_epoch, "snapshot"))
    items.append(step_record(step, leader_epoch, step.step_epoch))
    items += [
        _with_leader_epoch(record, leader_epoch) for _, record in sorted(group.states.items())
    ]
    end = _snapshot_end(items, leader_epoch)
    # Behind `SnapshotEnd`: older versions skip this kind, so their count must not include it.
    loads = [
        _with_leader_epoch(record, leader_epoch) for _, record in sorted(group.bootstraps.items())
    ]
    return [SnapshotBegin(leader_epoch=leader_epoch), *items, end, *loads]


def _snapshot_end(items: Iterable[AnyRecord], leader_epoch: int) -> SnapshotEnd:
    shards = [item for item in items if isinstance(item, ShardRecord)]
    others = [item for item in items if not isinstance(item, ShardRecord)]
    return SnapshotEnd(
        leader_epoch=leader_epoch,
        count=len(others),
        crc=checksum(others),
        shard_count=len(shards),
        shard_crc=checksum(shards),
    )


def target_record(target: Target, leader_epoch: int, reason: str) -> TargetRecord:
    owners, shard_owners = whole_and_shards(target.owners)
    standbys, shard_standbys = whole_and_shards(target.standbys)
    return TargetRecord(
        leader_epoch=leader_epoch,
        group_epoch=target.group_epoch,
        owners=owners,
        standbys=standbys,
        basis=target.basis,
        reason=reason,
        shard_owners=shard_owners,
        shard_standbys=shard_standbys,
    )


def step_record(step: IntermediateAssignment, leader_epoch: int, step_epoch: int) -> StepRecord:
    learners, shard_learners = whole_and_shards(step.learners)
    standbys, shard_standbys = whole_and_shards(step.standbys)
    parked, shard_parked = whole_and_shards(dict.fromkeys(step.parked))
    return StepRecord(
        leader_epoch=leader_epoch,
        group_epoch=step.group_epoch,
        step_epoch=step_epoch,
        learners=learners,
        standbys=standbys,
        parked=tuple(parked),
        shard_learners=shard_learners,
        shard_standbys=shard_standbys,
        shard_parked=tuple(shard_parked),
    )


def _with_leader_epoch(record: _R, leader_epoch: int) -> _R:
    return replace(record, leader_epoch=leader_epoch)


def _with_snapshot(group: Group, end: SnapshotEnd) -> Group:
    items = list((group.pending or {}).values())
    if _snapshot_end(items, end.leader_epoch) != replace(end, v=1):
        return replace(group, pending=None)
    fresh = Group(
        leader_epoch=group.leader_epoch,
        leader=group.leader,
        topic_ids=group.topic_ids,
        ended=group.ended,
    )
    for item in items:
        if _excess(fresh, item) is None:
            fresh = _changed(fresh, item)
    return fresh


def _changed(group: Group, record: AnyRecord) -> Group:  # noqa: PLR0911 - one answer per kind
    match record:
        case GroupRecord():
            tasks = {
                TaskId(*TaskId.parse(task)[:2], shard): _shape(row)
                for task, row in record.tasks.items()
                for shard in Shard.all_of(row.shards)
            }
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
            states = table_of(group.states).with_item(TaskId.parse(record.task), record)
            return replace(group, states=states)
        case BootstrapRecord() | BootstrappedRecord():
            loads = table_of(group.bootstraps).with_item(record.store, record)
            return replace(group, bootstraps=loads)
        case LeaderClaim() | SnapshotBegin() | SnapshotEnd():
            return group
        case _:
            assert_never(record)


def _with_member(group: Group, record: MemberRecord) -> Group:
    members, ended = table_of(group.members), group.ended
    if record.phase == MemberPhase.GONE:
        ended = _latest(ended, (record.incarnation,))
    if _is_removal(record):
        members = members.without(record.incarnation)
    else:
        members = members.with_item(record.incarnation, record)
    return replace(group, members=members, ended=ended)


def _is_removal(record: MemberRecord) -> bool:
    return record.phase == MemberPhase.GONE and not record.rejoin_ms


def _latest(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*earlier, *later)))[-ENDED_MAX:]


def _shape(row: TaskRow) -> TaskShape:
    return TaskShape(stateful=row.stateful, changelogs=row.changelogs)


def _target(record: TargetRecord) -> Target:
    return Target(
        group_epoch=record.group_epoch,
        owners={TaskId.parse(task): member for task, member in sorted(record.all_owners.items())},
        standbys={
            TaskId.parse(task): copies for task, copies in sorted(record.all_standbys.items())
        },
        basis=record.basis,
    )


def _step(record: StepRecord) -> IntermediateAssignment:
    return IntermediateAssignment(
        group_epoch=record.group_epoch,
        step_epoch=record.step_epoch,
        learners={TaskId.parse(task): copy for task, copy in sorted(record.all_learners.items())},
        standbys={
            TaskId.parse(task): copies for task, copies in sorted(record.all_standbys.items())
        },
        parked=frozenset(map(TaskId.parse, record.all_parked)),
    )
