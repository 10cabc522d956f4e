"""Reads results as anybody would (read_committed) and notes when each record's result was there.

The nth record of a key has the count n as its result, so a result names its record and the moment that record was due.
"""

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, TopicPartition

BATCH_RECORDS = 10_000


def places_by_key(keys: Iterable[bytes]) -> dict[bytes, "array[int]"]:
    """Return each key's records, by their number in the input.

    >>> {key: list(places) for key, places in places_by_key([b"a", b"b", b"a"]).items()}
    {b'a': [0, 2], b'b': [1]}
    """
    found: dict[bytes, array[int]] = {}
    for number, key in enumerate(keys):
        places = found.get(key)
        if places is None:
            found[key] = places = array("i")
        places.append(number)
    return found


@dataclass(slots=True)
class Arrivals:
    """When the result of each record could first be read; 0 for what is not there yet.

    Attributes:
        places: Each key's records, by their number.
        records: How many records there are.
        there: How many of them have a result.
        repeated: Results that came again.
        wrong: What no record has as its result: key, count.
    """

    places: Mapping[bytes, "array[int]"]
    records: int
    there: int = 0
    repeated: int = 0
    wrong: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    at_s: "array[float]" = field(init=False)

    def __post_init__(self) -> None:
        self.at_s = array("d", bytes(8 * self.records))

    def add(self, key: bytes, count: int, now_s: float) -> None:
        """Take a result."""
        places = self.places.get(key)
        if places is None or not 0 < count <= len(places):
            self.wrong.append((key, count))
            return
        place = places[count - 1]
        if self.at_s[place]:
            self.repeated += 1
            return
        self.at_s[place] = now_s
        self.there += 1

    def problems(self, guarantee: str) -> list[str]:
        """Return what is wrong with the results, in sentences; nothing means that the times may count."""
        told: list[str] = []
        if self.wrong:
            key, count = self.wrong[0]
            told.append(f"{len(self.wrong)} results are nobody's, e.g. {key!r} with {count}")
        if self.there < self.records:
            told.append(f"{self.records - self.there} of {self.records} results never came")
        if self.repeated and guarantee == "exactly_once":
            told.append(f"{self.repeated} results came twice")
        return told

    def latencies_ms(self, begin_s: float, records_per_s: int, skipped: int) -> list[float]:
        """Return how long after its scheduled moment each record's result was there, in order, without the first ones."""
        return sorted(
            (self.at_s[number] - begin_s - number / records_per_s) * 1000
            for number in range(skipped, self.records)
        )


class ResultsReader(threading.Thread):
    """Reads the output until told to stop."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        arrivals: Arrivals,
        decode: Callable[[bytes], int],
    ) -> None:
        super().__init__(name="results-reader", daemon=True)
        self.error: BaseException | None = None
        self._arrivals, self._decode = arrivals, decode
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench-results-reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 1,
                "log_level": 3,
            }
        )
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])

    def run(self) -> None:
        """Read until stopped."""
        try:
            while not self._ending.is_set():
                self._read()
        except BaseException as error:  # noqa: BLE001 - raised again by check() and stop()
            self.error = error
        finally:
            self._consumer.close()

    def _read(self) -> None:
        first = self._consumer.poll(0.05)
        if first is None:
            return
        messages = [first, *self._consumer.consume(BATCH_RECORDS, 0)]
        now_s = time.monotonic()  # all of these are readable now, and none is dated too early
        for message in messages:
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                if not isinstance(key, bytes) or not isinstance(value, bytes):
                    raise RuntimeError("the output has a record without a key or a count")
                self._arrivals.add(key, self._decode(value), now_s)
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                raise RuntimeError(f"the output cannot be read: {error}")

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop reading; raises what went wrong."""
        self._ending.set()
        if self.ident is not None:
            self.join()
        self.check()
