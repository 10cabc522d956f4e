"""Admin client of the `tidewheel` commands, with a short timeout."""

import threading
from typing import Final, Self

from tidewheel.streams.kafka.admin.admin import KafkaAdmin

#: Seconds a command waits for the first answer. A worker waits longer: brokers may be restarting.
_PATIENCE_S: Final = 10.0


class KafkaResetAdmin(KafkaAdmin):
    def found(self) -> Self:
        """Return this client once a broker answers; otherwise close it and raise."""
        try:
            self.reach(threading.Event(), timeout_s=_PATIENCE_S)
        except BaseException:
            self.close()
            raise
        return self
