"""Signals, taken for a while."""

import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """Have a handler take signals while the block runs, and those take them again that did before. The main thread alone can.

    >>> taken = []
    >>> with signals_handled([signal.SIGUSR1], lambda number, frame: taken.append(number)):
    ...     signal.raise_signal(signal.SIGUSR1)
    >>> taken == [signal.SIGUSR1], signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    (True, True)
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
