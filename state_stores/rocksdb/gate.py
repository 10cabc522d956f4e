"""Who is inside a database, so that closing it waits for them and nobody enters after. No rocksdict here.

Needed because rocksdict refuses to close what another thread is reading ("Already borrowed"), and because RocksDB
neither flushes nor unlocks as long as anything of it is referred to.
"""

import threading
from collections import deque


class Gate:
    """Counts the calls in progress; safe from any thread, and without a lock as long as it is open.

    Whoever comes in is counted before it looks whether the gate is closed, and whoever closes it says so before it
    looks who is in: one of the two sees the other.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        #: One entry per call in progress: adding and removing one is a single step.
        self._inside: deque[None] = deque()
        self._closed = False

    def enter(self) -> bool:
        """Count one call in; False if the gate is closed."""
        self._inside.append(None)
        if self._closed:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Count one call out."""
        self._inside.pop()
        if self._closed:
            with self._condition:
                self._condition.notify_all()

    @property
    def closed(self) -> bool:
        """Whether nobody may enter any more."""
        return self._closed

    def close(self) -> bool:
        """Let nobody in any more and wait until all have left; False if it was closed before."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            while self._inside:
                self._condition.wait()
            return True
