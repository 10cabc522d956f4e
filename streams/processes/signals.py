"""Temporary signal handlers."""

import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """Install a handler for the block, then restore the previous ones. Main thread only.

    >>> received = []
    >>> with signals_handled([signal.SIGUSR1], lambda number, frame: received.append(number)):
    ...     signal.raise_signal(signal.SIGUSR1)
    >>> received == [signal.SIGUSR1], signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    (True, True)
    """
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)
