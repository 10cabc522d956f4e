"""Protection of workers from telemetry: failures are logged, spans end in another thread."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

_log = logging.getLogger("tidewheel")

_LOG_EVERY_S: Final = 60.0
#: Most spans that wait for their end; further ones are lost.
_WAITING_MAX: Final = 10_000
_CLOSE_S: Final = 2.0


class Ending(Protocol):
    """A span that ends."""

    def end(self, end_time: int | None = None) -> None:
        """End it, at a time in nanoseconds since the epoch."""


class Guard:
    """Logs failures of telemetry, at most once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_log_s = 0.0
        self.failures = 0

    def failed(self, error: Exception) -> None:
        """Count a failure; its text may quote records, so the log has its type only."""
        self.failures += 1
        now_s = self._clock()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + _LOG_EVERY_S
            _log.warning(
                "telemetry fails (%s, %d times until now); the worker continues without it",
                type(error).__name__,
                self.failures,
            )


class SpanEnder:
    """Thread that ends spans: an exporter that fails or hangs in `end` delays no worker."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._waiting: queue.Queue[tuple[Any, int] | None] = queue.Queue(_WAITING_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.lost = 0

    def end(self, span: Ending, end_ns: int) -> None:
        """End a span soon; lose it if too many wait."""
        if self._thread is None:
            self._start()
        try:
            self._waiting.put_nowait((span, end_ns))
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """End the waiting spans, for at most two seconds."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tidewheel-telemetry", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            span, end_ns = item
            try:
                span.end(end_time=end_ns)
            except Exception as error:  # noqa: BLE001 - logged; the worker continues
                self._guard.failed(error)
