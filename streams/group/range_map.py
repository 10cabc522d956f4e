"""Range map: committed input offset of each key range; no I/O.

The map is in the metadata of committed offsets (`progress_vector`), so it needs no member. Commits
name partitions only; worker reports and the group log add the sub-topologies. Each shard has a
consumer group of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tidewheel.rebalance.model import Shard, TaskId, TaskRole, TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.tasks.kafka.internal_topics import internal_prefix
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Key range in one input partition.

    Attributes:
        first, last: Lowest and highest key hash, as 8 hex digits.
        offset: Next offset to process: all earlier records of its keys are processed.
        ahead: `offset` minus the partition's committed offset, which is that of the slowest range.
        busy: Percent of about the last 5 s that a thread spent on this range; None if unknown.
    """

    first: str
    last: str
    offset: int
    ahead: int
    busy: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRanges:
    """Key ranges of one input partition.

    Attributes:
        task: None while it is unknown which task reads the partition.
        hash: Name of the hash function of keys.
        ranges: Ordered by `first`; one range for an undivided task.
    """

    task: str | None
    topic: str
    partition: int
    hash: str
    committed: int
    ranges: tuple[KeyRange, ...]


def progress_of(
    application_id: str, committed: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, Progress]:
    prefix = internal_prefix(application_id)
    progress_by_partition: dict[TopicPartition, Progress] = {}
    for partition, (offset, metadata) in committed.items():
        progress = Progress.decode(metadata, committed_offset=offset)
        if progress is not None and progress.transactional_id.startswith(prefix):
            progress_by_partition[partition] = progress
    return progress_by_partition


def range_map(
    progress: Mapping[Shard, Mapping[TopicPartition, Progress]],
    readers: Mapping[str, int],
    busy: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    tasks: Collection[TaskId] = (),
) -> tuple[InputRanges, ...]:
    """Return key ranges, sorted by task.

    Args:
        progress: Commits of each shard's consumer group.
        readers: Sub-topology by topic.
        busy: Percent by task and lowest key hash of a range.
        tasks: Tasks of the group. Commits of a partition's other shards are from an earlier number
            of shards, or repeat the least of all shards for other programs.
    """
    by_task: list[tuple[TaskId, InputRanges]] = []
    unknown: list[InputRanges] = []
    partitions = {task.whole for task in tasks}
    commits = [
        (shard, partition, committed)
        for shard, of_shard in progress.items()
        for partition, committed in of_shard.items()
    ]
    for shard, partition, committed in sorted(commits, key=lambda commit: commit[:2]):
        reader = readers.get(partition.topic)
        if reader is None:
            unknown.append(_ranges(None, partition, committed, {}))
            continue
        task = TaskId(reader, partition.partition, shard)
        if task in tasks or task.whole not in partitions:
            loads = busy.get(str(task), {})
            by_task.append((task, _ranges(str(task), partition, committed, loads)))
    by_task.sort(key=lambda entry: entry[0])
    return (*(ranges for _, ranges in by_task), *unknown)


def topic_readers(group: Group, inbox: InboxFold) -> dict[str, int]:
    tasks = {str(task): task for task in (*group.tasks, *group.states)}
    reported = [
        (tasks[task], status.input)
        for rows in inbox.tasks.values()
        for (task, role), (_, status) in rows.items()
        if role == TaskRole.ACTIVE and task in tasks  # any client may write to an inbox
    ]
    reported += [(task, state.input) for task, state in group.states.items()]
    return {
        position.rpartition("-")[0]: task.subtopology
        for task, positions in reported
        for position in positions
    }


def _ranges(
    task: str | None, partition: TopicPartition, progress: Progress, busy: Mapping[int, int]
) -> InputRanges:
    lowest = progress.committed_offset
    return InputRanges(
        task=task,
        topic=partition.topic,
        partition=partition.partition,
        hash=progress.key_hash,
        committed=lowest,
        ranges=tuple(
            KeyRange(
                first=f"{part.first_hash:08x}",
                last=f"{part.end_hash - 1:08x}",
                offset=part.offset,
                ahead=part.offset - lowest,
                busy=busy.get(part.first_hash),
            )
            for part in progress.vector.parts
        ),
    )
