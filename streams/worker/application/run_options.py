"""How one worker process takes part in an application: its slot, its tasks or its group, missing topics."""

from collections.abc import Callable
from dataclasses import dataclass

from tidewheel.rebalance.model import TaskId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What `tidewheel run` decides for each of its workers; a program of the user's own needs none of it.

    Attributes:
        slot: Slot of the state directory to take; None takes the lowest free one.
        workers: Number of workers of this program. In a group each is a member of its own; with fixed assignment, slot n
            runs every task whose index modulo this is n.
        fixed: No group: the tasks follow from `slot` and `workers` alone (as `task_assignor="fixed"` says).
        tasks: No group, and exactly these tasks; needs `group_instance_id`.
        watchdog_fd: Where the watchdog that `tidewheel run` started takes its workers in; None starts one when it is needed.
        process_id: Name of the host program in its group; None makes one.
        wait_for_topics: Wait for missing source topics instead of failing.
        create_topics: Create missing source topics (with the cluster's default partition count).
        on_record: Told before each record which it is (partition and offset), and (None, -1) once none is in hand; for a
            worker that is started after one died without a word. None processes in batches.

    >>> RunOptions(slot=1, workers=4).wait_for_topics
    False
    """

    slot: int | None = None
    workers: int = 1
    fixed: bool = False
    tasks: tuple[TaskId, ...] | None = None
    watchdog_fd: int | None = None
    process_id: str | None = None
    wait_for_topics: bool = False
    create_topics: bool = False
    on_record: Callable[[TopicPartition | None, int], None] | None = None
