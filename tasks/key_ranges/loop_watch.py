"""Which step of which coroutine keeps a loop from turning, and since when; asked from another thread.

Nothing is noted per record. A look leaves a mark at the end of the loop's queue and then sees which asyncio task runs. Who
ends a step comes behind the mark before the next one; so a task that is seen again while the mark has not been reached has
been at the same step all the time.
"""

import asyncio
import inspect
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Coroutines of these are around those of users.
_OURS: Final = "tidewheel.tasks."


class Step(NamedTuple):
    """What a task does between two awaits.

    Attributes:
        task: The task.
        since_s: When it was first seen at it (`time.monotonic`): it has been so for at least as long.
    """

    task: asyncio.Task[Any]
    since_s: float


class LoopWatch:
    """Watches one loop. One thread calls `look`.

    Attributes:
        thread: In which the loop runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self.thread = thread
        self._mark: threading.Event | None = None
        self._seen: Step | None = None

    def look(self, now_s: float) -> None:
        """See which step the loop is at."""
        step = self.step()
        if step is not None or self._loop.is_closed():
            return
        if self._mark is None or self._mark.is_set():
            self._mark = threading.Event()
            self._loop.call_soon_threadsafe(self._mark.set)
        task = asyncio.current_task(self._loop)
        self._seen = None if task is None else Step(task, now_s)

    def step(self) -> Step | None:
        """Return the step that the loop was at when it was looked at, if it still is."""
        seen, mark = self._seen, self._mark
        if seen is None or mark is None:
            return None
        # In this order: the mark has not been reached when the task is seen.
        is_there = asyncio.current_task(self._loop) is seen.task
        return seen if is_there and not mark.is_set() else None

    def place(self, step: Step) -> str:
        """Return where a step is in the user's code, as "Shop.process (shop.py:12)"; empty if it has ended meanwhile."""
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # there is no other way
        frame = frames.get(self.thread.ident or 0)
        place = "" if frame is None else _place(frame)
        return place if self.step() is step else ""


def _place(innermost: FrameType) -> str:
    """Return the innermost coroutine that is not ours, or the innermost function where there is none."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_flags & _ASYNC and not _is_ours(frame):
            return _text(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return _text(innermost.f_code, innermost.f_lineno)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_OURS)


def _text(code: CodeType, line: int) -> str:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{line})"
