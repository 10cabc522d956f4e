"""The admin client of commands, for people who wait."""

import threading
from typing import Final, Self

from tidewheel.streams.kafka.admin.admin import KafkaAdmin

#: How long a command waits for a broker; a worker, whose broker may be restarting, waits longer.
_PATIENCE_S: Final = 10.0


class KafkaResetAdmin(KafkaAdmin):
    """Questions and orders to the cluster, by somebody who soon wants to know that nobody is there."""

    def found(self) -> Self:
        """Return this client once a broker has answered; without one it is let go, and `StreamsError` names the address."""
        try:
            self.reach(threading.Event(), timeout_s=_PATIENCE_S)
        except BaseException:
            self.close()
            raise
        return self
