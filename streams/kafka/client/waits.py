"""Reports of waits for a slow cluster: a busy machine is no error, and silence is no answer."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Final

#: Called with the awaited thing and the seconds since the wait began.
OnWait = Callable[[str, float], None]

#: Seconds until the first reports of a wait, and between later ones.
_FIRST_S: Final = (3.0, 5.0, 10.0)
_LATER_S: Final = 15.0


@contextmanager
def reported_wait(what: str, on_wait: OnWait | None) -> Generator[None]:
    """Report the block's duration from a thread, in ever longer intervals, until it ends."""
    if on_wait is None:
        yield
        return
    ended = threading.Event()
    began_s = time.monotonic()

    def report() -> None:
        for pause_s in chain(_FIRST_S, repeat(_LATER_S)):
            if ended.wait(pause_s):
                return
            on_wait(what, time.monotonic() - began_s)

    reporter = threading.Thread(target=report, name="tidewheel-waits", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
