"""A thread for calls that Ctrl-C can't interrupt: Kafka clients block while brokers are silent.

Python handles a signal in its main thread, and only between two bytecodes. A command that must end
on Ctrl-C makes such calls in this thread and waits for the result, which Ctrl-C can interrupt.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Final, NoReturn, TypeVar

from tidewheel.streams.exit_codes import ExitCode

_T = TypeVar("_T")

#: Seconds until a waiting call looks again for a signal.
_WAIT_S: Final = 0.2


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
        give_up_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        # Python misses a signal that comes just before a wait begins; so no wait is long.
        while not done.done() and (left_s := give_up_s - time.monotonic()) > 0:
            wait([done], min(left_s, _WAIT_S))
        return done.result(0)

    def _main(self) -> None:
        while True:
            self._calls.get()()


def exit_immediately(code: ExitCode) -> NoReturn:
    """Exit without closing clients, which block while brokers do not answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
