"""Figures of a process: families with labels, and histograms."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
#: Values of labels, in the family's order.
Labels = tuple[str, ...]

#: Upper bounds in seconds, for commits and restores.
LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Kafka's `metrics.sample.window.ms`.
LATENCY_WINDOW_MS: Final = 30_000


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


class _Window(NamedTuple):
    """Latencies (ms) of the records that arrived within `LATENCY_WINDOW_MS` of `began_ms`."""

    began_ms: int
    number: int
    total: int
    least: int
    most: int


class LatencyValues(NamedTuple):
    """Latencies in ms."""

    average: float
    least: int
    most: int


class Latency:
    """Time from records' timestamps to now, over the last 30 to 60 s, as in Kafka's metrics.

    One thread writes; any thread reads consistent values.

    >>> latency = Latency()
    >>> latency.observe(1_000, [900, 400])
    >>> latency.values(now_ms=2_000)
    LatencyValues(average=350.0, least=100, most=600)
    """

    __slots__ = ("windows",)

    def __init__(self) -> None:
        #: Newest last; replaced as a whole, for readers.
        self.windows: tuple[_Window, ...] = ()

    def observe(self, now_ms: int, timestamps: Sequence[int]) -> None:
        """Add the latencies of records, at least one."""
        number, windows = len(timestamps), self.windows
        total = number * now_ms - sum(timestamps)
        least, most = now_ms - max(timestamps), now_ms - min(timestamps)
        if windows and now_ms - windows[-1].began_ms < LATENCY_WINDOW_MS:
            last = windows[-1]
            window = _Window(
                last.began_ms,
                last.number + number,
                last.total + total,
                min(last.least, least),
                max(last.most, most),
            )
            self.windows = (*windows[:-1], window)
        else:
            self.windows = (*windows[-1:], _Window(now_ms, number, total, least, most))

    def add(self, other: "Latency") -> None:
        """Add the latencies of another part of the same node."""
        windows = sorted((*self.windows, *other.windows))
        oldest_ms = windows[-1].began_ms - 2 * LATENCY_WINDOW_MS if windows else 0
        self.windows = tuple(window for window in windows if window.began_ms > oldest_ms)

    def values(self, now_ms: int) -> LatencyValues | None:
        """Return the latencies of the last two windows; None without records."""
        windows = [
            window for window in self.windows if now_ms - window.began_ms < 2 * LATENCY_WINDOW_MS
        ]
        if not windows:
            return None
        return LatencyValues(
            sum(window.total for window in windows) / sum(window.number for window in windows),
            min(window.least for window in windows),
            max(window.most for window in windows),
        )
