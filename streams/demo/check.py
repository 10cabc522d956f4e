"""Expected demo results, computed by plain loops over the tables."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.streams.demo.tables import Row

#: Result values by topic, then by key.
Results = Mapping[str, Mapping[str, Any]]

DELAYS: Final = "delays-by-carrier"
ARRIVALS: Final = "arrivals-by-airport"
RAIN: Final = "rain-by-airport"
OUTPUT_TOPICS: Final = (DELAYS, ARRIVALS, RAIN)

_CANCELLED: Final = "NA"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongResult:
    """Key with a wrong value; None means no value."""

    topic: str
    key: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.topic}, key {self.key}: expected {self.expected}, found {self.found}"


def expected_results(flights: Iterable[Row], weather: Iterable[Row]) -> Results:
    delays: dict[str, list[int]] = {}
    cancelled: Counter[str] = Counter()
    arrivals: Counter[str] = Counter()
    for row in flights:
        arrivals[row["dest"]] += 1
        minutes = delays.setdefault(row["carrier"], [])
        if row["dep_delay"] == _CANCELLED:
            cancelled[row["carrier"]] += 1
        else:
            minutes.append(int(row["dep_delay"]))
    return {
        DELAYS: {
            carrier: {
                "flights": len(minutes) + cancelled[carrier],
                "cancelled": cancelled[carrier],
                "minutes": sum(minutes),
                "longest": max([0, *minutes]),
                "mean": round(sum(minutes) / len(minutes), 2) if minutes else 0.0,
            }
            for carrier, minutes in delays.items()
        },
        ARRIVALS: dict(arrivals),
        RAIN: dict(Counter(row["origin"] for row in weather if float(row["precip"]) > 0)),
    }


def wrong_results(expected: Results, found: Results) -> list[WrongResult]:
    """Return every key with an unexpected value, in order.

    >>> [str(each) for each in wrong_results({"t": {"a": 1, "b": 2}}, {"t": {"a": 1, "c": 3}})]
    ['t, key b: expected 2, found None', 't, key c: expected None, found 3']
    """
    return [
        WrongResult(
            topic=topic, key=key, expected=expected_values.get(key), found=found_values.get(key)
        )
        for topic in sorted({*expected, *found})
        for expected_values, found_values in [(expected.get(topic, {}), found.get(topic, {}))]
        for key in sorted({*expected_values, *found_values})
        if expected_values.get(key) != found_values.get(key)
    ]
