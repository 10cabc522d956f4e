"""Group recovery: rebuilds a group whose control topics were deleted (H24).

Only an operator starts it. The log is gone, but each committed offset has the task's epoch and the
committer's transactional id. The inbox, if it still exists, has further ids. Recovery fences all
these ids and starts the new log above every epoch found. So no former owner can commit, and no
epoch is used twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from msgspec import structs

from tidewheel.rebalance.leader.repair import repair_group
from tidewheel.rebalance.leader.resting import is_held_at_rest
from tidewheel.rebalance.leader.sharding import required_version
from tidewheel.rebalance.model import TaskId, TaskPhase, TaskShape, TopicPartition, position_key
from tidewheel.rebalance.producer_ids import own_ids
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group, snapshot
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    BootstrapRecord,
    GroupRecord,
    LeaderClaim,
    TaskRow,
    encode_record,
    record_keys,
    task_record,
)
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.group_log import inbox_topic, new_control_topics, state_topic
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import committed_inputs
from tidewheel.tasks.key_ranges.progress_vector import Progress

#: Leader in the new log until a member claims.
_LEADER: Final = "recovery"
_REASON: Final = "the group was set up again (tidewheel group recover)"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgram:
    """Properties that all members must share."""

    topology_hash: str
    assignor: str
    shards: ShardCount = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFacts:
    """Facts before a recovery.

    Attributes:
        group: Group in the state topic; empty if the topic is gone.
        live_members: Members that were heard recently.
        named: Transactional ids in the inbox.
    """

    application_id: str
    tasks: Mapping[TaskId, TaskShape]
    inputs: Mapping[TopicPartition, TaskId]
    committed: Mapping[TopicPartition, CommittedOffset]
    group: Group = field(default_factory=Group)
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    live_members: tuple[str, ...] = ()
    partitions: Mapping[str, int] = field(default_factory=dict[str, int])
    named: frozenset[str] = frozenset()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    program: GroupProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Steps of a recovery.

    Attributes:
        needed: Reasons for the recovery; empty for a healthy group.
        transactional_ids: Producers to fence.
        epoch: New leader and task epoch, above all epochs found.
        refusals: Reasons against it; empty if it may run.
    """

    application_id: str
    needed: tuple[str, ...]
    create: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    epoch: int
    tasks: tuple[TaskId, ...]
    refusals: tuple[str, ...] = ()


class LogWriter(Protocol):
    """Transactional writer of the state topic."""

    def init(self) -> None: ...

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None: ...


def plan_recovery(facts: RecoveryFacts) -> RecoveryPlan:
    app = facts.application_id
    return RecoveryPlan(
        application_id=app,
        needed=_reasons(facts),
        create=tuple(name for name in _topics(app) if name not in facts.topic_ids),
        transactional_ids=transactional_ids(app, facts.committed, facts.group, facts.named),
        epoch=_highest_epoch(facts.committed, facts.group) + 1,
        tasks=tuple(sorted(facts.tasks)),
        refusals=_refusals(facts),
    )


def execute_recovery(
    plan: RecoveryPlan,
    facts: RecoveryFacts,
    admin: Admin,
    writer: LogWriter,
    *,
    read_group: Callable[[], Group],
    replication_factor: int = -1,
) -> int:
    """Execute the plan; return the group's new leader epoch.

    Commits and log are read a second time after the fencing: only then are they final.

    Raises:
        StreamsError: The plan or the cluster refuses; the recovery may be repeated.
    """
    if plan.refusals:
        raise StreamsError("; ".join(plan.refusals))
    _create(plan, admin, replication_factor)
    inputs = sorted(facts.inputs)
    fenced: set[str] = set()
    pending = set(plan.transactional_ids)
    while pending - fenced:
        admin.fence(sorted(pending - fenced))
        fenced |= pending
        committed = committed_inputs(admin, plan.application_id, inputs, stable=True)
        pending |= set(transactional_ids(plan.application_id, committed, Group()))
    committed = committed_inputs(admin, plan.application_id, inputs, stable=True)
    writer.init()
    epoch = max(plan.epoch, _highest_epoch(committed, read_group()) + 1)
    descriptions = admin.describe_topics(_topics(plan.application_id))
    ids = {name: topic.topic_id.hex() for name, topic in descriptions.items()}
    records = recovered_log(facts, epoch, ids)
    writer.write(record_keys(records), [encode_record(record) for record in records])
    return epoch


