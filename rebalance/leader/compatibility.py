"""Group program checks: topology, assignor, protocol version, tasks, partitions."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec

from tidewheel.rebalance.leader.sharding import required_version, shards_problem
from tidewheel.rebalance.model import MemberPhase, TaskId
from tidewheel.rebalance.protocol.group import LIVE, Group
from tidewheel.rebalance.protocol.messages import JoinGroup, SeenTask
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import GroupRecord, MemberRecord, TaskRow

#: Prefix of `GroupRecord.held` texts of this module.
PARTITIONS_HOLD: Final = "partitions: "


class Refusal(NamedTuple):
    """Reason to refuse a join; codes as in `messages.JoinRefused`."""

    code: str
    reason: str


def join_refusal(
    join: JoinGroup, group: Group, ignored: AbstractSet[str] = frozenset()
) -> Refusal | None:
    """Return why a join does not fit the group, or None.

    `ignored` incarnations may be dead and do not count. An empty group accepts any program;
    after `tidewheel group recover`, only the recovered one.
    """
    other_members = [
        record
        for incarnation, record in group.live().items()
        if record.member != join.member and incarnation not in ignored
    ]
    shards = shards_problem(join, other_members)
    if shards:
        return Refusal("INCOMPATIBLE_SHARDS", shards)
    if not other_members:
        return _pin_refusal(join, group.about) if group.about.pinned else None
    return (
        _version_refusal(join, other_members)
        or _assignor_refusal(join, other_members[0])
        or _topology_refusal(join, group, other_members)
    )


def _pin_refusal(join: JoinGroup, about: GroupRecord) -> Refusal | None:
    lowest, highest = join.protocol
    remedy = "run `tidewheel group recover` with this program and these settings if they are the right ones"
    if not lowest <= about.group_version <= highest:
        return Refusal(
            "INCOMPATIBLE_VERSION",
            f"{display_name(join)} speaks versions {lowest} to {highest} of the group protocol, the group was set up again in "
            f"version {about.group_version}: {remedy}",
        )
    if join.shards != about.shards:
        return Refusal(
            "INCOMPATIBLE_SHARDS",
            f"{display_name(join)} has partition_shards={join.shards}, the group was set up again for {about.shards}: {remedy}",
        )
    if join.assignor != about.assignor:
        return Refusal(
            "INCOMPATIBLE_ASSIGNOR",
            f"{display_name(join)} has task_assignor {join.assignor!r}, the group was set up again for {about.assignor!r}: {remedy}",
        )
    older = join.topology_epoch < about.topology_epoch
    is_same_epoch = join.topology_epoch == about.topology_epoch
    if older or (is_same_epoch and join.topology_hash != about.topology_hash):
        return Refusal(
            "INCOMPATIBLE_TOPOLOGY",
            f"{display_name(join)} runs another topology ({join.topology_hash}) than the group was set up again for "
            f"({about.topology_hash}): {remedy}",
        )
    return None


def _version_refusal(join: JoinGroup, other_members: list[MemberRecord]) -> Refusal | None:
    low = max(record.protocol[0] for record in other_members)
    high = min(record.protocol[1] for record in other_members)
    if join.protocol[0] <= high and join.protocol[1] >= low:
        return None
    return Refusal(
        "INCOMPATIBLE_VERSION",
        f"{display_name(join)} speaks versions {join.protocol[0]} to {join.protocol[1]} of the group protocol, the group's members "
        f"all speak {low} to {high}: upgrade by one version at a time",
    )


def _assignor_refusal(join: JoinGroup, other: MemberRecord) -> Refusal | None:
    if join.assignor == other.assignor:
        return None
    return Refusal(
        "INCOMPATIBLE_ASSIGNOR",
        f"{display_name(join)} has task_assignor {join.assignor!r}, the group's members have {other.assignor!r}: "
        "all members of a group need the same",
    )


def _topology_refusal(
    join: JoinGroup, group: Group, other_members: list[MemberRecord]
) -> Refusal | None:
    is_run = any(runs_program(record, group.about) for record in other_members)
    if is_run and join.topology_epoch < group.about.topology_epoch:
        return Refusal(
            "INCOMPATIBLE_TOPOLOGY",
            f"{display_name(join)} has topology epoch {join.topology_epoch}, the group is at {group.about.topology_epoch} already",
        )
    for record in other_members:
        is_same_epoch = record.topology_epoch == join.topology_epoch
        if is_same_epoch and record.topology_hash != join.topology_hash:
            return Refusal(
                "INCOMPATIBLE_TOPOLOGY",
                f"{display_name(join)} runs another topology than {display_name(record)} ({join.topology_hash} instead of "
                f"{record.topology_hash}): stop the others first, or raise the topology epoch for a rolling change",
            )
    return None


def is_parked(epoch: int, group: Group, name: str) -> bool:
    return epoch > group.about.topology_epoch and any(
        record.member != name and record.topology_epoch < epoch for record in group.live().values()
    )


def adopted_program(join: JoinGroup, group: Group) -> GroupRecord:
    return GroupRecord(
        leader_epoch=group.leader_epoch,
        group_version=max(group.about.group_version, required_version(join.shards)),
        topology_epoch=join.topology_epoch,
        topology_hash=join.topology_hash,
        assignor=join.assignor,
        tasks=_rows(join.tasks),
        partitions=dict(sorted(join.partitions.items())),
        held="" if group.about.held.startswith(PARTITIONS_HOLD) else group.about.held,
        shards=join.shards,
        rest=group.about.rest,
    )


def updated_program(group: Group, joins: Iterable[JoinGroup]) -> GroupRecord:
    """Return the group record with the tasks and partition counts that members see now.

    A member's cluster metadata may be old. So the highest count seen applies, and a topic is
    removed only after all members were heard and none sees it.
    """
    about = group.about
    counts: dict[str, int] = {}
    new: list[SeenTask] = []
    named: set[str] = set()
    unheard = {
        incarnation for incarnation, record in group.live().items() if runs_program(record, about)
    }
    #: Members with equal tasks share one tuple (`Observations._sharing`).
    distinct: dict[int, tuple[SeenTask, ...]] = {}
    for join in joins:
        if runs_program(join, about):
            unheard.discard(join.incarnation)
            distinct[id(join.tasks)] = join.tasks
            for topic, count in join.partitions.items():
                counts[topic] = max(count, counts.get(topic, 0))
    for some in distinct.values():
        named.update(task.task for task in some)
        new += [task for task in some if task.task not in about.tasks]
    tasks = about.tasks if not new else _sorted(_rows(new) | about.tasks)
    partitions = about.partitions
    if not unheard:
        tasks = {task: row for task, row in tasks.items() if task in named}
        partitions = {topic: count for topic, count in partitions.items() if topic in counts}
    hold = about.held
    if counts and (not hold or hold.startswith(PARTITIONS_HOLD)):
        hold = partition_problem(about.partitions, counts, tasks)
    partitions = about.partitions if hold else partitions | counts
    versions = [record.protocol[1] for record in group.members.values() if record.phase in LIVE]
    return msgspec.structs.replace(
        about,
        leader_epoch=group.leader_epoch,
        group_version=min(versions, default=about.group_version),
        tasks=about.tasks if hold else tasks,
        partitions=dict(sorted(partitions.items())),
        held=hold,
        pinned=False,
    )


def partition_problem(
    group_counts: Mapping[str, int], counts: Mapping[str, int], tasks: Mapping[str, TaskRow]
) -> str:
    """Return why the current partition counts are unusable, or "".

    >>> partition_problem({"orders": 4}, {"orders": 3}, {})
    'partitions: topic orders has 3, the group has worked with 4: was it deleted and recreated?'
    """
    for topic, count in sorted(group_counts.items()):
        if counts.get(topic, count) < count:
            return (
                f"{PARTITIONS_HOLD}topic {topic} has {counts[topic]}, the group has worked with {count}: "
                "was it deleted and recreated?"
            )
    for task, row in sorted(tasks.items()):
        for topic in row.changelogs:
            if counts.get(topic, 0) and TaskId.parse(task).partition >= counts[topic]:
                return (
                    f"{PARTITIONS_HOLD}changelog {topic} has {counts[topic]}, task {task} needs one of its own: the input "
                    "has grown; state is kept by key, so it has to be moved by hand"
                )
    return ""


def is_assignable(record: MemberRecord) -> bool:
    return record.phase == MemberPhase.ACTIVE or is_returning(record)


def is_returning(record: MemberRecord) -> bool:
    """Return True if the tasks of a leaving or gone member wait for its return."""
    return record.rejoin_ms > 0 and record.phase not in (MemberPhase.ACTIVE, MemberPhase.PARKED)


def is_awaited(record: MemberRecord) -> bool:
    return record.phase == MemberPhase.GONE and record.rejoin_ms > 0


def runs_program(member: JoinGroup | MemberRecord, about: GroupRecord) -> bool:
    return (member.topology_epoch, member.topology_hash, member.shards) == (
        about.topology_epoch,
        about.topology_hash,
        about.shards,
    )


def _rows(tasks: Iterable[SeenTask]) -> dict[str, TaskRow]:
    return _sorted(
        {
            task.task: TaskRow(
                stateful=task.stateful, changelogs=task.changelogs, shards=task.shards
            )
            for task in tasks
        }
    )


def _sorted(rows: dict[str, TaskRow]) -> dict[str, TaskRow]:
    return dict(sorted(rows.items(), key=lambda item: TaskId.parse(item[0])))
