"""64 bytes that worker and watchdog both see: the worker's progress, its lease, and its present call of user code.

Each field has one writer and is 8 bytes at a multiple of 8, which processors write whole. The memory has no
name: the worker makes it and hands its file descriptor over the socket, so it ends with the last of the two.
"""

import mmap
import os
from typing import Final, Self

_BYTES: Final = 64
_PROGRESS: Final = 0
_LEASE_NS: Final = 1
_PULSE_NS: Final = 2
_CALL_NS: Final = 3


class SharedMemory:
    """One worker's counter and lease.

    Args:
        fd: The descriptor of the memory; it stays open for as long as this object.

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
        """Return new memory, all zero."""
        fd = _anonymous_file()
        os.ftruncate(fd, _BYTES)
        return cls(fd)

    @classmethod
    def adopt(cls, fd: int) -> Self:
        """Return memory that another process made; the descriptor is closed, the memory goes with this object."""
        memory = cls(fd)
        os.close(fd)
        memory.fd = -1
        return memory

    @property
    def progress(self) -> int:
        """Return how often the worker's loop has turned."""
        return self._words[_PROGRESS]

    def bump(self) -> None:
        """Count one more turn; only the worker's loop thread does."""
        self._words[_PROGRESS] += 1

    @property
    def lease_ns(self) -> int:
        """Return until when new work may begin, by `time.monotonic_ns`; 0 before the first lease."""
        return self._words[_LEASE_NS]

    @lease_ns.setter
    def lease_ns(self, value: int) -> None:
        self._words[_LEASE_NS] = value

    @property
    def pulse_ns(self) -> int:
        """Return when the worker's call watch looked last, by `time.monotonic_ns`; 0: it has none."""
        return self._words[_PULSE_NS]

    @property
    def call_ns(self) -> int:
        """Return since when the worker's loop has been in its present call of user code, by the same clock; 0: in none."""
        return self._words[_CALL_NS]

    def show_call(self, since_ns: int, now_ns: int) -> None:
        """Store what the worker's call watch has seen; only its thread does."""
        self._words[_CALL_NS] = since_ns
        self._words[_PULSE_NS] = now_ns

    def close(self) -> None:
        """Let go; idempotent."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tidewheel-watchdog")
    import tempfile  # noqa: PLC0415 - brings five modules that no other part of a watchdog needs

    with tempfile.TemporaryFile() as file:  # macOS: a file that has no name any more
        return os.dup(file.fileno())
