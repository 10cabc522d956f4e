"""Erasure orders: delete one key from a store, commit, and answer with the tombstones' offsets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.orders import EraseRows, RowsErased
from tidewheel.tasks.commit.commit_round import CommitRound
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.task.task import Task

#: Maximum answers kept for repeated orders.
_REPEATABLE_ANSWERS_MAX: Final = 100
#: Maximum orders that wait for key ranges; others are dropped, and the group sends them again.
_PENDING_MAX: Final = 100


class _Pending(msgspec.Struct, frozen=True):
    """Erasure order in progress.

    Attributes:
        position: Position of the changelog before the deletion.
        is_alone: True if the commit adds only tombstones to the changelog (expired rows' too), so
            the answer names exactly their offsets.
    """

    order: EraseRows
    task: Task
    erasure: Erasure
    position: int
    is_alone: bool


class Erasures:
    """Erasure orders of one worker; its loop calls it.

    The group sends an unanswered order again, so uncommitted orders are not stored.
    """

    def __init__(
        self,
        answers: dict[str, RowsErased],
        running: Mapping[TaskId, Task],
        commits: CommitRound,
        commit: Callable[[], None],
        report: Callable[[RowsErased], None],
    ) -> None:
        self._answers = answers
        self._running = running
        self._commits = commits
        self._commit = commit
        self._report = report
        self._pending: dict[str, _Pending] = {}

    def begin(self, orders: Iterable[EraseRows]) -> None:
        """Carry out new orders for tasks that run under the order's epoch."""
        for order in orders:
            answer = self._answers.get(order.request)
            if answer is not None:
                self._report(answer)
            elif order.request not in self._pending and len(self._pending) < _PENDING_MAX:
                self._erase(order)
        self.end()

    def _erase(self, order: EraseRows) -> None:
        task_id = TaskId.parse(order.task)
        task = self._running.get(task_id)
        if task is None or self._commits.epochs[task_id] != order.task_epoch:
            return
        # Commit earlier work first: the next commit then writes only tombstones to the changelog,
        # and the answer names their offsets.
        self._commit()
        if self._running.get(task_id) is not task:
            return
        position = _position(task, order.store)
        erasure = Erasure(order.store, order.key, order.tail)
        task.erase(erasure)
        # A key range deletes later, while others process records: their changes join its commit.
        self._pending[order.request] = _Pending(
            order,
            task,
            erasure,
            position,
            # Owners of other shards write the same changelog meanwhile.
            is_alone=erasure.is_over and task_id.shard.is_whole,
        )
        if erasure.is_over:
            self.end()

    def end(self) -> None:
        if not self._pending:
            return
        for request, pending in list(self._pending.items()):
            if self._running.get(pending.task.task_id) is not pending.task:
                del self._pending[request]  # the task's next owner answers
        ended = [pending for pending in self._pending.values() if pending.erasure.is_over]
        if any(pending.erasure.rows for pending in ended):
            self._commit()
        for pending in ended:
            del self._pending[pending.order.request]
            self._answer(pending)

    def _answer(self, done: _Pending) -> None:
        first = last = -1
        changelog = None
        if done.erasure.rows:
            changelog = done.task.stores.changelog(done.order.store)
        if changelog is not None and changelog.whole not in self._commits.unknown:
            last = self._commits.reached[changelog.whole] - 1
            first = done.position
            if done.is_alone:
                first = last - self._commits.written[changelog] + 1
        answer = RowsErased(
            request=done.order.request,
            task=done.order.task,
            rows=done.erasure.rows,
            first=first,
            last=last,
            problem=done.erasure.problem,
        )
        self._answers[answer.request] = answer
        while len(self._answers) > _REPEATABLE_ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._report(answer)


def _position(task: Task, store: str) -> int:
    if store not in task.stores.specs:
        return -1
    position = task.stores.position(store)
    return -1 if position is None else position.offset
