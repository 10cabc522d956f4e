"""The steady input of a run, and the observer of its output: a thread each."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from benchmarks.generator import key_bytes
from benchmarks.handoff.gaps import Arrivals

TICK_S = 0.005
FLUSH_S = 30.0
QUEUE_RECORDS = 500_000


def _producer(bootstrap_servers: str) -> Producer:
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


def preload(bootstrap_servers: str, topic: str, keys: int) -> None:
    """Write every key once: the state that moves with its task."""
    producer = _producer(bootstrap_servers)
    for index in range(keys):
        while True:
            try:
                producer.produce(topic, b"x" * 80, key_bytes(index))
                break
            except BufferError:
                producer.poll(0.05)
        if index % 10_000 == 0:
            producer.poll(0)
    if producer.flush(FLUSH_S):
        raise TimeoutError(f"{topic} could not be filled within {FLUSH_S:.0f} s")


class Feeder(threading.Thread):
    """Writes records at a steady rate until told to stop; remembers how many it sent, and how often each key."""

    def __init__(
        self, bootstrap_servers: str, topic: str, *, keys: int, records_per_s: int, seed: int
    ) -> None:
        super().__init__(name="feeder", daemon=True)
        self.written: Counter[bytes] = Counter()
        self.sent = 0
        self.error: BaseException | None = None
        self._producer = _producer(bootstrap_servers)
        self._topic, self._keys, self._rate = topic, keys, records_per_s
        self._draw = random.Random(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        """Write until stopped."""
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - raised again by stop()
            self.error = error

    def _write(self) -> None:
        begin_s = time.monotonic()
        while not self._ending.wait(TICK_S):
            due = int((time.monotonic() - begin_s) * self._rate)
            for _ in range(due - self.sent):
                key = key_bytes(self._draw.randrange(self._keys))
                self._producer.produce(self._topic, b"y" * 80, key)
                self.written[key] += 1
            self.sent = max(self.sent, due)
            self._producer.poll(0)
        if self._producer.flush(FLUSH_S):
            raise TimeoutError(f"{self._topic}: records were not delivered")

    def stop(self) -> None:
        """Write what is due, wait until it is delivered; raises what went wrong."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class Check:
    """Whether each key's counts are 1, 2, 3, … without a gap and without a repetition."""

    last: dict[bytes, int] = field(default_factory=dict[bytes, int])
    repeated: int = 0
    lost: int = 0

    def add(self, key: bytes, count: int) -> None:
        """Take the next result of a key."""
        expected = self.last.get(key, 0) + 1
        if count < expected:
            self.repeated += 1
            return
        self.lost += count - expected
        self.last[key] = count

    def missing(self, written: Counter[bytes], preloaded: int) -> int:
        """Return how many results never came."""
        extra = sum(max(0, count + 1 - self.last.get(key, 0)) for key, count in written.items())
        return self.lost + extra + max(0, preloaded - len(self.last))


class Observer(threading.Thread):
    """Reads the output as anybody would (read_committed) and notes when it became visible, and who wrote it."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        super().__init__(name="observer", daemon=True)
        self.arrivals = [Arrivals() for _ in range(partitions)]
        self.check = Check()
        self.results = 0
        self.error: BaseException | None = None
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench-observer",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 5,
                "log_level": 3,
            }
        )
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])

    def run(self) -> None:
        """Read until stopped."""
        try:
            while not self._ending.is_set():
                self._read()
        except BaseException as error:  # noqa: BLE001 - raised again by stop()
            self.error = error
        finally:
            self._consumer.close()

    def _read(self) -> None:
        first = self._consumer.poll(0.05)
        if first is None:
            return
        now_s = time.monotonic()
        for message in [first, *self._consumer.consume(10_000, 0)]:
            error = message.error()
            if error is None:
                self._note(now_s, message.partition() or 0, message.key(), message.value())
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                raise RuntimeError(f"the output cannot be read: {error}")

    def _note(self, now_s: float, partition: int, key: object, value: object) -> None:
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        count, _, writer = value.decode().partition(" ")
        self.results += 1
        self.check.add(key, int(count))
        self.arrivals[partition].add(now_s, writer)

    def stop(self) -> None:
        """Stop reading; raises what went wrong."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error

    def writers(self, within_s: float) -> list[str | None]:
        """Return who wrote each partition's last result; None where nothing came lately."""
        now_s = time.monotonic()
        found: list[str | None] = []
        for each in self.arrivals:
            late = not each.times_s or now_s - each.times_s[-1] > within_s
            found.append(None if late else each.writers[-1])
        return found
