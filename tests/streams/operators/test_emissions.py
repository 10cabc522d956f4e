"""Counts of nodes: arrived records, and results that are emitted late."""

from datetime import timedelta
from typing import Any

import pytest

from tidewheel import BufferConfig, StreamsBuilder, Suppressed, TimeWindows, Topology
from tidewheel.testing import TopologyTestDriver

MINUTE_MS = 60_000


def windowed(*, suppressed: bool) -> Topology:
    builder = StreamsBuilder()
    windows = TimeWindows(timedelta(minutes=1))
    grouped = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    if suppressed:
        table = grouped.windowed_by(windows).count(store="counts")
        table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream(
            name="rows"
        )
    else:
        closing = grouped.windowed_by(windows).emit_strategy("on_window_close")
        closing.count(store="counts", name="counted").to_stream(name="rows")
    return builder.build()


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("suppressed", [False, True])
def test_final_results_are_counted_where_they_are_emitted(
    suppressed: bool, record_by_record: bool
) -> None:
    topology = windowed(suppressed=suppressed)
    with TopologyTestDriver(topology, record_by_record=record_by_record) as driver:
        lines = driver.create_input_topic("in", key_serde=str, value_serde=str)
        lines.pipe_input("a", "x", 0)
        lines.pipe_input("a", "y", 1)
        lines.pipe_input("b", "z", 2)
        lines.pipe_input("b", "later", 10 * MINUTE_MS)
        nodes: dict[str, Any] = {}
        for task in driver._tasks:
            nodes |= task.counters.nodes
    found = {name: (counts.emission, counts.emitted) for name, counts in nodes.items()}
    emission = "suppression-emit-total" if suppressed else "emitted-records-total"
    assert [counts for counts in found.values() if counts[0]] == [(emission, 2)]
    assert nodes["rows"].processed == 2
    (source,) = [counts for name, counts in nodes.items() if name.startswith("KSTREAM-SOURCE")]
    assert source.processed == 4
