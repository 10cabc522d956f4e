"""Figures of a process: families with labels, and histograms."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
#: Values of labels, in the family's order.
Labels = tuple[str, ...]

#: Upper bounds in seconds, for commits and restores.
LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Family(NamedTuple):
    """Figures of one name.

    Attributes:
        name: Level and Kafka Streams' name, as "task-process-total"; a unit ends it.
        samples: Value by `Labels`; of a histogram `HistogramValues`.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    samples: Mapping[Any, Any]


class HistogramValues(NamedTuple):
    """Cumulative counts by upper bound, the last one without bound, and the sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Histogram with one writer; any thread reads consistent values.

    >>> times = Histogram((1.0, 5.0))
    >>> for seconds in (0.5, 1.0, 7.0):
    ...     times.observe(seconds)
    >>> times.values
    HistogramValues(bounds=(1.0, 5.0), counts=(2, 2, 3), total=8.5)
    """

    __slots__ = ("_bounds", "_counts", "values")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        #: Replaced as a whole, for readers.
        self.values = HistogramValues(self._bounds, tuple(self._counts), 0.0)

    def observe(self, value: float) -> None:
        for place in range(bisect_left(self._bounds, value), len(self._counts)):
            self._counts[place] += 1
        self.values = HistogramValues(self._bounds, tuple(self._counts), self.values.total + value)
