"""Queries of uncommitted rows: any thread asks, the owners of the rows answer between batches.

Only their owner may read the buffers: the worker's loop, or the thread of a key range.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar, cast

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.buffers.query_sources import UncommittedRows, not_running
from tidewheel.state_stores.errors import InvalidStateStoreError, QueryTimeoutError
from tidewheel.tasks.calls.long_calls import call_of
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.question import Question

#: Seconds after a query in which the loop waits less for input: its caller often asks again.
_LATELY_S: Final = 1.0

T = TypeVar("T")


class QuestionReceiver(Protocol):
    def answer(self, question: Question) -> None: ...


class Questions:
    """Queue of queries of uncommitted rows, for one worker's loop."""

    def __init__(self, wake: Callable[[], None], *, pool: Callable[[], RangePool | None]) -> None:
        self._wake = wake
        self._pool = pool
        self._lock = threading.Lock()
        self._closed = False
        self._loop = 0
        self._came_s = -math.inf
        #: Queue; only the loop removes questions.
        self.waiting: deque[tuple[TaskId, Question]] = deque()

    def ask(
        self,
        task_id: TaskId,
        store: str,
        timeout_s: float,
        function: Callable[[UncommittedRows], T],
        /,
    ) -> Callable[[], list[T]]:
        """Call a function with the uncommitted rows of a task's store.

        Returns:
            A function that waits for the answers. It raises `QueryTimeoutError` after `timeout_s`
            from the call of `ask`, and `InvalidStateStoreError` if the task no longer runs here.
        """
        pool = self._pool()
        if threading.get_ident() == self._loop or (pool is not None and pool.is_inside()):
            raise InvalidStateStoreError(
                f"store {store}: a thread of the worker can't wait for its own uncommitted rows; use "
                "context.get_state_store() in a processor, or ask with isolation_level='read_committed'"
            )
        question = Question(store, function)
        with self._lock:
            if self._closed:
                raise not_running(store)
            self.waiting.append((task_id, question))
        self._wake()
        until_s = time.monotonic() + timeout_s

        def answers() -> list[T]:
            parts = question.wait(until_s)
            if parts is None:
                raise self._late(store, timeout_s)
            return cast("list[T]", parts)

        return answers

    def _late(self, store: str, timeout_s: float) -> QueryTimeoutError:
        pool = self._pool()
        range_threads = [] if pool is None else pool.long_turns()
        calls = [call_of(thread) for thread in (*range_threads, self._loop)]
        call = next((running_call for running_call in calls if running_call is not None), None)
        busy = (
            "it waits for a commit or for the brokers" if call is None else f"it is in {call.text}"
        )
        return QueryTimeoutError(
            f"store {store}: the worker did not give its uncommitted rows within {timeout_s * 1000:,.0f} ms "
            f"(interactive_query_timeout_ms); {busy}; ask again, raise the setting, or ask with "
            "isolation_level='read_committed', which waits for no worker"
        )

    # -- the loop --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Register the calling thread as the loop's."""
        self._loop = threading.get_ident()

    @property
    def are_frequent(self) -> bool:
        """Return True if a question came recently: another is likely."""
        return time.monotonic() - self._came_s < _LATELY_S

    def pass_on(self, running: Mapping[TaskId, QuestionReceiver]) -> None:
        if not self.waiting:
            return
        self._came_s = time.monotonic()
        while self.waiting:
            task_id, question = self.waiting.popleft()
            task = running.get(task_id)
            if task is None:
                question.fail(not_running(question.store))
            elif not question.is_over:
                task.answer(question)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.pass_on({})
