"""A thread for calls that can't be interrupted: while brokers are silent a call into the Kafka client outlasts any Ctrl-C.

Python handles a signal in its main thread, and only between two of its own steps. So whoever shall go at once when asked
to has such calls made here, and waits for their answers, which can be interrupted.
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
    """Makes one call after the other, in a thread of its own."""

    def __init__(self, name: str) -> None:
        """Begin; the thread lasts as long as the program."""
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._main, name=name, daemon=True).start()

    def call(self, work: Callable[[], _T], timeout_s: float | None = None) -> _T:
        """Return what a call returns, or raise what it raises; `TimeoutError` if it has not come back in time."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - not swallowed: it is raised where the call was asked for
                done.set_exception(error)
            else:
                done.set_result(result)

        self._calls.put(run)
        return done.result(timeout_s)

    def _main(self) -> None:
        while True:
            self._calls.get()()


def leave_at_once(code: ExitCode) -> NoReturn:
    """End the program where brokers do not answer: a client can't be closed while it waits for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
