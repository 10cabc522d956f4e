"""A task whose state the updater has: what is known of it, and where each of its stores stands. No effects."""

from collections.abc import Mapping

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.restore.start_positions import Grant, StartPosition
from tidewheel.tasks.restore.store_restore import StoreRestore
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.learner_task import CopyProgress, LearnerTask


class Charge(msgspec.Struct, eq=False):
    """A task that is to be handed over (`grant`), or followed as a copy (`copy`)."""

    task: ActiveTask
    grant: Grant | None = None
    copy: LearnerTask | None = None
    entries: dict[TopicPartition, StoreRestore] = msgspec.field(
        default_factory=dict[TopicPartition, StoreRestore]
    )
    starts: Mapping[TopicPartition, StartPosition] | None = None
    topic_ids: Mapping[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    #: Its stores are open and are what their positions say.
    complete: bool = False
    #: Records read since the grant.
    restored: int = 0
    wiped: bool = False
    #: It may not start under its grant; nothing is read for it until the next order.
    refused: bool = False
    #: It was a copy, and the owner before has let go.
    promoted: bool = False

    @property
    def is_awaited(self) -> bool:
        """Return whether nobody works on the task until it runs here, or soon nobody will: others make room for it."""
        return self.promoted or (
            self.copy is not None and self.copy.role == "learner" and self.copy.is_ready
        )

    @property
    def is_done(self) -> bool:
        """Return whether all its stores have come to their ends."""
        return all(entry.is_done for entry in self.entries.values())

    def progress(self, ends: Mapping[TopicPartition, int]) -> CopyProgress:
        """Return how far its stores are, given the ends that the reader knows."""
        return CopyProgress(
            positions={each: entry.position for each, entry in self.entries.items()},
            ends={each: _end_of(entry, ends) for each, entry in self.entries.items()},
        )


def _end_of(entry: StoreRestore, ends: Mapping[TopicPartition, int]) -> int | None:
    if entry.limit is not None:
        return entry.limit
    # The reader knows nothing of what is made into runs elsewhere: at least this much is to come.
    return (
        max(entry.milestone, entry.position + 1) if entry.elsewhere else ends.get(entry.partition)
    )
