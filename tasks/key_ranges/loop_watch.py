"""Loop watch: finds the coroutine that blocks an event loop; called from another thread.

A check appends a marker to the loop's queue, then reads the current
asyncio task. The marker precedes any next step, so the same task before an unreached marker is
still in the same step.

On a starved machine each step takes long, also of coroutines that only await. Time alone therefore
blames none: a coroutine uses the processor, or several checks find it in the same call.
"""

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Prefix of our modules, whose coroutines call the users'.
_OURS: Final = "tidewheel.tasks."
#: Prefixes of modules that never block: asyncio's calls only wait for the interpreter's lock.
_NEVER_BLOCK: Final = ("tidewheel.", "asyncio.")
#: Part of the processor time before a check that still counts at the next.
_DECAY: Final = 0.9


class LoopStep(NamedTuple):
    """Work of an asyncio task between two awaits, first seen at `since_s` (`time.monotonic`)."""

    task: asyncio.Task[Any]
    since_s: float


class Sight(NamedTuple):
    """Place where a check found the loop's thread in a step.

    `can_block`: it is in a call of user code, or of a library that this code calls.
    """

    code: CodeType
    instruction: int
    can_block: bool
    text: str


def _no_work() -> float:
    return 0.0


class LoopWatch:
    """Watch over one event loop.

    Args:
        worked_s: Returns the seconds that steps have occupied the loop.

    Attributes:
        cpu_share: Part of these seconds in which the loop's thread had the processor, lately.
        checks: Checks that found the loop in the step of `step`, without the first.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        worked_s: Callable[[], float] = _no_work,
    ) -> None:
        self._loop = loop
        self.thread = thread
        self._worked_s = worked_s
        self._mark: threading.Event | None = None
        self._last_step: LoopStep | None = None
        self.checks = 0
        self.cpu_share = 0.0
        #: Totals at the last marker, and recent amounts: processor time, and work (s).
        self._totals_s = (0.0, 0.0)
        self._recent_s = (0.0, 0.0)

    def check(self, now_s: float) -> None:
        if self._loop.is_closed():
            return
        if self.step() is not None:
            self.checks += 1
            return
        self.checks = 0
        if self._mark is None or self._mark.is_set():
            self._mark = threading.Event()
            self._loop.call_soon_threadsafe(self._pass_mark, self._mark)
        task = asyncio.current_task(self._loop)
        self._last_step = None if task is None else LoopStep(task, now_s)

    def _pass_mark(self, mark: threading.Event) -> None:
        mark.set()
        totals_s = time.thread_time(), self._worked_s()
        cpu_s, worked_s = (
            _DECAY * recent_s + now_s - before_s
            for recent_s, now_s, before_s in zip(
                self._recent_s, totals_s, self._totals_s, strict=True
            )
        )
        self._totals_s, self._recent_s = totals_s, (cpu_s, worked_s)
        self.cpu_share = min(cpu_s / worked_s, 1.0) if worked_s > 0 else 0.0

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
        sight = self.sight(step)
        return "" if sight is None else sight.text

    def sight(self, step: LoopStep) -> Sight | None:
        """Return the place that the loop's thread is at in a step; None after its end."""
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # there is no other way
        frame = frames.get(self.thread.ident or 0)
        sight = None if frame is None else _sight(frame)
        return sight if self.step() is step else None


def _sight(innermost: FrameType) -> Sight:
    users = _users_frame(innermost)
    frame = users or innermost
    can_block = users is not None and not _module(innermost).startswith(_NEVER_BLOCK)
    text = _text(frame.f_code, frame.f_lineno)
    return Sight(innermost.f_code, innermost.f_lasti, can_block, text)


def _users_frame(innermost: FrameType) -> FrameType | None:
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_flags & _ASYNC and not _module(frame).startswith(_OURS):
            return frame
        frame = frame.f_back
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _text(code: CodeType, line: int) -> str:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{line})"
