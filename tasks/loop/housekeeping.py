"""Housekeeping of a worker: purges repartition topics, and calls the process for other work."""

import logging
from collections.abc import Callable, Mapping

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import Admin, Clock, CommittedOffset

_log = logging.getLogger(__name__)


class Housekeeping:
    """Work of the loop that is not urgent, done every `interval_ms`."""

    def __init__(
        self,
        interval_ms: int,
        plan: Callable[[], ApplicationPlan],
        admin: Admin,
        clock: Clock,
        housekeep: Callable[[], None],
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._plan = plan
        self._admin = admin
        self._clock = clock
        self._housekeep = housekeep
        self._next_s = 0.0

    def restart(self) -> None:
        self._next_s = self._clock.monotonic_s() + self._interval_s

    def run(self, now_s: float, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Delete committed records of repartition topics, if the interval is over."""
        if now_s < self._next_s:
            return
        self.restart()
        topics = {topic.name for topic in self._plan().repartition_topics}
        before = {
            at: committed[at].offset
            for at in committed
            if at.topic in topics and at.shard.is_whole  # a slower shard needs the others
        }
        if before:
            try:
                self._admin.delete_records(before)
            except StreamsError as error:
                # It costs only disk space; the next round tries again.
                _log.warning("could not purge repartition topics: %s", error)
        self._housekeep()
