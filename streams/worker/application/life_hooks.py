"""Life hooks: functions of users that run at the start and the end of an application."""

import inspect
import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tidewheel.state_stores.user_code import located, log_trace
from tidewheel.streams.user_functions import Hook, checked_hook, function_name
from tidewheel.tasks.key_ranges.shared_loop import WorkerLoop

_log = logging.getLogger("tidewheel")

#: Seconds that a coroutine of `on_stop` may take.
_STOP_S: Final = 10.0
#: Seconds between log lines about a function that has not returned.
_REPORT_S: Final = 60.0


class LifeHooks:
    """The functions of `KafkaStreams.on_start` and `on_stop`.

    Coroutines run on the worker's event loop, where those of the topology run too.
    """

    def __init__(self, event_loop: WorkerLoop) -> None:
        self._event_loop = event_loop
        self._starting: list[Hook] = []
        self._stopping: list[Hook] = []
        #: Held while functions run: those of the end wait for those of the start.
        self._lock = threading.Lock()
        self._has_started = False

    def add_start(self, function: Hook) -> None:
        self._starting.append(checked_hook(function, "on_start"))

    def add_stop(self, function: Hook) -> None:
        self._stopping.append(checked_hook(function, "on_stop"))

    def start(self, is_stopping: Callable[[], bool]) -> bool:
        """Run the functions of the start; return False if the application stops meanwhile.

        Raises the error of the first one that fails.
        """
        with self._lock:
            self._has_started = True
            for function in self._starting:
                if is_stopping():
                    return False
                try:
                    self._run("on_start", function, is_stopping=is_stopping)
                except Exception as error:
                    if is_stopping():
                        return False
                    _log_failure("on_start", function, error)
                    raise
        return not is_stopping()

    def stop(self) -> None:
        """Run the functions of the end, the last one first; log errors. Only after `start`."""
        with self._lock:
            if not self._has_started:
                return
            while self._stopping:
                function = self._stopping.pop()
                try:
                    self._run("on_stop", function, timeout_s=_STOP_S)
                except Exception as error:  # noqa: BLE001 - logged: the others run, too
                    _log_failure("on_stop", function, error)

    def _run(self, call: str, function: Hook, **limits: Any) -> None:
        with _reported(call, function):
            result: object = function()
            if inspect.iscoroutine(result):
                self._event_loop.run(result, **limits)


@contextmanager
def _reported(call: str, function: Hook) -> Generator[None]:
    """Log once a minute that a function has not returned."""
    returned = threading.Event()
    began_s = time.monotonic()

    def report() -> None:
        while not returned.wait(_REPORT_S):
            waited_s = time.monotonic() - began_s
            _log.warning("waiting for %s function %s for %d s", call, _place(function), waited_s)

    threading.Thread(target=report, name="tidewheel-hooks", daemon=True).start()
    try:
        yield
    finally:
        returned.set()


def _place(function: Hook) -> str:
    """Return a function's name and line, as "connect (shop.py:12)"."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = "" if code is None else f" ({Path(code.co_filename).name}:{code.co_firstlineno})"
    return f"{function_name(function)}{line}"


def _log_failure(call: str, function: Hook, error: Exception) -> None:
    text = located(error, libraries=True)
    _log.error(
        "%s function %s failed: %s", call, function_name(function), text, exc_info=log_trace(error)
    )
