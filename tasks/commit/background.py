"""Doing one thing beside what the caller does: how a commit waits for brokers while records are processed."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread of its own; return what will hold its result or its exception.

    >>> in_a_thread(lambda: 6 * 7).result()
    42
    """
    future: Future[T] = Future()
    # Never waited for at the interpreter's end: it may wait for brokers that are away.
    threading.Thread(target=_do, args=(work, future), name="tidewheel-commit", daemon=True).start()
    return future


def at_once(work: Callable[[], T]) -> Future[T]:
    """Do work here and now; return what holds its result or its exception.

    >>> at_once(lambda: 6 * 7).result()
    42
    """
    future: Future[T] = Future()
    _do(work, future)
    return future


def _do(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        future.set_exception(error)
