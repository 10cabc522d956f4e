"""Retries of requests while the brokers are away."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from tidewheel.tasks.kafka.ports import Clock, UnansweredError

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Kafka Streams' `task.timeout.ms`.
LIMIT_S: Final = 300.0
_PAUSE_S: Final = 0.1


def retry_unanswered(
    request: Callable[[], Answer],
    *,
    clock: Clock,
    until_s: float,
    wait: Callable[[float], object],
) -> Answer:
    """Return the answer; raise the error after `until_s`, or if `wait` returns True."""
    while True:
        try:
            return request()
        except UnansweredError as error:
            if clock.monotonic_s() > until_s or wait(_PAUSE_S) is True:
                raise
            _log.warning("asking again: %s", error)
