"""Who is inside a database, so that closing it waits for them and nobody enters after. No rocksdict here.

Needed because rocksdict refuses to close what another thread is reading ("Already borrowed"), and because RocksDB
neither flushes nor unlocks as long as anything of it is referred to.
"""

import threading


class Gate:
    """Counts the calls in progress; safe from any thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._inside = 0
        self._closed = False

    def enter(self) -> bool:
        """Count one call in; False if the gate is closed."""
        with self._condition:
            if self._closed:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """Count one call out."""
        with self._condition:
            self._inside -= 1
            if self._closed and not self._inside:
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
