"""Change of the number of shards of an application that does not run.

One transaction commits the progress of all new shards and the new floors, which tell the number. So
a command that was killed has changed all or nothing, and can run again.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.rebalance.producer_ids import reshard_id
from tidewheel.streams.group.reset import (
    LocalSlot,
    ResetFacts,
    StoppedPlan,
    own_producers,
    running_refusals,
)
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.commit.resharding import committed, floor_of, resharded
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, offsets_group
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset, TransactionalProducer
from tidewheel.tasks.kafka.shard_inputs import by_group
from tidewheel.tasks.key_ranges.progress_vector import Progress


class PartitionChange(msgspec.Struct, frozen=True):
    """Change of one input partition; `offset`: the lowest at which a new shard begins."""

    partition: TopicPartition
    before: int
    after: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardPlan(StoppedPlan):
    """Steps of the change: `topics` are those of the group, which begins again.

    Attributes:
        offsets: Offsets to commit: those of the new shards, the floors, and those that stay, which
            lose their epochs.
        groups: Consumer groups of shards that are no more; deleted.
    """

    changes: tuple[PartitionChange, ...] = ()
    offsets: Mapping[TopicPartition, CommittedOffset] = field(
        default_factory=dict[TopicPartition, CommittedOffset]
    )
    groups: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.groups or any(slot.tasks for slot in self.slots))


def plan_reshard(application_id: str, plan: ApplicationPlan, facts: ResetFacts) -> ReshardPlan:
    """Return the steps from the committed numbers of shards to those of a plan."""
    changes: list[PartitionChange] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    unchanged: dict[TopicPartition, CommittedOffset] = {}
    refusals = list(running_refusals(application_id, facts))
    inputs = {at for task in plan.tasks for at in plan.inputs(task)}
    for partition, count in sorted({at.whole: at.shard.of for at in inputs}.items()):
        try:
            before = _progress(partition, facts.committed)
            if not before:
                continue
            if len(before) == count:
                unchanged |= _offsets(partition, _of_no_epoch(before, application_id))
                continue
            new = resharded(before, count, reshard_id(application_id))
            offsets |= _offsets(partition, new)
        except ValueError as problem:
            refusals.append(f"{partition}: {problem}")
            continue
        lowest = min(progress.committed_offset for progress in new.values())
        changes.append(PartitionChange(partition, len(before), count, lowest))
    used = {offsets_group(application_id, at.shard) for at in inputs}
    log = {state_topic(application_id), inbox_topic(application_id)}
    return ReshardPlan(
        application_id=application_id,
        changes=tuple(changes),
        # Epochs of the group's deleted log would look as if somebody else had deleted it.
        offsets=offsets | unchanged if changes else {},
        topics=tuple(sorted(log.intersection(facts.topics))) if changes else (),
        groups=tuple(group for group in facts.shard_groups if group not in used),
        slots=tuple(_with_old_tasks(slot, set(map(str, plan.tasks))) for slot in facts.slots),
        transactional_ids=own_producers(application_id, facts),
        refusals=tuple(refusals),
    )


def execute_reshard(
    plan: ReshardPlan,
    admin: Admin,
    state_dir: Path,
    producer: Callable[[str], TransactionalProducer],
) -> None:
    """Carry out a plan; each step may be repeated.

    Raises:
        StreamsError: The plan has refusals, or a broker failed: run the command again.
    """
    with plan.locked(state_dir) as directories:  # the fence stops workers of other machines
        if plan.offsets:
            admin.fence(plan.transactional_ids)
            # Before the offsets: a group's log from before would grant tasks that are no more.
            admin.delete_topics(plan.topics)
            _commit(plan, producer)
        for group_id in plan.groups:
            admin.delete_group(group_id)
        for directory, slot in zip(directories, plan.slots, strict=True):
            for task in slot.tasks:
                directory.remove_task_directory(task)


def _commit(plan: ReshardPlan, producer: Callable[[str], TransactionalProducer]) -> None:
    *others, last = by_group(plan.application_id, plan.offsets).items()
    with closing(producer(reshard_id(plan.application_id))) as committing:
        committing.init()
        committing.begin()
        for group_id, offsets in others:
            committing.send_offsets(group_id, offsets)
        committing.commit(*last)


def _progress(
    partition: TopicPartition, offsets: Mapping[TopicPartition, CommittedOffset]
) -> dict[Shard, Progress]:
    """Return the progress of a partition's shards; empty if none has committed.

    The offset of the application's own group tells their number. Raises ValueError for a foreign or
    missing one.
    """
    own = offsets.get(partition)
    if own is None:
        counts = {at.shard.of for at in offsets if at.whole == partition}
        if counts:
            raise ValueError(
                f"not all of its {max(counts)} shards have committed yet; start the application with partition_shards={max(counts)} "
                "until all shards run, stop it, and run the command again"
            )
        return {}
    count = _decoded(own).shards
    progress: dict[Shard, Progress] = {}
    for shard in Shard.all_of(count):
        offset = offsets.get(ShardInput.of(partition, shard))
        if offset is None:
            raise ValueError(
                f"the offset of shard {shard} is missing: it was deleted or has expired; `tidewheel reset` processes the input again"
            )
        progress[shard] = _decoded(offset)
    return progress


def _of_no_epoch(before: Mapping[Shard, Progress], application_id: str) -> dict[Shard, Progress]:
    return {
        shard: msgspec.structs.replace(
            progress, task_epoch=0, sequence=0, transactional_id=reshard_id(application_id)
        )
        for shard, progress in before.items()
    }


def _decoded(offset: CommittedOffset) -> Progress:
    progress = Progress.decode(offset.metadata, committed_offset=offset.offset)
    if progress is None:
        raise ValueError(
            f"offset {offset.offset} was committed by another program; start the application once, and stop it, before its "
            "number of shards changes"
        )
    return progress


def _offsets(
    partition: TopicPartition, new: Mapping[Shard, Progress]
) -> dict[TopicPartition, CommittedOffset]:
    offsets = {
        ShardInput.of(partition, shard): committed(progress) for shard, progress in new.items()
    }
    if len(new) > 1:
        offsets[partition] = committed(floor_of(new.values()))
    return offsets


def _with_old_tasks(slot: LocalSlot, tasks: set[str]) -> LocalSlot:
    old = tuple(task for task in slot.tasks if task not in tasks)
    return LocalSlot(slot=slot.slot, path=slot.path, tasks=old, problem=slot.problem)
