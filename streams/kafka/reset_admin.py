"""The admin client of commands, for people who wait; `tidewheel reset` alone asks where a moment stands in a topic."""

import threading
from collections.abc import Sequence
from typing import Final, Self

from rebalance.model import TopicPartition
from streams.kafka.admin import KafkaAdmin
from streams.kafka.settings import fixed_group

#: How long a command waits for a broker; a worker, whose broker may be restarting, waits longer.
_PATIENCE_S: Final = 10.0


class KafkaResetAdmin(KafkaAdmin):
    """Questions and orders to the cluster, and offsets by time."""

    def found(self) -> Self:
        """Return this client once a broker has answered; without one it is let go, and `StreamsError` names the address."""
        try:
            self.reach(threading.Event(), timeout_s=_PATIENCE_S)
        except BaseException:
            self.close()
            raise
        return self

    def fixed_workers(self, application_id: str) -> dict[str, str]:
        """Return the workers with a fixed assignment that live: the transactional id of each, and its host."""
        return {
            member.client_id: member.host.removeprefix("/")
            for member in self._members(fixed_group(application_id))
        }

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time; the end where there is none."""
        return self._offsets_at(dict.fromkeys(partitions, timestamp_ms))
