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
_SCHEDSTAT_BYTES = 80


#: Smallest limit of ranges at work: one computes while the other waits for data.
MIN_CONCURRENCY: Final = 2
#: Ranges of a trial that together use and queue for less than this share of a processor mostly wait
#: for I/O: all threads may run.
_COMPUTE_SHARE: Final = 0.5
#: Twice the threads stay if they use more than this multiple of the former processor share.
_USE_GAIN_MIN: Final = 1.25
#: Ranges that together use more processors than this compute outside the GIL: all threads may run.
_OUTSIDE_GIL: Final = 1.4
#: Run-queue time counts as wanted processor time, up to this multiple of used time. A thread that
#: queues longer gets its processor late after each I/O answer: more threads help.
_QUEUE_RATIO_MAX: Final = 4.0
#: Outside trials, all threads may run once the worker uses and queues for less than this share of a
#: processor.
_SPARE_SHARE: Final = 0.5
#: Above this mean share, one processor counts as fully used.
_FULL_SHARE: Final = 0.85
#: Seconds of full use, or with ranges waiting for threads, before a new trial of the limit.
_RETRIAL_S: Final = 2.0
#: Maximum of these seconds, which most trials double.
_RETRIAL_MAX_S: Final = 300.0
#: Measured seconds per trial; in less time a thread may by chance get no processor.
_TRIAL_S: Final = 0.1
#: Seconds with more or fewer working ranges than a trial's limit, after which the trial ends and
#: restores the former limit.
_UNJUDGED_MAX_S: Final = 0.25
#: Weight of the newest processor share in the moving average.
_NEWEST_WEIGHT: Final = 0.1


@dataclass(slots=True)
class _Trial:
    """Trial of one limit of concurrent ranges, with its processor seconds so far.

    Attributes:
        smaller_limit: Limit to return to if this one does not help, or 0.
        needed_use: Processors in use (such as 0.5) above which this limit stays.
        unjudged_s: Seconds in which too few or too many ranges worked to judge the limit.
    """

    smaller_limit: int = 0
    needed_use: float = 0.0
    used_s: float = 0.0
    wanted_s: float = 0.0
    ranges_wanted_s: float = 0.0
    elapsed_s: float = 0.0
    unjudged_s: float = 0.0


class ConcurrencyLimit:
    """Limit of concurrently working ranges.

    >>> concurrency = ConcurrencyLimit(64)
    >>> concurrency.limit
    2
    >>> for _ in range(2):  # two threads that wait use 5 % of a processor
    ...     concurrency.adapt(0.05, ranges=0.05, waited=0.0, loop=0.05, at_work=2, more_wait=True)
    >>> concurrency.limit
    64
    """

    def __init__(self, most: int) -> None:
        self._limit_max = most
        self._limit_min = min(MIN_CONCURRENCY, most)
        self.limit = self._limit_min
        self._mean_use = 0.0
        self._trial: _Trial | None = _Trial()
        #: Limit before the trial, restored if the trial ends early.
        self._former_limit = most
        #: Seconds with a reason for a new trial, which starts at `_patience_s`.
        self._reason_s = 0.0
        self._patience_s = _RETRIAL_S
        self._spare_s = 0.0

    def adapt(
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
        ranges_wanted = ranges + min(waited, _QUEUE_RATIO_MAX * ranges)
        wanted = ranges_wanted + loop
        self._mean_use += _NEWEST_WEIGHT * (wanted - self._mean_use)
        self._spare_s = self._spare_s + elapsed_s if more_wait and wanted < _SPARE_SHARE else 0.0
        if ranges > _OUTSIDE_GIL:
            self._allow_all()
        elif self._trial is not None:
            if self._counts(self._trial, elapsed_s, at_work, more_wait=more_wait):
                self._trial.used_s += (ranges + loop) * elapsed_s
                self._trial.wanted_s += wanted * elapsed_s
                self._trial.ranges_wanted_s += ranges_wanted * elapsed_s
                self._trial.elapsed_s += elapsed_s
                if self._trial.elapsed_s >= _TRIAL_S:
                    self._judge(self._trial)
        elif self._spare_s >= _TRIAL_S:
            self._allow_all()
        elif (more_wait and self.limit < self._limit_max) or (
            self._mean_use > _FULL_SHARE and self.limit > self._limit_min
        ):
            self._reason_s += elapsed_s
            if self._reason_s >= self._patience_s:
                self._former_limit, self.limit = self.limit, self._limit_min
                self._trial = _Trial()
        else:
            self._reason_s = 0.0

    def _counts(self, trial: _Trial, elapsed_s: float, at_work: int, *, more_wait: bool) -> bool:
        """Return True if enough ranges worked to judge; else end the trial after the limit."""
        if at_work <= self.limit and (more_wait or 0 < trial.smaller_limit < at_work):
            return True
        if at_work > self.limit or trial.smaller_limit:
            trial.unjudged_s += elapsed_s
            if trial.unjudged_s > _UNJUDGED_MAX_S:
                self._end_trial(trial.smaller_limit or self._former_limit)
        return False

    def _judge(self, trial: _Trial) -> None:
        used, wanted = trial.used_s / trial.elapsed_s, trial.wanted_s / trial.elapsed_s
        if not trial.smaller_limit and trial.ranges_wanted_s < _COMPUTE_SHARE * trial.elapsed_s:
            self._end_trial(self._limit_max)
        elif trial.smaller_limit and used <= trial.needed_use:
            self._end_trial(trial.smaller_limit)
        elif self.limit == self._limit_max:
            self._end_trial(self._limit_max)
        else:  # one interpreter wants at most one processor
            needed_use = _USE_GAIN_MIN * max(used, min(wanted, 1.0))
            self._trial = _Trial(smaller_limit=self.limit, needed_use=needed_use)
            self.limit = min(2 * self.limit, self._limit_max)

    def _allow_all(self) -> None:
        if self._trial is not None:
            self._end_trial(self._limit_max)
            return
        if self.limit == self._limit_min:
            self._patience_s = _RETRIAL_S
        self.limit = self._limit_max
        self._reason_s = 0.0

    def _end_trial(self, limit: int) -> None:
        """End a trial; the next waits longer, except after a return to the smallest limit."""
        if limit == self._limit_min < self._former_limit:
            self._patience_s = _RETRIAL_S
        else:
            self._patience_s = min(2 * self._patience_s, _RETRIAL_MAX_S)
        self.limit = limit
        self._trial = None
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
    text = ctypes.create_string_buffer(_SCHEDSTAT_BYTES)
    size: int = library.read(descriptor, text, _SCHEDSTAT_BYTES)
    library.close(descriptor)
    return int(text.raw[:size].split()[1]) / 1e9 if size > 0 else None