def recovered_log(
    facts: RecoveryFacts, epoch: int, topic_ids: Mapping[str, str]
) -> list[AnyRecord]:
    """Return a new group log whose leader epoch and task epochs are `epoch`, without owners."""
    rows = {
        str(task.whole): TaskRow(
            stateful=shape.stateful,
            changelogs=shape.changelogs,
            shards=cast("ShardCount", task.shard.of),
        )
        for task, shape in sorted(facts.tasks.items())
    }
    states = {
        task: structs.replace(
            task_record(task, leader_epoch=epoch, phase=TaskPhase.RELEASED, task_epoch=epoch),
            event="RELEASED",
            reason=_REASON,
            source="fence",
        )
        for task in facts.tasks
    }
    claim = LeaderClaim(
        leader_epoch=epoch, leader=_LEADER, previous_epoch=epoch - 1, topic_ids=dict(topic_ids)
    )
    group = Group(
        about=GroupRecord(
            leader_epoch=epoch,
            group_version=required_version(facts.program.shards),
            shards=facts.program.shards,
            topology_hash=facts.program.topology_hash,
            assignor=facts.program.assignor,
            tasks=rows,
            partitions=dict(facts.partitions),
            pinned=True,
        ),
        states=states,
    )
    return [claim, *snapshot(group, epoch)]


def transactional_ids(
    application_id: str,
    committed: Mapping[TopicPartition, CommittedOffset],
    group: Group,
    named: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Return the application's transactional ids that may still commit."""
    ids = named | {progress.transactional_id for progress in _progress(committed)}
    members = repair_group(group, app=application_id).group.members
    ids |= {own_id for record in members.values() for own_id in record.transactional_ids}
    return tuple(own_ids(application_id, ids))


def _create(plan: RecoveryPlan, admin: Admin, replication_factor: int) -> None:
    admin.create_topics(new_control_topics(plan.application_id, replication_factor, plan.create))


def _topics(application_id: str) -> tuple[str, str]:
    return state_topic(application_id), inbox_topic(application_id)


def _progress(committed: Mapping[TopicPartition, CommittedOffset]) -> list[Progress]:
    decoded = (
        Progress.decode(offset.metadata, committed_offset=offset.offset)
        for offset in committed.values()
    )
    return [progress for progress in decoded if progress is not None]


def _highest_epoch(committed: Mapping[TopicPartition, CommittedOffset], group: Group) -> int:
    epochs = [progress.task_epoch for progress in _progress(committed)]
    epochs += [state.task_epoch for state in group.states.values()]
    return max([group.leader_epoch, *epochs])


def _reasons(facts: RecoveryFacts) -> tuple[str, ...]:
    """Return the defects of the group's log.

    A lost topic is a defect even before the first commit, because running members pause.
    """
    was_used = any(progress.task_epoch > 0 for progress in _progress(facts.committed))
    group = facts.group
    missing = [name for name in _topics(facts.application_id) if name not in facts.topic_ids]
    reasons = [f"topic {name} does not exist" for name in missing]
    reasons += [
        f"topic {name} is another one than the group was led with"
        for name, expected in sorted(group.topic_ids.items())
        if facts.topic_ids.get(name, expected) != expected
    ]
    if not missing and not group.leader_epoch:
        used = ", but the application has committed" if was_used else ""
        reasons.append(f"the state topic holds no decision{used}")
    contradictions = repair_group(group, app=facts.application_id).contradictions
    reasons += [f"the state topic contradicts itself: {text}" for text in contradictions]
    about, program = group.about, facts.program
    loads = any(isinstance(record, BootstrapRecord) for record in group.bootstraps.values())
    if about.held and not loads and not is_held_at_rest(group):
        reasons.append(f"the group decides nothing: {about.held}")
    if about.pinned and (about.topology_hash, about.assignor, about.shards) != (
        program.topology_hash,
        program.assignor,
        program.shards,
    ):
        reasons.append(
            f"the group was set up again for topology {about.topology_hash} with task_assignor {about.assignor!r}, and no such "
            f"member has joined; this is topology {program.topology_hash} with {program.assignor!r}"
        )
    ahead = [
        f"{partition} was committed at task epoch {progress.task_epoch}, the log knows {expected}"
        for partition, task in sorted(facts.inputs.items())
        if (progress := _progress_of(facts.committed.get(partition))) is not None
        and group.leader_epoch
        and progress.task_epoch
        > (expected := group.states[task].task_epoch if task in group.states else 0)
    ]
    beyond = [
        f"task {task} may not start below offset {floor} of {partition}, which ends at {facts.ends[partition.whole]}"
        for partition, task in sorted(facts.inputs.items())
        if partition.whole in facts.ends
        and task in group.states
        and (floor := group.states[task].input.get(position_key(partition), 0))
        > facts.ends[partition.whole]
    ]
    return tuple(reasons + ahead + beyond)


def _progress_of(committed: CommittedOffset | None) -> Progress | None:
    if committed is None:
        return None
    return Progress.decode(committed.metadata, committed_offset=committed.offset)


def _refusals(facts: RecoveryFacts) -> tuple[str, ...]:
    if not facts.live_members or not _reasons(facts):
        return ()
    hint = (
        "members that pause because the topics are lost are silent, and continue by themselves once the group is set up "
        "again"
    )
    names = ", ".join(facts.live_members)
    return (f"members of the group are alive: {names}; stop them first ({hint})",)
