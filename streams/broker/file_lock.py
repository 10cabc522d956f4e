"""An advisory lock on a file, held by an open descriptor and so never left behind by a dead process."""

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
    """Exclusive among processes, and among threads too, as each lock opens the file for itself.

    The kernel lets go of the lock when the last copy of the descriptor is closed. A child that is
    given `fileno()` therefore keeps the lock after this process has died: that is how a data folder
    stays locked for exactly as long as a broker writes to it.

    Args:
        path: The lock file. It is created and never deleted: deleting would let two hold it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; False if another holds it."""
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
        """Take the lock, waiting for whoever holds it.

        Raises:
            BrokerError: It was still held when the time was up.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                raise BrokerError(
                    f"{self.path} is still locked by another process after {timeout_ms} ms; "
                    "wait for the other `tidewheel broker` to finish fetching, or end it"
                )
            time.sleep(_POLL_SECONDS)

    def fileno(self) -> int:
        """The descriptor, to hand to a child that shall keep the lock."""
        if self._descriptor is None:
            raise BrokerError(f"{self.path} is not locked; acquire it first")
        return self._descriptor

    def release(self) -> None:
        """Let go of the lock; harmless when it is not held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # closing is all that is wanted, a bad close too
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
