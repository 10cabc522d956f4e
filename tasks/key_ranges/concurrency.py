"""Concurrency limit of a range pool: few ranges run if they compute, all if they wait. Pure.

Calls that compute in Python gain nothing from more threads: one interpreter runs them in turn. Each
waiting thread delays the worker's own thread, so commits come late. A pool starts with two ranges
and measures the share of a processor that they want: used time, plus time in the run queue.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Final

#: Buffer size for the three numbers in a thread's schedstat file.
_SIZE = 80


#: Smallest limit of ranges at work: one computes while the other waits for data.
MIN_CONCURRENCY: Final = 2
#: Ranges of a trial that together use and queue for less than this share of a processor mostly wait
#: for I/O: all threads may run.
_COMPUTES: Final = 0.5
#: Twice the threads stay if they use more than this multiple of the former processor share.
_MORE: Final = 1.25
#: Ranges that together use more processors than this compute outside the GIL: all threads may run.
_OUTSIDE: Final = 1.4
#: Run-queue time counts as wanted processor time, up to this multiple of used time. A thread that
#: queues longer gets its processor late after each I/O answer: more threads help.
_BESIDE: Final = 4.0
#: Outside trials, all threads may run once the worker uses and queues for less than this share of a
#: processor.
_ROOM: Final = 0.5
#: Above this mean share, one processor counts as fully used.
_FULL: Final = 0.85
#: Seconds of full use, or with ranges waiting for threads, before a new trial of the limit.
_AGAIN_S: Final = 2.0
#: Maximum of these seconds, which most trials double.
_AGAIN_MAX_S: Final = 300.0
#: Measured seconds per trial; in less time a thread may by chance get no processor.
_LOOK_S: Final = 0.1
#: Seconds with more or fewer working ranges than a trial's limit, after which the trial ends and
#: restores the former limit.
_PUT_OFF_S: Final = 0.25
#: Weight of the newest processor share in the moving average.
_NEWEST: Final = 0.1


@dataclass(slots=True)
class _Look:
    """Trial of one limit of concurrent ranges, with its processor seconds so far.

    Attributes:
        fewer: Smaller limit to return to if this one does not help; 0 at the smallest.
        enough: Number of processors (such as 0.5) above whose use this limit stays.
        put_off_s: Seconds in which too few or too many ranges worked to judge the limit.
    """

    fewer: int = 0
    enough: float = 0.0
    used_s: float = 0.0
    wanted_s: float = 0.0
    ranges_wanted_s: float = 0.0
    elapsed_s: float = 0.0
    put_off_s: float = 0.0


class ConcurrencyLimit:
    """Limit of concurrently working ranges.

    >>> concurrency = ConcurrencyLimit(64)
    >>> concurrency.limit
    2
    >>> for _ in range(2):  # two threads that wait use 5 % of a processor
    ...     concurrency.note(0.05, ranges=0.05, waited=0.0, loop=0.05, at_work=2, more_wait=True)
    >>> concurrency.limit
    64
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._narrowest = min(MIN_CONCURRENCY, most)
        self.limit = self._narrowest
        self._mean = 0.0
        self._look: _Look | None = _Look()
        #: Limit before the trial, restored if the trial ends early.
        self._before = most
        #: Seconds with a reason for a new trial, which starts at `_patience_s`.
        self._reason_s = 0.0
        self._patience_s = _AGAIN_S
        self._room_s = 0.0

    def note(
        self,
        elapsed_s: float,
        *,
        ranges: float,
        waited: float,
        loop: float,
        at_work: int,
        more_wait: bool,
    ) -> None:
        """Record a measurement of `elapsed_s` seconds and adapt the limit.

        Args:
            ranges: Processors used by the ranges' threads, such as 0.5 or 2.
            waited: Mean number of these threads in the run queue.
            loop: Processor share of the worker's own thread.
            at_work: Number of working ranges at start or end, the larger one.
            more_wait: True if further ranges wait for a thread.
        """
        ranges_wanted = ranges + min(waited, _BESIDE * ranges)
        wanted = ranges_wanted + loop
        self._mean += _NEWEST * (wanted - self._mean)
        self._room_s = self._room_s + elapsed_s if more_wait and wanted < _ROOM else 0.0
        if ranges > _OUTSIDE:
            self._open()
        elif self._look is not None:
            if self._counts(self._look, elapsed_s, at_work, more_wait=more_wait):
                self._look.used_s += (ranges + loop) * elapsed_s
                self._look.wanted_s += wanted * elapsed_s
                self._look.ranges_wanted_s += ranges_wanted * elapsed_s
                self._look.elapsed_s += elapsed_s
                if self._look.elapsed_s >= _LOOK_S:
                    self._judge(self._look)
        elif self._room_s >= _LOOK_S:
            self._open()
        elif (more_wait and self.limit < self._most) or (
            self._mean > _FULL and self.limit > self._narrowest
        ):
            self._reason_s += elapsed_s
            if self._reason_s >= self._patience_s:
                self._before, self.limit = self.limit, self._narrowest
                self._look = _Look()
        else:
            self._reason_s = 0.0

    def _counts(self, look: _Look, elapsed_s: float, at_work: int, *, more_wait: bool) -> bool:
        """Return True if enough ranges worked to judge; else end the trial after `_PUT_OFF_S`."""
        if at_work <= self.limit and (more_wait or 0 < look.fewer < at_work):
            return True
        if at_work > self.limit or look.fewer:
            look.put_off_s += elapsed_s
            if look.put_off_s > _PUT_OFF_S:
                self._settle(look.fewer or self._before)
        return False

    def _judge(self, look: _Look) -> None:
        used, wanted = look.used_s / look.elapsed_s, look.wanted_s / look.elapsed_s
        if not look.fewer and look.ranges_wanted_s < _COMPUTES * look.elapsed_s:
            self._settle(self._most)
        elif look.fewer and used <= look.enough:
            self._settle(look.fewer)
        elif self.limit == self._most:
            self._settle(self._most)
        else:  # one interpreter wants at most one processor
            enough = _MORE * max(used, min(wanted, 1.0))
            self._look = _Look(fewer=self.limit, enough=enough)
            self.limit = min(2 * self.limit, self._most)

    def _open(self) -> None:
        if self._look is not None:
            self._settle(self._most)
            return
        if self.limit == self._narrowest:
            self._patience_s = _AGAIN_S
        self.limit = self._most
        self._reason_s = 0.0

    def _settle(self, limit: int) -> None:
        """End a trial; the next waits longer, except after a return to the smallest limit."""
        if limit == self._narrowest < self._before:
            self._patience_s = _AGAIN_S
        else:
            self._patience_s = min(2 * self._patience_s, _AGAIN_MAX_S)
        self.limit = limit
        self._look = None
        self._reason_s = 0.0


@cache
def _library() -> ctypes.PyDLL | None:
    """Return the C library, whose calls keep the GIL; None except on Linux."""
    if sys.platform != "linux":
        return None
    library = ctypes.PyDLL(None)
    library.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
    library.read.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    library.read.restype = ctypes.c_ssize_t
    return library


def waited_s(native_id: int) -> float | None:
    """Return the run-queue seconds of a thread; None if unavailable or the thread ended."""
    library = _library()
    if library is None:
        return None
    path = f"/proc/self/task/{native_id}/schedstat".encode()
    descriptor: int = library.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    text = ctypes.create_string_buffer(_SIZE)
    size: int = library.read(descriptor, text, _SIZE)
    library.close(descriptor)
    return int(text.raw[:size].split()[1]) / 1e9 if size > 0 else None
