"""Call window: concurrent calls of one coroutine function for the records of a batch."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any

from tidewheel.tasks.processing.api.coroutines import call_limit, unexpected_cancellation

#: Result of a call, or its error.
Outcome = tuple[Any, BaseException | None]


class CallPlaces:
    """Places for concurrent calls, shared by the windows of all key ranges of a task.

    A window whose batch ends leaves its places to the others. Windows that wait get places in turn.

    Args:
        count: Number of places.
        ranges: Number of key ranges.

    Attributes:
        share: Places of one range if all have as many.
    """

    def __init__(self, count: int, ranges: int = 1) -> None:
        self.share = -(-count // ranges)
        self._count = count
        self._free = count
        self._waiting: deque[CallWindow] = deque()
        #: A loop that replaced a blocked one runs in another thread, so it has places of its own.
        self._on_loops: dict[asyncio.AbstractEventLoop, CallPlaces] = {}

    def on(self, loop: asyncio.AbstractEventLoop) -> "CallPlaces":
        places = self._on_loops.get(loop)
        return places or self._on_loops.setdefault(loop, CallPlaces(self._count))

    def begin(self, window: "CallWindow") -> None:
        """Start the window's calls while there are places; it gets further ones in its turn."""
        self._waiting.append(window)
        self._fill()

    def release(self, count: int = 1) -> None:
        self._free += count
        self._fill()

    def _fill(self) -> None:
        waiting = self._waiting
        while self._free and waiting:
            window = waiting.popleft()
            if window.start_next():
                self._free -= 1
                waiting.append(window)


class CallWindow:
    """Calls for the records of a batch, as many at a time as there are places.

    Calls of one key keep their order and never overlap. Records without a key have no order.

    Args:
        begin: Returns the coroutine of the record with this index.
        keys: Each record's key in its topic, or None.
    """

    def __init__(
        self,
        begin: Callable[[int], Coroutine[Any, Any, Any]],
        keys: Sequence[bytes | None],
        places: CallPlaces,
    ) -> None:
        self._begin = begin
        self._keys = keys
        self._places = places
        self._outcomes: list[Outcome] = [(None, None)] * len(keys)
        self._waiting = deque(range(len(keys)))
        #: Records that wait for a call of their key, by the keys of calls in flight.
        self._behind: dict[bytes, deque[int]] = {}
        self._tasks: dict[asyncio.Task[Any], int] = {}
        self._left = len(keys)

    @property
    def oldest(self) -> int | None:
        """Return the index of the first record whose call is in flight. Any thread may ask."""
        return min(list(self._tasks.values()), default=None)

    def has(self, task: asyncio.Task[Any]) -> bool:
        """Return True for the task of a call in flight. Any thread may ask."""
        return task in self._tasks

    async def run(self) -> list[Outcome]:
        """Make all calls; return their outcomes in the order of the records."""
        if not self._keys:
            return self._outcomes
        self._loop = asyncio.get_running_loop()
        self._limit = call_limit.get()
        self._context = copy_context()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._places = self._places.on(self._loop)
        self._places.begin(self)
        try:
            await self._done
        except asyncio.CancelledError:
            self._waiting.clear()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self._places.release(len(tasks))
            raise
        return self._outcomes

    def start_next(self) -> bool:
        """Start the next call whose key has none in flight; return False without one."""
        while self._waiting:
            index = self._waiting.popleft()
            key = self._keys[index]
            if key is not None:
                behind = self._behind.get(key)
                if behind is not None:
                    behind.append(index)
                    continue
                self._behind[key] = deque()
            self._start(index)
            return True
        return False

    def _start(self, index: int) -> None:
        # Another window's end may start this call: not in that one's context.
        context = self._context.copy()
        try:
            coroutine = context.run(self._begin, index)
        except BaseException as error:  # noqa: BLE001 - an outcome, as if it was raised at the first await
            coroutine = _raise(error)
        if self._limit is not None:
            coroutine = self._limit(coroutine)
        # Not `create_task`: the loop's task factory tracks tasks that coroutines leave behind.
        task = asyncio.Task(coroutine, loop=self._loop, context=context)
        self._tasks[task] = index
        task.add_done_callback(self._end, context=self._context)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if self._done.done():
            return  # cancelled
        index = self._tasks.pop(task)
        try:
            self._outcomes[index] = (task.result(), None)
        except asyncio.CancelledError as error:
            self._outcomes[index] = (None, unexpected_cancellation(error))
        except BaseException as error:  # noqa: BLE001 - the batch's own, which raises it again
            self._outcomes[index] = (None, error)
        self._left -= 1
        if not self._left:
            self._done.set_result(None)
        key = self._keys[index]
        if key is not None:
            behind = self._behind[key]
            if behind:
                self._start(behind.popleft())
                return
            del self._behind[key]
        self._places.release()


def is_window(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Return True for a window's own coroutine: its calls count as in flight, it does not."""
    return getattr(coroutine, "cr_code", None) is CallWindow.run.__code__


async def _raise(error: BaseException) -> None:
    raise error
