"""Counts of one node of a task, or of one of its key ranges."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

from tidewheel.tasks.figures import Latency

#: Kafka Streams' names for the results that a node emits late: `suppress`, and windows that emit
#: when they close. Empty for other nodes.
Emission = Literal["", "suppression-emit-total", "emitted-records-total"]
#: Of so many records, one latency is measured. Measuring all would cost 2 % of a batch's time, and 10 %
#: of a topology that runs record by record.
LATENCY_SAMPLE: Final = 16
EMISSIONS: Final = ("suppression-emit-total", "emitted-records-total")


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
