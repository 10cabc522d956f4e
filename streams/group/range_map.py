"""Where each key range of each task stands, as the last commits tell it. Pure.

The map is in the metadata of every committed offset (`tidewheel.tasks.key_ranges.progress_vector`), so it is seen without asking a
member, and when none is up. A commit names partitions, not tasks; which sub-topology reads a topic, workers' figures and
the group's log tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from tidewheel.rebalance.group import Group
from tidewheel.rebalance.model import TaskId, TaskRole, TopicPartition
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.tasks.internal_topics import internal_prefix
from tidewheel.tasks.key_ranges.key_ranges import HASH_END
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.ports import CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """One key range in one input partition.

    Attributes:
        first, last: Its lowest and its highest key hash, as 8 hex digits.
        offset: The next offset it processes: of its own keys everything before is done.
        ahead: By how much that is above the partition's committed offset, which is the slowest range's.
        busy: Percent of the last seconds that it was at work; None where its task does not say.
    """

    first: str
    last: str
    offset: int
    ahead: int
    busy: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRanges:
    """The key ranges of one input partition of one task.

    Attributes:
        task: Whose; None where nobody has said yet which sub-topology reads the topic.
        topic, partition: The input.
        hash: Name of the hash that the ranges cut.
        committed: The committed offset.
        ranges: In the order of their hashes; one for all of them where the task is not cut.
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
    """Return what the application's own commits say; offsets that somebody else committed are left out."""
    prefix = internal_prefix(application_id)
    found: dict[TopicPartition, Progress] = {}
    for partition, (offset, metadata) in committed.items():
        progress = Progress.decode(metadata, committed_offset=offset)
        if progress is not None and progress.transactional_id.startswith(prefix):
            found[partition] = progress
    return found


def range_map(
    progress: Mapping[TopicPartition, Progress],
    readers: Mapping[str, int],
    busy: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
) -> tuple[InputRanges, ...]:
    """Return the ranges of every input partition, by task.

    Args:
        progress: What each partition's commit says (`progress_of`).
        readers: Which sub-topology reads a topic (`topic_readers`).
        busy: How busy each task's busiest ranges are, by their first hash.
    """
    known: list[tuple[TaskId, InputRanges]] = []
    unknown: list[InputRanges] = []
    for partition, said in sorted(progress.items()):
        reader = readers.get(partition.topic)
        if reader is None:
            unknown.append(_ranges(None, partition, said, {}))
        else:
            task = TaskId(reader, partition.partition)
            told = busy.get(str(task), {})
            known.append((task, _ranges(str(task), partition, said, told)))
    known.sort(key=lambda each: each[0])
    return (*(each for _, each in known), *unknown)


def topic_readers(group: Group, inbox: InboxFold) -> dict[str, int]:
    """Return which sub-topology reads each topic, as far as log and inbox tell: no topic is read by two."""
    tasks = {str(task): task for task in (*group.tasks, *group.states)}
    said = [
        (tasks[task], status.input)
        for rows in inbox.tasks.values()
        for (task, role), (_, status) in rows.items()
        if role == TaskRole.ACTIVE and task in tasks  # anybody may write to an inbox
    ]
    said += [(task, state.input) for task, state in group.states.items()]
    return {
        position.rpartition("-")[0]: task.subtopology
        for task, positions in said
        for position in positions
    }


def _ranges(
    task: str | None, partition: TopicPartition, said: Progress, busy: Mapping[int, int]
) -> InputRanges:
    lowest = said.committed_offset
    ends = [*(each.first_hash for each in said.ranges), HASH_END]
    return InputRanges(
        task=task,
        topic=partition.topic,
        partition=partition.partition,
        hash=said.key_hash,
        committed=lowest,
        ranges=tuple(
            KeyRange(
                first=f"{first:08x}",
                last=f"{end - 1:08x}",
                offset=each.offset,
                ahead=each.offset - lowest,
                busy=busy.get(first),
            )
            for each, (first, end) in zip(said.ranges, pairwise(ends), strict=True)
        ),
    )
