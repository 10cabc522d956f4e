"""Loop watch: finds the coroutine that blocks an event loop; called from another thread.

A check appends a marker to the loop's queue, then reads the current
asyncio task. The marker precedes any next step, so the same task before an unreached marker is
still in the same step.
"""

import asyncio
import inspect
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Prefix of our modules, whose coroutines call the users'.
_OURS: Final = "tidewheel.tasks."


class LoopStep(NamedTuple):
    """Work of an asyncio task between two awaits, first seen at `since_s` (`time.monotonic`)."""

    task: asyncio.Task[Any]
    since_s: float


class LoopWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self.thread = thread
        self._mark: threading.Event | None = None
        self._last_step: LoopStep | None = None

    def check(self, now_s: float) -> None:
        step = self.step()
        if step is not None or self._loop.is_closed():
            return
        if self._mark is None or self._mark.is_set():
            self._mark = threading.Event()
            self._loop.call_soon_threadsafe(self._mark.set)
        task = asyncio.current_task(self._loop)
        self._last_step = None if task is None else LoopStep(task, now_s)

    def step(self) -> LoopStep | None:
        """Return the recorded step if the loop is still in it."""
        last_step, mark = self._last_step, self._mark
        if last_step is None or mark is None:
            return None
        # Read the task first: a mark unset afterwards proves that its step was not over.
        is_running = asyncio.current_task(self._loop) is last_step.task
        return last_step if is_running and not mark.is_set() else None

    def place(self, step: LoopStep) -> str:
        """Return the step's user code, as "Shop.process (shop.py:12)"; empty after its end."""
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # there is no other way
        frame = frames.get(self.thread.ident or 0)
        place = "" if frame is None else _place(frame)
        return place if self.step() is step else ""


def _place(innermost: FrameType) -> str:
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
