"""Memory of 64 bytes shared by worker and watchdog.

Its fields: progress, lease (time until which the worker may begin work), present call of user code,
turns of the watchdog. Each has one writer and is 8 aligned bytes, which CPUs write atomically. The
memory has no name: the worker creates it and sends its descriptor over the socket.
"""

import mmap
import os
from typing import Final, Self

_BYTES: Final = 64
_PROGRESS: Final = 0
_LEASE_NS: Final = 1
_PULSE_NS: Final = 2
_CALL_NS: Final = 3
_WATCHDOG_PID: Final = 4
_WATCHDOG_TURNS: Final = 5

#: A working watchdog counts a turn at least this often.
TURN_S: Final = 1.0


class SharedMemory:
    """One worker's shared fields. Times are those of `time.monotonic_ns`.

    >>> memory = SharedMemory.create()
    >>> memory.bump()
    >>> memory.progress, memory.lease_ns
    (1, 0)
    >>> memory.close()
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _BYTES)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> Self:
        fd = _anonymous_file()
        os.ftruncate(fd, _BYTES)
        return cls(fd)

    @classmethod
    def adopt(cls, fd: int) -> Self:
        """Map another process's memory by its descriptor; close that, because the mapping stays."""
        memory = cls(fd)
        os.close(fd)
        memory.fd = -1
        return memory

    @property
    def progress(self) -> int:
        return self._words[_PROGRESS]

    def bump(self) -> None:
        """Count a turn of the worker's loop; for the loop thread only."""
        self._words[_PROGRESS] += 1

    @property
    def lease_ns(self) -> int:
        """Time until which the worker may begin new work; 0 before the first lease."""
        return self._words[_LEASE_NS]

    @lease_ns.setter
    def lease_ns(self, value: int) -> None:
        self._words[_LEASE_NS] = value

    @property
    def pulse_ns(self) -> int:
        """Time of the last check by the worker's call watch; 0: no call watch runs."""
        return self._words[_PULSE_NS]

    @property
    def call_ns(self) -> int:
        """Start of the present call of user code; 0: no call."""
        return self._words[_CALL_NS]

    def show_call(self, since_ns: int, now_ns: int) -> None:
        self._words[_CALL_NS] = since_ns
        self._words[_PULSE_NS] = now_ns

    @property
    def watchdog(self) -> tuple[int, int]:
        """Process id and turns; zeros before the first."""
        return self._words[_WATCHDOG_PID], self._words[_WATCHDOG_TURNS]

    def count_turn(self, pid: int) -> None:
        self._words[_WATCHDOG_PID] = pid
        self._words[_WATCHDOG_TURNS] += 1

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tidewheel-watchdog")
    import tempfile  # noqa: PLC0415 - imports five modules that no other part of a watchdog needs

    with tempfile.TemporaryFile() as file:  # macOS: a file without a name
        return os.dup(file.fileno())
