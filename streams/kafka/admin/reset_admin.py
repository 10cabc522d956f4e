"""Admin client of the `tidewheel` commands: patient with a slow cluster, not with a missing one."""

import logging
import threading
from typing import Final, Self

from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings

_log: Final = logging.getLogger("tidewheel.streams.kafka")

#: Seconds a command tries to connect. A worker tries longer: brokers may be restarting.
_UNREACHABLE_S: Final = 10.0
#: Seconds for a call. The wait is shown, and Ctrl-C ends it.
TIMEOUT_S: Final = 300.0
#: Seconds for a call of a live view, which shows its age, and the problem.
_LIVE_TIMEOUT_S: Final = 30.0


class KafkaResetAdmin(KafkaAdmin):
    """Admin client of a command; `live`: of one that asks again and again."""

    def __init__(self, settings: ClientSettings, *, live: bool = False) -> None:
        super().__init__(
            settings,
            timeout_s=_LIVE_TIMEOUT_S if live else TIMEOUT_S,
            on_wait=None if live else show_wait,
        )

    def found(self) -> Self:
        """Return this client once a broker answers; otherwise close it and raise."""
        try:
            self.reach(threading.Event(), unreachable_s=_UNREACHABLE_S)
        except BaseException:
            self.close()
            raise
        return self


def show_wait(what: str, waited_s: float) -> None:
    _log.warning("waiting for %.0f s: %s", waited_s, what)
