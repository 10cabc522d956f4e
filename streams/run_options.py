"""How one worker process takes part in an application: its slot, its tasks, what it does about missing topics."""

from dataclasses import dataclass

from rebalance.model import TaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What `tidewheel run` decides for each of its workers; a program of the user's own needs none of it.

    Attributes:
        slot: Slot of the state directory to take; None takes the lowest free one.
        workers: Number of workers that share the tasks; slot n runs every task whose index modulo this is n.
        tasks: Exactly these tasks instead; needs `group_instance_id`.
        wait_for_topics: Wait for missing source topics instead of failing.
        create_topics: Create missing source topics (with the cluster's default partition count).

    >>> RunOptions(slot=1, workers=4).wait_for_topics
    False
    """

    slot: int | None = None
    workers: int = 1
    tasks: tuple[TaskId, ...] | None = None
    wait_for_topics: bool = False
    create_topics: bool = False
