"""What becomes of the tasks that the state updater was given."""

from collections.abc import Mapping
from dataclasses import dataclass

from rebalance.model import TopicPartition
from state_stores.errors import StateStoreError
from tasks.active_task import ActiveTask
from tasks.errors import TaskCorruptedError
from tasks.start_positions import StartPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A task that is ready to run.

    Attributes:
        task: The task, its stores open.
        starts: Where its inputs begin.
        topic_ids: Ids of its input topics.
        restored: Changelog records that were read since it was asked for.
    """

    task: ActiveTask
    starts: Mapping[TopicPartition, StartPosition]
    topic_ids: Mapping[str, bytes]
    restored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A task or copy whose state can't be had here; its databases are closed."""

    task: ActiveTask
    error: StateStoreError | TaskCorruptedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A task whose databases were closed, as ordered."""

    task: ActiveTask


#: What the updater tells the worker's loop.
RestoreResult = Restored | Broken | Closed
