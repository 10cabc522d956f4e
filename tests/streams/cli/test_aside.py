"""Calls beside the main thread, which signals end."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tidewheel.streams.cli.aside import Aside

_PATIENCE_S = 30.0


class _InterruptedError(Exception): ...


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise _InterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_a_signal_ends_a_wait_also_if_another_thread_got_it() -> None:
    free = threading.Event()

    def work() -> None:
        # As a signal that comes just before the main thread begins to wait: it wakes no one.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        free.wait(_PATIENCE_S)

    began_s = time.monotonic()
    with pytest.raises(_InterruptedError):
        Aside("test").call(work)
    assert time.monotonic() - began_s < _PATIENCE_S
    free.set()


def test_results_errors_and_time_limits_reach_the_caller() -> None:
    aside, free = Aside("test"), threading.Event()
    assert aside.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        aside.call(lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        aside.call(lambda: free.wait(_PATIENCE_S), 0.01)
    free.set()
    assert aside.call(lambda: 8, _PATIENCE_S) == 8
