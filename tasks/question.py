"""A question about uncommitted rows: asked by any thread, answered by the threads that own the rows."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tidewheel.state_stores.buffers.query_sources import UncommittedRows


class Question:
    """A function of a store's uncommitted rows, for each of their owners to call.

    Attributes:
        store: Name of the store.
    """

    def __init__(self, store: str, function: Callable[[UncommittedRows], Any]) -> None:
        self.store = store
        self._function = function
        self._lock = threading.Lock()
        self._owners = 1
        self._parts: list[Any] = []
        self._future: Future[list[Any]] = Future()

    def expect(self, owners: int) -> None:
        """Set how many owners answer; called before any of them does."""
        self._owners = owners

    @property
    def is_over(self) -> bool:
        """Return whether the answer is known, or no longer waited for."""
        return self._future.done()

    def answer(self, rows: UncommittedRows) -> None:
        """Answer for one owner. Never raises."""
        if self.is_over:
            return
        try:
            part = self._function(rows)
        except Exception as error:  # noqa: BLE001 - raised by whoever asks: the worker is not at fault
            self.fail(error)
            return
        with self._lock:
            self._parts.append(part)
            if len(self._parts) == self._owners and not self.is_over:
                self._future.set_result(self._parts)

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        with self._lock:
            if not self.is_over:
                self._future.set_exception(error)

    def wait(self, until_s: float) -> list[Any] | None:
        """Return the answers of all owners; None if they are not there at `until_s` (`time.monotonic`)."""
        try:
            return self._future.result(max(until_s - time.monotonic(), 0.0))
        except TimeoutError:
            with self._lock:
                if self._future.cancel():
                    return None
            return self._future.result()  # it came in this moment, or the function has raised that
