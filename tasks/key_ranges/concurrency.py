"""Concurrency limit of a range pool: few ranges run if they compute, all if they wait. Pure.

Waiting calls gain from every thread. Calls that compute in Python gain nothing from more threads:
one interpreter runs them in turn, and each waiting thread delays the worker's own thread, so
commits come late. Among many threads both kinds use no processor while they wait. Among two they
differ. So a pool starts with two ranges and measures the share of a processor that they want: used
time, plus time in the processor's run queue. A small share admits all threads. A large share tries
twice as many, and keeps them while they use clearly more. The pool measures again, rarely, while
ranges wait or one processor is fully used.

Two threads whose calls wait 10 ms and compute 0.2 ms use 0.04 of a processor: all threads run. Two
that only compute use one processor, and four no more: two are enough. Two that wait 4 ms and
compute 7 ms outside of the interpreter use 1.3, and four use 2: all run.

The trials stay: one fixed rule was tried (two ranges or all, by the share that each range wants).
It fails 9 of the 20 tests, among them loads that need a number between two and all.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Final

#: More than three numbers take.
_SIZE = 80


#: As many work in any case: while one of them waits for its data, the other computes.
MIN_CONCURRENCY: Final = 2
#: Few threads that want less than this share wait, and more than they do more.
_COMPUTES: Final = 0.5
#: Twice as many do clearly more if they use so many times what the others wanted.
_MORE: Final = 1.25
#: One interpreter can't use as much of a processor: functions compute outside of it, several at a time.
_OUTSIDE: Final = 1.4
#: So many times what a thread uses it may wait for a processor, and want both: it computes, beside four others that do. One that waits longer
#: comes late to a processor each time its answer is there; then more threads do more.
_BESIDE: Final = 4.0
#: Below this share there is room for more threads, whatever was seen before.
_ROOM: Final = 0.5
#: Above this share all is used,
_FULL: Final = 0.85
#: and if that lasts for so long, or ranges wait for so long, it is looked again how much few threads use.
_AGAIN_S: Final = 2.0
#: or twice as long after each time that showed what was known, up to this long.
_AGAIN_MAX_S: Final = 300.0
#: For so long few are looked at, and then twice as many; and for so long there must be room. In less a thread may get no processor by chance.
_LOOK_S: Final = 0.1
#: So long may pass until as many work as are looked at; else calls take too long for a look, or too few ranges have work.
_PUT_OFF_S: Final = 0.25
#: Weight of the newest share in what tells that all is used.
_NEWEST: Final = 0.1


@dataclass(slots=True)
class _Look:
    """A look at what as many do as may work.

    Attributes:
        fewer: How many did enough for others to be tried; 0 while the fewest are looked at.
        enough: Which share of a processor is clearly more than they do.
        used_s: For how long all have used a processor since then.
        wanted_s: For how long all have wanted one.
        ranges_wanted_s: For how long the ranges' threads have.
        elapsed_s: How long that was.
        put_off_s: For how long another number than that has worked.
    """

    fewer: int = 0
    enough: float = 0.0
    used_s: float = 0.0
    wanted_s: float = 0.0
    ranges_wanted_s: float = 0.0
    elapsed_s: float = 0.0
    put_off_s: float = 0.0


class ConcurrencyLimit:
    """Sets how many ranges work at a time.

    Args:
        most: How many threads there are.

    Attributes:
        limit: How many ranges may work at a time.

    >>> concurrency = ConcurrencyLimit(64)
    >>> concurrency.limit
    2
    >>> for _ in range(2):  # calls that wait: two threads use a processor for a twentieth of the time
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
        #: The limit before the look, to go back to if it comes to nothing.
        self._before = most
        #: For how long there has been reason to look again, and how long there is to be.
        self._reason_s = 0.0
        self._patience_s = _AGAIN_S
        #: For how long there has been room for more.
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
        """Take what was measured over some time.

        Args:
            elapsed_s: How long that was.
            ranges: For which part of it the ranges' threads have used a processor; above 1 if they used several.
            waited: For which part they could have used one, and waited for it.
            loop: For which part the worker's own thread has used one.
            at_work: How many ranges worked, at its beginning or its end if that were more.
            more_wait: Whether ranges wait for a thread.
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
        """Return whether as many work as are looked at; end a look that is put off for too long."""
        if at_work <= self.limit and (more_wait or 0 < look.fewer < at_work):
            return True
        if at_work > self.limit or look.fewer:
            look.put_off_s += elapsed_s
            if look.put_off_s > _PUT_OFF_S:
                self._settle(look.fewer or self._before)
        return False

    def _judge(self, look: _Look) -> None:
        """Settle how many work, or try twice as many."""
        used, wanted = look.used_s / look.elapsed_s, look.wanted_s / look.elapsed_s
        if not look.fewer and look.ranges_wanted_s < _COMPUTES * look.elapsed_s:
            self._settle(self._most)
        elif look.fewer and used <= look.enough:
            self._settle(look.fewer)
        elif self.limit == self._most:
            self._settle(self._most)
        else:  # all that one interpreter wants is a processor
            enough = _MORE * max(used, min(wanted, 1.0))
            self._look = _Look(fewer=self.limit, enough=enough)
            self.limit = min(2 * self.limit, self._most)

    def _open(self) -> None:
        """Let all work, for that is of use now."""
        if self._look is not None:
            self._settle(self._most)
            return
        if self.limit == self._narrowest:
            self._patience_s = _AGAIN_S
        self.limit = self._most
        self._reason_s = 0.0

    def _settle(self, limit: int) -> None:
        """End a look, and look again after twice as long, but soon if it showed that fewer are enough."""
        if limit == self._narrowest < self._before:
            self._patience_s = _AGAIN_S
        else:
            self._patience_s = min(2 * self._patience_s, _AGAIN_MAX_S)
        self.limit = limit
        self._look = None
        self._reason_s = 0.0


@cache
def _library() -> ctypes.PyDLL | None:
    """Return the C library, whose functions keep the interpreter; None where the system is not one that tells."""
    if sys.platform != "linux":
        return None
    library = ctypes.PyDLL(None)
    library.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
    library.read.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    library.read.restype = ctypes.c_ssize_t
    return library


def waited_s(native_id: int) -> float | None:
    """Return for how long a thread of this process has waited for a processor; None if the system does not tell, or the thread has ended."""
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
