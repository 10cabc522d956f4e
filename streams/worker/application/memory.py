"""The memory that all databases of a process share, also those of several threads and of lives one after another."""

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources

#: A look through what is free takes 1 to 6 ms, in a thread of its own and without the interpreter.
_EVERY_S: Final = 10.0


class ProcessMemory:
    """Gives out the block cache and the write-buffer budget; any thread may ask."""

    def __init__(self, options: RocksDBOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._databases = 0
        self._resources: SharedResources | None = None

    def resources(self, databases: int) -> SharedResources:
        """Return what is shared by this many databases; made anew only if there are more of them than ever before."""
        with self._lock:
            if self._resources is None or databases > self._databases:
                self._databases = databases
                self._resources = SharedResources.create(self._options, databases=databases)
            return self._resources


def give_back() -> bool:
    """Give back whole pages that are free; return whether this C library can do that (glibc's `malloc_trim`).

    >>> give_back() in (True, False)
    True
    """
    trim = _found()
    if trim is None:
        return False
    trim(0)
    return True


def _found() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None  # musl and macOS lack it; Windows has no library without a name
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return trim


class FreedMemory:
    """Gives memory back now and then, from `start` to `close`.

    Attributes:
        thread: What does it.
    """

    def __init__(
        self, give_back: Callable[[], bool] = give_back, *, every_s: float = _EVERY_S
    ) -> None:
        self._give_back = give_back
        self._every_s = every_s
        self._closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name="tidewheel-memory", daemon=True)

    def start(self) -> None:
        """Begin; where the C library can't do it, that is known after the first time."""
        self.thread.start()

    def close(self) -> None:
        """End it; idempotent."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            if not self._give_back():
                return
