"""Queries of uncommitted rows."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tidewheel.state_stores.buffers.query_sources import UncommittedRows


class Question:
    """Query of a store's uncommitted rows.

    Their owners, a task or each of its key ranges, call `function` with their rows.
    """

    def __init__(self, store: str, function: Callable[[UncommittedRows], Any]) -> None:
        self.store = store
        self._function = function
        self._lock = threading.Lock()
        self._owners = 1
        self._parts: list[Any] = []
        self._future: Future[list[Any]] = Future()

    def expect(self, owners: int) -> None:
        """Set the number of owners, before any of them answers."""
        self._owners = owners

    @property
    def is_over(self) -> bool:
        return self._future.done()

    def answer(self, rows: UncommittedRows) -> None:
        """Add one owner's answer. Never raises."""
        if self.is_over:
            return
        try:
            part = self._function(rows)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self.fail(error)
            return
        with self._lock:
            self._parts.append(part)
            if len(self._parts) == self._owners and not self.is_over:
                self._future.set_result(self._parts)

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.is_over:
                self._future.set_exception(error)

    def wait(self, until_s: float) -> list[Any] | None:
        """Return the answers of all owners; None after `until_s` (`time.monotonic`)."""
        try:
            return self._future.result(max(until_s - time.monotonic(), 0.0))
        except TimeoutError:
            with self._lock:
                if self._future.cancel():
                    return None
            return self._future.result()  # an answer or an error came just now
