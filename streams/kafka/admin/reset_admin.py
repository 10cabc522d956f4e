"""Admin client of commands, with a short timeout."""

import threading
from typing import Final, Self

from tidewheel.streams.kafka.admin.admin import KafkaAdmin

#: Timeout of a command; a worker waits longer, as its broker may be restarting.
_PATIENCE_S: Final = 10.0


class KafkaResetAdmin(KafkaAdmin):
    def found(self) -> Self:
        """Return this client after a broker's answer; else close it and raise."""
        try:
            self.reach(threading.Event(), timeout_s=_PATIENCE_S)
        except BaseException:
            self.close()
            raise
        return self
