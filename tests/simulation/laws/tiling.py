"""Tiling invariants (25, 26) of shards, on texts and numbers alone."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from tidewheel.rebalance.protocol.records import GroupRecord, TargetRecord, TaskRecord, TaskRow

_OWNED = ("RUNNING", "REVOKING", "FENCE_WAIT")


def expanded(record: GroupRecord) -> dict[str, TaskRow]:
    """Return the rows of whole tasks and of shards.

    >>> list(expanded(GroupRecord(leader_epoch=1, tasks={"0_0": TaskRow(shards=2), "1_0": TaskRow()})))
    ['0_0/0of2', '0_0/1of2', '1_0']
    """
    return {
        task if row.shards == 1 else f"{task}/{number}of{row.shards}": row
        for task, row in record.tasks.items()
        for number in range(row.shards)
    }


def interval(task: str) -> tuple[Fraction, Fraction]:
    """Return the share of the hashes that a task has.

    >>> interval("0_3/1of4"), interval("0_3")
    ((Fraction(1, 4), Fraction(1, 2)), (Fraction(0, 1), Fraction(1, 1)))
    """
    number, _, count = (task.partition("/")[2] or "0of1").partition("of")
    return Fraction(int(number), int(count)), Fraction(int(number) + 1, int(count))


def not_tiled(target: TargetRecord, about: GroupRecord) -> str:
    """Return a partition whose target does not tile all hashes, or "" (invariant 25)."""
    for task in about.tasks:
        edge = Fraction(0)
        for first, end in sorted(map(interval, _of(task, target.all_owners))):
            if first != edge:
                break
            edge = end
        if edge != 1:
            return f"the owners of {task} do not tile its hashes: {_of(task, target.all_owners)}"
    return ""


def overlapping(task: str, tasks: Mapping[str, TaskRecord]) -> str:
    """Return another owned task with some of the same hashes, or "" (invariant 26)."""
    first, end = interval(task)
    for other in _of(task.partition("/")[0], tasks):
        other_first, other_end = interval(other)
        if (
            other != task
            and tasks[other].phase in _OWNED
            and first < other_end
            and other_first < end
        ):
            return f"{other} is {tasks[other].phase} of {tasks[other].owner}"
    return ""


def _of(task: str, others: Iterable[str]) -> list[str]:
    return [other for other in others if other.partition("/")[0] == task]
