"""A steady input, on schedule whatever the system does: an open loop (suites `latency` and `memory`).

Each record has a moment at which it is due. A feeder that is late sends what is due at once and does not move the schedule:
what a slow system or a slow feeder costs stays in the figures (no coordinated omission).
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
    """Return a producer that sends at once and places keys as Kafka's own clients do."""
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
    """Writes given records at a steady rate until they are all out.

    Attributes:
        begin_s: The monotonic moment at which the first record was due; None before the start.
        sent: How many were handed to the client.
        late_ms: How far behind its schedule the feeder was with each record.
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
        """Write until all records are out, or until stopped; wait until what was sent is delivered."""
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
