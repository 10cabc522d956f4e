"""Call window: concurrent calls of one coroutine function for the records of a batch."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from tidewheel.tasks.processing.api.coroutines import call_limit, unexpected_cancellation

#: Result of a call, or its error.
Outcome = tuple[Any, BaseException | None]


class CallWindow:
    """Calls for the records of a batch, of which at most `width` are in flight.

    Calls of one key keep their order and never overlap. Records without a key have no order.

    Args:
        begin: Returns the coroutine of the record with this index.
        keys: Each record's key in its topic, or None.
    """

    def __init__(
        self,
        begin: Callable[[int], Coroutine[Any, Any, Any]],
        keys: Sequence[bytes | None],
        width: int,
    ) -> None:
        self._begin = begin
        self._keys = keys
        self._width = width
        self._outcomes: list[Outcome] = [(None, None)] * len(keys)
        self._waiting = deque(range(len(keys)))
        #: Keys of calls in flight.
        self._busy: set[bytes] = set()
        #: Records that wait for a call of their key.
        self._behind: dict[bytes, deque[int]] = {}
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    @property
    def oldest(self) -> int | None:
        """Return the index of the first record whose call is in flight. Any thread may ask."""
        return min(list(self._tasks), default=None)

    def has(self, task: asyncio.Task[Any]) -> bool:
        """Return True for the task of a call in flight. Any thread may ask."""
        return task in list(self._tasks.values())

    async def run(self) -> list[Outcome]:
        """Make all calls; return their outcomes in the order of the records."""
        self._loop = asyncio.get_running_loop()
        self._limit = call_limit.get()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._fill()
        try:
            await self._done
        except asyncio.CancelledError:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            raise
        return self._outcomes

    def _fill(self) -> None:
        while self._waiting and len(self._tasks) < self._width:
            index = self._waiting.popleft()
            key = self._keys[index]
            if key in self._busy:
                self._behind.setdefault(key, deque()).append(index)
                continue
            if key is not None:
                self._busy.add(key)
            self._start(index)
        if not self._tasks:
            self._done.set_result(None)

    def _start(self, index: int) -> None:
        try:
            coroutine = self._begin(index)
        except BaseException as error:  # noqa: BLE001 - an outcome, as if it was raised at the first await
            coroutine = _raise(error)
        if self._limit is not None:
            coroutine = self._limit(coroutine)
        # Not `create_task`: the loop's task factory tracks tasks that coroutines leave behind.
        self._tasks[index] = task = asyncio.Task(coroutine, loop=self._loop)
        task.add_done_callback(partial(self._end, index))

    def _end(self, index: int, task: asyncio.Task[Any]) -> None:
        if self._done.done():
            return  # cancelled
        try:
            self._outcomes[index] = (task.result(), None)
        except asyncio.CancelledError as error:
            self._outcomes[index] = (None, unexpected_cancellation(error))
        except BaseException as error:  # noqa: BLE001 - the batch's own, which raises it again
            self._outcomes[index] = (None, error)
        del self._tasks[index]
        key = self._keys[index]
        if key is not None:
            behind = self._behind.get(key)
            if behind:
                self._start(behind.popleft())
            else:
                self._busy.discard(key)
                self._behind.pop(key, None)
        self._fill()


def is_window(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Return True for a window's own coroutine: its calls count as in flight, it does not."""
    return getattr(coroutine, "cr_code", None) is CallWindow.run.__code__


async def _raise(error: BaseException) -> None:
    raise error
