"""Repeated reads of a group, for commands that show it live."""

import time
from typing import Final

from tidewheel.streams.cli.group_access import GroupAccess
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.group.status import GroupStatus

#: Interval of requests to brokers, for data that the two group topics lack.
_ASK_BROKERS_S: Final = 30.0
_INTERVAL_MIN_S: Final = 0.1


def check_interval(interval_s: float) -> None:
    if not interval_s >= _INTERVAL_MIN_S:
        raise ConfigError(
            f"--interval {interval_s:g}: at least {_INTERVAL_MIN_S:g} s; the leader reports twice a second"
        )


class StatusReader:
    """Reads a group's status repeatedly; asks the brokers only every `_ASK_BROKERS_S`."""

    def __init__(self, access: GroupAccess) -> None:
        self._access = access
        self._asked_s: float | None = None

    def read_status(self) -> GroupStatus:
        """Return the status; raise `StreamsError` if the group's topics cannot be read."""
        now_s = time.monotonic()
        ask = self._asked_s is None or now_s - self._asked_s >= _ASK_BROKERS_S
        status = self._access.read_status(ask_brokers=ask)
        if ask:
            self._asked_s = now_s
        return status
