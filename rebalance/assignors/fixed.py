"""Fixed assignment: each process derives its tasks from its own settings."""

from collections.abc import Iterable

from tidewheel.rebalance.model import TaskId


def fixed_tasks(tasks: Iterable[TaskId], *, slot: int, workers: int) -> frozenset[TaskId]:
    """Return the tasks of worker number `slot`: without a group, it runs every `workers`-th one.

    >>> sorted(map(str, fixed_tasks([TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)], slot=0, workers=2)))
    ['0_0', '0_2']
    """
    if not 0 <= slot < workers:
        raise ValueError(f"slot {slot} is not among {workers} workers")
    return frozenset(task for index, task in enumerate(sorted(tasks)) if index % workers == slot)
