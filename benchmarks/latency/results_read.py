"""Arrival times of results, read with read_committed.

The nth record of a key has the count n as its result, so a result names its record and due time. A
cache may drop a count in favour of a later one, which is then the result of both.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.topics.output_reader import OutputReader


def places_by_key(keys: Iterable[bytes]) -> dict[bytes, "array[int]"]:
    """Return each key's records by input number.

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
    """Arrival time of each record's result; 0 while it is missing.

    Attributes:
        places: Each key's records, by input number.
        held_back: A later count of a key may replace earlier ones.
        there: Number of records with a result.
        wrong: Results that belong to no record: key, count.
    """

    places: Mapping[bytes, "array[int]"]
    records: int
    held_back: bool = False
    there: int = 0
    repeated: int = 0
    wrong: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    at_s: "array[float]" = field(init=False)

    def __post_init__(self) -> None:
        self.at_s = array("d", bytes(8 * self.records))

    def add(self, key: bytes, count: int, now_s: float) -> None:
        places = self.places.get(key)
        if places is None or not 0 < count <= len(places):
            self.wrong.append((key, count))
            return
        if self.at_s[places[count - 1]]:
            self.repeated += 1
            return
        first = count
        while self.held_back and first > 1 and not self.at_s[places[first - 2]]:
            first -= 1
        for place in places[first - 1 : count]:
            self.at_s[place] = now_s
        self.there += count - first + 1

    def problems(self, guarantee: str) -> list[str]:
        texts: list[str] = []
        if self.wrong:
            key, count = self.wrong[0]
            texts.append(
                f"{len(self.wrong)} results belong to no record, e.g. {key!r} with {count}"
            )
        if self.there < self.records:
            texts.append(f"{self.records - self.there} of {self.records} results never came")
        if self.repeated and guarantee == "exactly_once":
            texts.append(f"{self.repeated} results came twice")
        return texts

    def latencies_ms(self, begin_s: float, records_per_s: int, skipped: int) -> list[float]:
        """Return the latencies in record order, without the first `skipped` ones."""
        return sorted(
            (self.at_s[number] - begin_s - number / records_per_s) * 1000
            for number in range(skipped, self.records)
        )


class ResultsReader(OutputReader):
    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        arrivals: Arrivals,
        decode: Callable[[bytes], int],
    ) -> None:
        super().__init__(bootstrap_servers, topic, partitions, name="results-reader")
        self._arrivals, self._decode = arrivals, decode

    def note(self, now_s: float, partition: int, key: bytes, value: bytes) -> None:  # noqa: ARG002 - one for all partitions
        self._arrivals.add(key, self._decode(value), now_s)
