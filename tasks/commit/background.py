"""Runners for the broker calls of a commit: in a new thread, or in the caller's thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a new thread.

    >>> run_in_thread(lambda: 6 * 7).result()
    42
    """
    future: Future[T] = Future()
    # A daemon: it may wait for brokers that are down when the interpreter ends.
    threading.Thread(target=_run, args=(work, future), name="tidewheel-commit", daemon=True).start()
    return future


def run_now(work: Callable[[], T]) -> Future[T]:
    """Run `work` in this thread.

    >>> run_now(lambda: 6 * 7).result()
    42
    """
    future: Future[T] = Future()
    _run(work, future)
    return future


def waking(
    background: Callable[[Callable[[], T]], Future[T]], wake: Callable[[], None]
) -> Callable[[Callable[[], T]], Future[T]]:

    def run(work: Callable[[], T]) -> Future[T]:
        future = background(work)
        future.add_done_callback(lambda _: wake())
        return future

    return run


def _run(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised by result()
        future.set_exception(error)
