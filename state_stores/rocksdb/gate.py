"""Counter of calls inside a database: `close` waits for them, and later calls fail.

rocksdict can't close a database that another thread reads ("Already borrowed").
"""

import threading
from collections import deque


class Gate:
    """Counts calls in progress; thread-safe, and lock-free while open.

    A call is counted before it checks `_closed`, which `close` sets before it checks the count. So
    one of the two sees the other.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        #: One entry per call in progress: append and pop are atomic.
        self._inside: deque[None] = deque()
        self._closed = False

    def enter(self) -> bool:
        self._inside.append(None)
        if self._closed:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        self._inside.pop()
        if self._closed:
            with self._condition:
                self._condition.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> bool:
        """Wait until no call is inside; return False if the gate was closed before."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            while self._inside:
                self._condition.wait()
            return True
