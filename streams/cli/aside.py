"""A thread for calls that Ctrl-C can't interrupt: Kafka clients block while brokers are silent.

Python handles a signal in its main thread, and only between two bytecodes. A command that must end
on Ctrl-C makes such calls in this thread and waits for the result, which Ctrl-C can interrupt.
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NoReturn, TypeVar

from tidewheel.streams.exit_codes import ExitCode

_T = TypeVar("_T")


class Aside:
    """Runs calls one after the other in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._main, name=name, daemon=True).start()

    def call(self, work: Callable[[], _T], timeout_s: float | None = None) -> _T:
        """Return `work`'s result or raise its error; raise `TimeoutError` after `timeout_s`."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - not swallowed: raised in the calling thread
                done.set_exception(error)
            else:
                done.set_result(result)

        self._calls.put(run)
        return done.result(timeout_s)

    def _main(self) -> None:
        while True:
            self._calls.get()()


def exit_immediately(code: ExitCode) -> NoReturn:
    """Exit without closing clients, which block while brokers do not answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
