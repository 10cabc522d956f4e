"""Figures of a process: families with labels, and histograms."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
#: Values of labels, in the family's order.
Labels = tuple[str, ...]

#: Upper bounds in seconds, for commits and restores.
LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: Kafka's `metrics.sample.window.ms`.
LATENCY_WINDOW_MS: Final = 30_000

#: Kafka Streams' names for the results that a node emits late: `suppress`, and windows that emit
#: when they close. Empty for other nodes.
Emission = Literal["", "suppression-emit-total", "emitted-records-total"]
#: Of so many records, one latency is measured. All would cost about 2 % of a batch's time, and 10 %
#: of a topology that runs record by record.
LATENCY_SAMPLE: Final = 16
EMISSIONS: Final = ("suppression-emit-total", "emitted-records-total")


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


class NodeCounts:
    """Counts of a node; its task's thread writes them, any thread reads them.

    Attributes:
        processed: Records that arrived.
        emitted: Results, if `emission` names them.
        latency: End-to-end latency of records at sources and sinks, while it is measured.
    """

    __slots__ = ("_unmeasured", "emission", "emitted", "latency", "processed")

    def __init__(self, emission: Emission = "") -> None:
        self.processed = 0
        self.emission: Emission = emission
        self.emitted = 0
        self.latency = Latency()
        #: Records until the next measured one.
        self._unmeasured = 0

    def observe(self, now_ms: Callable[[], int], timestamps: Sequence[int]) -> None:
        """Measure the latency of each sixteenth record."""
        first = self._unmeasured
        if first >= len(timestamps):
            self._unmeasured = first - len(timestamps)
            return
        self.latency.observe(now_ms(), timestamps[first::LATENCY_SAMPLE])
        self._unmeasured = (first - len(timestamps)) % LATENCY_SAMPLE

    def add(self, other: "NodeCounts") -> None:
        self.processed += other.processed
        self.emission = other.emission
        self.emitted += other.emitted
        self.latency.add(other.latency)
