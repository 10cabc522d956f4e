"""Steady input on a fixed schedule: an open loop (suites `latency` and `memory`).

A late feeder sends due records immediately and keeps the schedule. So delays of a slow system or
feeder stay in the figures (no coordinated omission).
"""

import time
from array import array
from collections.abc import Iterator

from confluent_kafka import Producer

from benchmarks.watched_thread import WatchedThread

TICK_S = 0.001
FLUSH_S = 60.0
QUEUE_RECORDS = 500_000


def feeding_producer(bootstrap_servers: str) -> Producer:
    """Return a producer without linger and with Kafka's partitioner."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 1,
            "queue.buffering.max.messages": QUEUE_RECORDS,
            "log_level": 3,
        }
    )


class SteadyFeeder(WatchedThread):
    """Writes given records at a steady rate.

    Attributes:
        begin_s: Monotonic due time of the first record; None before the start.
        sent: Number of records passed to the client.
        late_ms: The feeder's delay of each record.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        records: Iterator[tuple[bytes, bytes]],
        *,
        records_per_s: int,
    ) -> None:
        super().__init__("steady-feeder")
        self.begin_s: float | None = None
        self.sent = 0
        self.late_ms = array("f")
        self._topic, self._records, self._rate = topic, records, records_per_s
        self._producer = feeding_producer(bootstrap_servers)

    def work(self) -> None:
        """Write until all records are sent, or until stopped; wait for their delivery."""
        self.begin_s = begin_s = time.monotonic()
        records = self._records
        for number, (key, value) in enumerate(records):
            while (wait_s := begin_s + number / self._rate - time.monotonic()) > 0:
                if self._ending.wait(max(wait_s, TICK_S)):
                    self._flush()
                    return
            self.late_ms.append(-wait_s * 1000)
            self._producer.produce(self._topic, value, key)
            self.sent = number + 1
            if number % 100 == 0:
                self._producer.poll(0)
        self._flush()

    def _flush(self) -> None:
        if self._producer.flush(FLUSH_S):
            raise TimeoutError(
                f"{self._topic}: records were not delivered within {FLUSH_S:.0f} s; look at the broker's log"
            )
