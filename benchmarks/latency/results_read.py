"""Reads results as anybody would (read_committed) and notes when each record's result was there.

The nth record of a key has the count n as its result, so a result names its record and the moment that record was due. With a
cache a count may be held back until a later one of the same key takes its place: that one is the result of both records.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.output_reader import OutputReader


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
        held_back: Whether a later count of a key may take the place of earlier ones.
        there: How many of them have a result.
        repeated: Results that came again.
        wrong: What no record has as its result: key, count.
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
        """Take a result."""
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


class ResultsReader(OutputReader):
    """Notes when each result was there."""

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
        """Take one result."""
        self._arrivals.add(key, self._decode(value), now_s)
