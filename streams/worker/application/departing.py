"""The end of a process's workers: the wait for the group, which may have no broker."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, Protocol

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.worker.application.wiring import make_clients

_log = logging.getLogger("tidewheel")

#: Seconds for the group to let a drained worker leave.
RELEASE_S: Final = 3.0


class Worker(Protocol):
    def join(self, timeout_s: float | None) -> bool: ...

    def stop(self) -> None: ...


def stop_workers(workers: Sequence[Worker], drain_ms: int, config: StreamsConfig) -> bool:
    """Wait until the group has moved the tasks, at most `drain_ms`; then stop the rest.

    Returns False if no broker answers: the group can't move tasks, so this ends after seconds.
    """
    drain_s = drain_ms / 1000
    if _all_end(workers, RELEASE_S):
        return True
    problem = _no_broker(config, drain_s) if drain_s > 0 else None
    if problem is not None:
        _log.warning(
            "%s; the group can't move the tasks, so this worker closes now; the next owners process uncommitted records "
            "again",
            problem,
        )
    elif drain_s > 0 and _all_end(workers, drain_s):
        return True
    for worker in workers:
        worker.stop()
    return problem is None


def _all_end(workers: Sequence[Worker], timeout_s: float) -> bool:
    until_s = time.monotonic() + timeout_s
    return all(worker.join(max(until_s - time.monotonic(), 0.0)) for worker in workers)


def _no_broker(config: StreamsConfig, wait_s: float) -> str | None:
    """Return the reason if no broker can be reached, or none answers within `wait_s`.

    A slow broker is no reason: it moves the tasks meanwhile.
    """
    admin = make_clients(config).admin(timeout_s=wait_s)
    try:
        admin.reach(threading.Event(), unreachable_s=min(wait_s, RELEASE_S))
    except StreamsError as error:
        return str(error).partition(";")[0]
    finally:
        admin.close()
    return None


def handle_first_signal(stop: Callable[[], None]) -> dict[int, Any]:
    """Call `stop` at SIGTERM or SIGINT; a second one has its original effect.

    Returns the replaced handlers; outside the main thread, none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    previous: dict[int, Any] = {}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop()
        for number, handler in previous.items():
            signal.signal(number, handler)

    previous.update(
        {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    )
    return previous
