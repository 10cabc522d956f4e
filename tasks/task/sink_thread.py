"""Thread of one task's sink: opens it, writes, flushes, and tries again after failures."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.user_code import located, log_trace
from tidewheel.tasks.errors import SinkFailedError
from tidewheel.tasks.processing.api.sink import RowsRefused
from tidewheel.tasks.task.sink_writer import Refusal, SinkItem, SinkWriter

_log = logging.getLogger(__name__)

#: First and longest pause (s) before another attempt; each is twice the one before.
_FIRST_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 10.0
#: Longest pause (s) that an error may ask for, by an attribute `retry_after_s`.
_ASKED_MAX_S: Final = 300.0
#: Seconds between logs of a sink that keeps failing.
_LOG_S: Final = 60.0
#: Seconds that closing waits for a call in progress; the thread then ends by itself.
_CLOSE_S: Final = 0.1
_TICK_S: Final = 0.01


class SinkThread:
    """Thread around a `SinkWriter`; the worker's loop adds items and reads positions."""

    def __init__(self, writer: SinkWriter, sink: str, task_id: str) -> None:
        self.writer = writer
        self._name = f"sink {sink} (task {task_id})"
        self._changed = threading.Condition()
        self._queue: deque[SinkItem] = deque()
        self._queued_rows = 0
        self._queued_bytes = 0
        self._is_closing = False
        self._must_flush = False
        self._is_idle = True
        self._first_row_s = 0.0
        self._attempts = 0
        self._failing_since_s = 0.0
        self._next_log_s = 0.0
        #: Rows for the exception handlers; the loop passes them on.
        self._refusals: list[Refusal] | None = None
        self._are_refusals_durable = False
        self.error: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"tidewheel-sink-{task_id}", daemon=True
        )

    # -- for the loop ----------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def has_room(self) -> bool:
        sink = self.writer.sink
        return self._queued_rows < sink.batch_rows and self._queued_bytes < sink.batch_bytes

    @property
    def queued_rows(self) -> int:
        return self._queued_rows + self.writer.rows

    def put(self, item: SinkItem) -> None:
        with self._changed:
            self._queue.append(item)
            self._queued_rows += item.rows
            self._queued_bytes += item.bytes
            self._is_idle = False
            self._changed.notify_all()

    def pop_refusals(self) -> list[Refusal]:
        """Return refused rows once; call `resume` when their dead letters are durable."""
        with self._changed:
            refusals, self._refusals = self._refusals, None
            return refusals or []

    def resume(self) -> None:
        with self._changed:
            self._are_refusals_durable = True
            self._changed.notify_all()

    def wind_down(self) -> bool:
        """Begin to flush all rows; return True if all are flushed, or the sink fails."""
        with self._changed:
            self._must_flush = not self._is_idle
            self._changed.notify_all()
            return self._is_idle or self._attempts > 0 or self.error is not None

    def flush(self, until_s: float, tick: Callable[[], None]) -> None:
        """Wait until all rows are flushed, but not for a failing sink; call `tick` meanwhile."""
        with self._changed:
            self._must_flush = True
            self._changed.notify_all()
        while not (self._is_idle or self._attempts or self.error):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            tick()
            with self._changed:
                self._changed.wait(min(_TICK_S, left_s))

    def close(self) -> None:
        """End the thread. A call in progress ends later, and stores its rows or not."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.info(
                "%s: closed while a call is in progress, which may still store rows", self._name
            )

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        is_open = True
        while is_open and not self._is_closing:
            try:
                self._serve()
                is_open = False
            except RowsRefused as refused:
                is_open = self._hand_over(refused)
            except StreamsError as error:
                is_open = self._fail(error)
            except Exception as error:  # noqa: BLE001 - the sink's own; it is tried again
                self._close_sink()
                is_open = self._pause(error)
            finally:
                self._close_sink()

    def _serve(self) -> None:
        self.writer.open()
        while not self._is_closing:
            items = self._next_items()
            if items and self.writer.is_empty:
                self._first_row_s = time.monotonic()
            self.writer.write(items)
            if self._is_due(has_items=bool(items)):
                self.writer.flush()
                self._report_success()
                self._note_idle()

    def _next_items(self) -> list[SinkItem]:
        """Return queued items; wait for one, or until a flush is due.

        None while a flush is due: rows must not pile up behind a flush that fails.
        """
        with self._changed:
            while not (self._queue or self._is_closing or self._is_due(has_items=False)):
                wait_s = None if self.writer.is_empty else max(self._due_s() - time.monotonic(), 0)
                self._changed.wait(wait_s)
            if self._must_flush_first:
                return []
            items = list(self._queue)
            self._queue.clear()
            self._queued_rows = self._queued_bytes = 0
            return items

    def _due_s(self) -> float:
        return self._first_row_s + self.writer.sink.flush_every_ms / 1000

    @property
    def _must_flush_first(self) -> bool:
        is_late = self.writer.is_full or time.monotonic() >= self._due_s()
        return is_late and not self.writer.is_empty

    def _is_due(self, *, has_items: bool) -> bool:
        if self.writer.is_empty:
            return False
        return self._must_flush_first or (self._must_flush and not has_items)

    def _note_idle(self) -> None:
        with self._changed:
            if not self._queue:
                self._is_idle = True
                self._must_flush = False
                self._changed.notify_all()

    def _hand_over(self, refused: RowsRefused) -> bool:
        """Have the loop call the handlers, and wait for the commit of their dead letters."""
        try:
            refusals = self.writer.refusals(refused)
        except StreamsError as error:
            return self._fail(error)
        self._close_sink()  # a commit may take long
        with self._changed:
            self._are_refusals_durable = False
            self._refusals = refusals
            self._changed.wait_for(lambda: self._are_refusals_durable or self._is_closing)
            if self._is_closing:
                return False
        self.writer.drop(refusals)
        return True

    def _fail(self, error: Exception) -> bool:
        self.error = error
        return False

    def _pause(self, error: Exception) -> bool:
        """Wait before the next attempt; return False if there is none."""
        now_s = time.monotonic()
        if not self._attempts:
            self._failing_since_s, self._next_log_s = now_s, now_s
        self._attempts += 1
        figures, limit = self.writer.figures, self.writer.sink.retries
        figures.retries += 1
        text = f"{self._name}: {self.writer.sink.target} fails: {located(error)}"
        if limit is not None and self._attempts > limit:
            failed = SinkFailedError(
                f"{text}; {self._attempts} attempts failed, and the sink has retries={limit}; correct the cause and start "
                "again: no row is lost, since offsets follow the flushes"
            )
            failed.__cause__ = error
            return self._fail(failed)
        figures.problem = f"no flush for {now_s - self._failing_since_s:.0f} s, after {self._attempts} attempts: {located(error)}"
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + _LOG_S
            _log.warning(
                "%s; attempt %d, for %.0f s; rows wait in Kafka, and it is tried again",
                text,
                self._attempts,
                now_s - self._failing_since_s,
                exc_info=log_trace(error),
            )
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._attempts - 1, 10), _PAUSE_MAX_S)
        asked_s = min(float(getattr(error, "retry_after_s", 0.0)), _ASKED_MAX_S)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, max(pause_s, asked_s))
        return True

    def _report_success(self) -> None:
        if self._attempts:
            _log.warning(
                "%s works again, after %d failed attempts in %.0f s",
                self._name,
                self._attempts,
                time.monotonic() - self._failing_since_s,
            )
            self._attempts = 0

    def _close_sink(self) -> None:
        try:
            self.writer.close()
        except Exception as error:  # noqa: BLE001 - logged; the next connection is a new one
            _log.warning("%s can't be closed: %s", self._name, located(error))
