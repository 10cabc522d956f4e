"""Orders to delete a key from a store: carried out between slices, committed at once, answered with the tombstones' offsets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.orders import EraseRows, RowsErased
from tidewheel.tasks.commit.commit_round import CommitRound
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.task.task import Task

#: Answers that are kept for orders that come again.
_ANSWERS_MAX: Final = 100
#: Orders that wait for key ranges; more are dropped, and come again.
_PENDING_MAX: Final = 100


class _Pending(msgspec.Struct, frozen=True):
    """An order that is being carried out.

    Attributes:
        position: That of the changelog before it.
        is_alone: Whether the next commit has nothing else for the changelog but what time deletes there.
    """

    order: EraseRows
    task: Task
    erasure: Erasure
    position: int
    is_alone: bool


class Erasures:
    """The deletions of one worker, until its tasks begin again. Its loop calls it.

    An order that was not answered comes again, so nothing of what is not committed has to be kept.

    Args:
        answers: By request; they outlive this object.
        running: The tasks that process.
        commits: What they commit.
        commit: Commits all that they have done.
        report: Sends an answer to the group.
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
        """Carry out the orders that are new, for tasks that run under the epoch they name."""
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
        # A deletion has a commit of its own, so that its offsets are known.
        self._commit()
        if self._running.get(task_id) is not task:
            return
        position = _position(task, order.store)
        erasure = Erasure(order.store, order.key, order.tail)
        task.erase(erasure)
        # With key ranges others go on, and another commit may come before this is looked at again.
        self._pending[order.request] = _Pending(
            order, task, erasure, position, is_alone=erasure.is_over
        )
        if erasure.is_over:
            self.end()

    def end(self) -> None:
        """Commit the deletions that are over, and answer."""
        if not self._pending:
            return
        for request, each in list(self._pending.items()):
            if self._running.get(each.task.task_id) is not each.task:
                del self._pending[request]  # its next owner is asked
        over = [each for each in self._pending.values() if each.erasure.is_over]
        if any(each.erasure.rows for each in over):
            self._commit()
        for each in over:
            del self._pending[each.order.request]
            self._answer(each)

    def _answer(self, done: _Pending) -> None:
        first = last = -1
        changelog = None
        if done.erasure.rows:
            changelog = done.task.stores.changelog(done.order.store)
        if changelog is not None and changelog not in self._commits.unknown:
            last = self._commits.reached[changelog] - 1
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
        while len(self._answers) > _ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._report(answer)


def _position(task: Task, store: str) -> int:
    """Return how far a store's changelog is, as its data on disk tell; -1 if they don't, or if there is no such store."""
    if store not in task.stores.specs:
        return -1
    position = task.stores.position(store)
    return -1 if position is None else position.offset
