"""A thread that reads a system's output with read_committed, with arrival times."""

import time
from abc import abstractmethod

from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks.watched_thread import WatchedThread

BATCH_RECORDS = 10_000


class OutputReader(WatchedThread):
    """Reads all partitions from their beginning until stopped; passes records to `note`."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, *, name: str) -> None:
        super().__init__(name)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"bench-{name}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 1,
                "log_level": 3,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        )

    @abstractmethod
    def note(self, now_s: float, partition: int, key: bytes, value: bytes) -> None:
        """Accept one result, readable since `now_s` (`time.monotonic`) at the latest."""

    def work(self) -> None:
        try:
            while not self._ending.is_set():
                self._read()
        finally:
            self._consumer.close()

    def _read(self) -> None:
        first = self._consumer.poll(0.05)
        if first is None:
            return
        messages = [first, *self._consumer.consume(BATCH_RECORDS, 0)]
        now_s = time.monotonic()  # all are readable now; none gets too early a time
        for message in messages:
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                if not isinstance(key, bytes) or not isinstance(value, bytes):
                    raise RuntimeError("the output has a record without a key or a value")
                self.note(now_s, message.partition() or 0, key, value)
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                raise RuntimeError(f"the output cannot be read: {error}")
