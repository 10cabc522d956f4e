"""Counts of a node: the sample of records whose latency is measured."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.figures import LATENCY_SAMPLE, Latency, NodeCounts


class Recorded(Latency):
    def __init__(self) -> None:
        super().__init__()
        self.measured: list[int] = []

    def observe(self, now_ms: int, timestamps: Sequence[int]) -> None:
        self.measured += timestamps


@given(st.lists(st.integers(0, 50), min_size=1))
def test_each_sixteenth_record_is_measured_however_they_come(sizes: list[int]) -> None:
    counts, latency, place = NodeCounts(), Recorded(), 0
    counts.latency = latency
    for size in sizes:
        counts.observe(lambda: 0, range(place, place + size))
        place += size
    assert latency.measured == list(range(0, place, LATENCY_SAMPLE))


def test_parts_add_up() -> None:
    total, part = NodeCounts(), NodeCounts("suppression-emit-total")
    part.processed, part.emitted = 3, 2
    part.latency.observe(5, [1])
    for _ in range(2):
        total.add(part)
    assert (total.processed, total.emitted, total.emission) == (6, 4, "suppression-emit-total")
    assert total.latency.values(5) == (4.0, 4, 4)
