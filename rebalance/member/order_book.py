"""Order book: derives a worker's orders from the group log."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.protocol.group import Group, IntermediateAssignment
from tidewheel.rebalance.protocol.orders import AnyOrder, DropCopy, KeepCopy, ReleaseTask, RunTask
from tidewheel.rebalance.protocol.records import Copy, TaskRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus

_STANDBY: Final = TaskRole.STANDBY.value
_LEARNER: Final = TaskRole.LEARNER.value
_RUNNING: Final = TaskPhase.RUNNING
_REVOKING: Final = TaskPhase.REVOKING


class OrderBook:
    """Orders to one incarnation's worker: each is sent once, and again if its content changes."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._sent_orders: dict[TaskId, RunTask | ReleaseTask | KeepCopy] = {}
        #: Log state that the sent orders come from; while it is the same objects, none is new.
        self._sent_for: tuple[IntermediateAssignment, Mapping[TaskId, TaskRecord]] | None = None

    def orders(self, group: Group) -> Iterator[AnyOrder]:
        if self._is_current(group):
            return
        wanted = dict(self._wanted(group))
        for task, order in sorted(self._sent_orders.items()):
            if task not in wanted and isinstance(order, KeepCopy):
                yield DropCopy(task=str(task))
        fresh = {
            task: order for task, order in wanted.items() if self._sent_orders.get(task) != order
        }
        self._sent_orders, self._sent_for = wanted, (group.step, group.states)
        yield from sorted(fresh.values(), key=_urgency)

    def corrections(self, group: Group, rows: Iterable[TaskStatus]) -> Iterator[AnyOrder]:
        wanted = self._sent_orders if self._is_current(group) else dict(self._wanted(group))
        for row in rows:
            if row.role != TaskRole.ACTIVE and TaskId.parse(row.task) not in wanted:
                yield DropCopy(task=row.task)

    def _is_current(self, group: Group) -> bool:
        sent_for = self._sent_for
        return sent_for is not None and sent_for[0] is group.step and sent_for[1] is group.states

    def _wanted(self, group: Group) -> Iterator[tuple[TaskId, RunTask | ReleaseTask | KeepCopy]]:
        step = group.step
        own_copies: dict[TaskId, tuple[Copy, str]] = {
            task: (copy, _STANDBY)
            for task, copies in step.standbys.items()
            for copy in copies
            if copy.incarnation == self._incarnation
        }
        own_copies |= {
            task: (copy, _LEARNER)
            for task, copy in step.learners.items()
            if copy.incarnation == self._incarnation
        }
        for task, (copy, role) in own_copies.items():
            yield task, KeepCopy(task=str(task), role=role, learn_epoch=copy.learn_epoch)
        for task, state in group.owned(self._incarnation).items():
            copy_and_role = own_copies.get(task)
            keep = 0 if copy_and_role is None else copy_and_role[0].learn_epoch
            order = _owner_order(state, keep)
            if order is not None:
                yield task, order


def _owner_order(state: TaskRecord, keep: int) -> RunTask | ReleaseTask | None:
    if state.phase == _RUNNING:
        return RunTask(
            task=state.task,
            task_epoch=state.task_epoch,
            input=state.input,
            changelog_end=state.changelog_end,
        )
    if state.phase == _REVOKING:
        return ReleaseTask(task=state.task, task_epoch=state.task_epoch, keep=keep)
    return None


def _urgency(order: AnyOrder) -> int:
    return (ReleaseTask, RunTask, KeepCopy).index(type(order))
