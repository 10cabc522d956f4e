"""What a worker has been ordered, and what it still has to be ordered for the group log to come true; pure."""

from collections.abc import Iterable, Iterator

from rebalance.group import Group
from rebalance.model import TaskId, TaskPhase, TaskRole
from rebalance.orders import AnyOrder, DropCopy, KeepCopy, ReleaseTask, RunTask
from rebalance.records import Copy, TaskRecord
from rebalance.task_status import TaskStatus


class OrderBook:
    """The orders of one incarnation: each is given once, and again only if what it says changed."""

    def __init__(self, incarnation: str) -> None:
        """Begin with a worker that was ordered nothing."""
        self._incarnation = incarnation
        self._given: dict[TaskId, RunTask | ReleaseTask | KeepCopy] = {}

    def orders(self, group: Group) -> Iterator[AnyOrder]:
        """Yield what the log asks for and was not ordered yet: what to give up first, then what to take on."""
        wanted = dict(self._wanted(group))
        for task, given in sorted(self._given.items()):
            if task not in wanted and isinstance(given, KeepCopy):
                yield DropCopy(task=str(task))
        fresh = {task: order for task, order in wanted.items() if self._given.get(task) != order}
        self._given = wanted
        yield from sorted(fresh.values(), key=_urgency)

    def corrections(self, group: Group, rows: Iterable[TaskStatus]) -> Iterator[AnyOrder]:
        """Yield orders to drop the copies that a worker says it keeps though the log knows nothing of them."""
        wanted = dict(self._wanted(group))
        for row in rows:
            if row.role != TaskRole.ACTIVE and TaskId.parse(row.task) not in wanted:
                yield DropCopy(task=row.task)

    def _wanted(self, group: Group) -> Iterator[tuple[TaskId, RunTask | ReleaseTask | KeepCopy]]:
        """Yield what the log asks of the worker, one order a task: owning goes before keeping a copy."""
        step = group.step
        mine: dict[TaskId, tuple[Copy, TaskRole]] = {
            task: (copy, TaskRole.STANDBY)
            for task, copies in step.standbys.items()
            for copy in copies
            if copy.incarnation == self._incarnation
        }
        mine |= {
            task: (copy, TaskRole.LEARNER)
            for task, copy in step.learners.items()
            if copy.incarnation == self._incarnation
        }
        for task, (copy, role) in mine.items():
            yield task, KeepCopy(task=str(task), role=role.value, learn_epoch=copy.learn_epoch)
        for task, state in group.owned(self._incarnation).items():
            kept = mine.get(task)
            keep = 0 if kept is None else kept[0].learn_epoch
            order = _owner_order(state, keep)
            if order is not None:
                yield task, order


def _owner_order(state: TaskRecord, keep: int) -> RunTask | ReleaseTask | None:
    """Return what an owner has to do; nothing while it is being fenced."""
    if state.phase == TaskPhase.RUNNING:
        return RunTask(
            task=state.task,
            task_epoch=state.task_epoch,
            input=state.input,
            changelog_end=state.changelog_end,
        )
    if state.phase == TaskPhase.REVOKING:
        return ReleaseTask(task=state.task, task_epoch=state.task_epoch, keep=keep)
    return None


def _urgency(order: AnyOrder) -> int:
    return (ReleaseTask, RunTask, KeepCopy).index(type(order))
