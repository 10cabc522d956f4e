"""What becomes of the tasks that the state updater was given."""

from collections.abc import Mapping

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StateStoreError, StreamsError
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.restore.start_positions import Grant, StartPosition
from tidewheel.tasks.task.active_task import ActiveTask


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is ready to run.

    Attributes:
        task: The task, its stores open.
        grant: The grant it was restored under.
        starts: Where its inputs begin.
        topic_ids: Ids of its input topics.
        restored: Changelog records that were read since it was asked for.
    """

    task: ActiveTask
    grant: Grant
    starts: Mapping[TopicPartition, StartPosition]
    topic_ids: Mapping[str, bytes]
    restored: int


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A task or copy whose state can't be had here; its databases are closed. A copy has no grant."""

    task: ActiveTask
    grant: Grant | None
    error: StateStoreError | TaskCorruptedError


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A task that may not start under a grant; its databases stay open until the updater is told what becomes of it."""

    task: ActiveTask
    grant: Grant
    error: StreamsError


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose databases were closed, as ordered."""

    task: ActiveTask


#: What the updater tells the worker's loop.
RestoreResult = Restored | Broken | Refused | Closed
