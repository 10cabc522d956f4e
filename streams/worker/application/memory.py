"""Memory of a process: shared by databases, returned to the system when free."""

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources

#: Interval of `malloc_trim`, which takes 1 to 6 ms in its own thread, without the GIL.
_EVERY_S: Final = 10.0


class ProcessMemory:
    """Shared block cache and write-buffer budget; thread-safe."""

    def __init__(self, options: RocksDBOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._databases = 0
        self._resources: SharedResources | None = None

    def resources(self, databases: int) -> SharedResources:
        """Return resources sized for `databases`.

        A larger number creates new ones; open databases keep the old.
        """
        with self._lock:
            if self._resources is None or databases > self._databases:
                self._databases = databases
                self._resources = SharedResources.create(self._options, databases=databases)
            return self._resources


def trim_heap() -> bool:
    """Give free pages back to the system; return False if the C library lacks `malloc_trim`.

    >>> trim_heap() in (True, False)
    True
    """
    trim = _malloc_trim()
    if trim is None:
        return False
    trim(0)
    return True


def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None  # musl and macOS lack it; Windows has no library without a name
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return trim


class FreedMemory:
    def __init__(
        self, trim_heap: Callable[[], bool] = trim_heap, *, every_s: float = _EVERY_S
    ) -> None:
        self._trim_heap = trim_heap
        self._every_s = every_s
        self._closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name="tidewheel-memory", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            if not self._trim_heap():
                return
