"""Steady input of a run, and the observer of its output: a thread each."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.handoff.gaps import Arrivals
from benchmarks.topics.generator import key_bytes
from benchmarks.topics.output_reader import OutputReader
from benchmarks.topics.steady_feed import feeding_producer
from benchmarks.watched_thread import WatchedThread

TICK_S = 0.005
FLUSH_S = 30.0


def preload(bootstrap_servers: str, topic: str, keys: int) -> None:
    producer = feeding_producer(bootstrap_servers)
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


class Feeder(WatchedThread):
    """Writes records at a steady rate until stopped; counts them by key."""

    def __init__(
        self, bootstrap_servers: str, topic: str, *, keys: int, records_per_s: int, seed: int
    ) -> None:
        super().__init__("feeder")
        self.written: Counter[bytes] = Counter()
        self.sent = 0
        self._producer = feeding_producer(bootstrap_servers)
        self._topic, self._keys, self._rate = topic, keys, records_per_s
        self._draw = random.Random(seed)

    def work(self) -> None:
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


@dataclass(slots=True)
class Check:
    """Checks that each key's counts are 1, 2, 3, … without gap or repetition."""

    last: dict[bytes, int] = field(default_factory=dict[bytes, int])
    repeated: int = 0
    lost: int = 0

    def add(self, key: bytes, count: int) -> None:
        expected = self.last.get(key, 0) + 1
        if count < expected:
            self.repeated += 1
            return
        self.lost += count - expected
        self.last[key] = count

    def missing(self, written: Counter[bytes], preloaded: int) -> int:
        extra = sum(max(0, count + 1 - self.last.get(key, 0)) for key, count in written.items())
        return self.lost + extra + max(0, preloaded - len(self.last))


class Observer(OutputReader):
    """Reads the results, and tells apart the places that they come from: partitions or shards."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        place_of: Callable[[int, bytes], int] = lambda partition, _: partition,
        places: int | None = None,
    ) -> None:
        super().__init__(bootstrap_servers, topic, partitions, name="observer")
        self._place_of = place_of
        self.arrivals = [Arrivals() for _ in range(places or partitions)]
        self.counts = Check()
        self.results = 0

    def note(self, now_s: float, partition: int, key: bytes, value: bytes) -> None:
        count, _, writer = value.decode().partition(" ")
        self.results += 1
        self.counts.add(key, int(count))
        self.arrivals[self._place_of(partition, key)].add(now_s, writer)

    def writers(self, within_s: float) -> list[str | None]:
        """Return the writer of each place's last result; None without a recent one."""
        now_s = time.monotonic()
        found: list[str | None] = []
        for arrival in self.arrivals:
            late = not arrival.times_s or now_s - arrival.times_s[-1] > within_s
            found.append(None if late else arrival.writers[-1])
        return found
