"""Advisory file lock, released by the kernel when its process dies."""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tidewheel.streams.broker.broker_errors import BrokerError

_POLL_SECONDS = 0.05


class FileLock:
    """Exclusive lock among processes and threads: each object opens the file itself.

    The kernel releases the lock when the last copy of the descriptor is closed. A broker inherits
    `fileno()`, so its data folder stays locked after the death of this process.

    Args:
        path: Never deleted: two processes could lock two files of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Return False if the lock is taken."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def acquire(self, *, timeout_ms: int) -> None:
        """Raise `BrokerError` if another process keeps the lock for `timeout_ms`."""
        deadline = time.monotonic() + timeout_ms / 1000
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                raise BrokerError(
                    f"{self.path} is still locked by another process after {timeout_ms} ms; "
                    "wait for the other `tidewheel broker` to finish fetching, or end it"
                )
            time.sleep(_POLL_SECONDS)

    def fileno(self) -> int:
        if self._descriptor is None:
            raise BrokerError(f"{self.path} is not locked; acquire it first")
        return self._descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # a failed close also releases the lock
                os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        if self._descriptor is None and not self.try_acquire():
            raise BrokerError(f"{self.path} is locked by another process")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
