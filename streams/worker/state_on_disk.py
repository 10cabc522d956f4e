"""State on disk: positions of closed task databases, which a joining worker reports.

The leader prefers workers with high positions. So a worker leaves out changelogs that were
recreated, or whose tombstones may be gone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidewheel.rebalance.model import TaskId, TaskShape, TopicPartition, position_key
from tidewheel.rebalance.protocol.messages import DiskCopy, ShardCopy
from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import is_usable_position, position_name
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.tasks.kafka.ports import TopicDescription
from tidewheel.tasks.restore.store_restore import RESTORE_SETTINGS, tombstone_retention_ms

_log = logging.getLogger(__name__)

PositionsReader = Callable[[Path], Mapping[str, bytes]]


class DescribesTopics(Protocol):
    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]: ...


def state_on_disk(
    slot: StateDirectory,
    shapes: Mapping[TaskId, TaskShape],
    admin: DescribesTopics,
    read_positions: PositionsReader,
    now_ms: int,
) -> tuple[DiskCopy, ...]:
    """Return positions of stateful tasks in this slot; their databases must be closed."""
    here = [task for task in map(TaskId.parse, slot.tasks()) if task in shapes]
    stateful = [task for task in here if shapes[task].stateful]
    if not stateful:
        return ()
    names = sorted({topic for task in stateful for topic in shapes[task].changelogs})
    topics = admin.describe_topics(names, config=RESTORE_SETTINGS)
    copies = (_copy(slot, task, shapes[task], topics, read_positions, now_ms) for task in stateful)
    return tuple(copy for copy in copies if copy is not None)


def _copy(
    slot: StateDirectory,
    task: TaskId,
    shape: TaskShape,
    topics: Mapping[str, TopicDescription],
    read_positions: PositionsReader,
    now_ms: int,
) -> DiskCopy | None:
    """Return a task's positions; None if a restore would start from the beginning."""
    path = slot.task_directory(str(task))
    if not any(path.iterdir()):
        return None
    try:
        stored = read_positions(path)
    except StateStoreError as error:
        _log.warning("can't read the positions of task %s: %s", task, error)
        return None
    if not stored:
        return _disk_copy(task, {})  # only custom stores, with files of their own
    positions: dict[str, int] = {}
    for name in shape.changelogs:
        topic = topics.get(name)
        position = Position.decode(stored.get(position_name(name, task.partition)))
        if topic is None or position is None:
            continue
        if is_usable_position(
            position,
            topic_id=topic.topic_id,
            tombstone_retention_ms=tombstone_retention_ms(topic),
            now_ms=now_ms,
        ):
            positions[position_key(TopicPartition(name, task.partition))] = position.offset
    return _disk_copy(task, positions) if positions else None


def _disk_copy(task: TaskId, positions: dict[str, int]) -> DiskCopy:
    kind = DiskCopy if task.shard.is_whole else ShardCopy
    return kind(task=str(task), positions=positions)
