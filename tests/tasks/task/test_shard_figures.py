"""Figures of shards: together they count each record once, though each shard sees all of them."""

from collections.abc import Callable

import pytest

from tests.tasks.loop.bench import Bench
from tests.tasks.task.test_shards import KEYS, counts, windows
from tidewheel import LogAndSkipOnInvalidTimestamp, Topology
from tidewheel.rebalance.model import Shard, TaskId
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

OF = 2
NEGATIVE = 5


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("program", [counts, windows])
def test_processed_and_dropped_records_of_shards_sum_to_those_of_the_partition(
    program: Callable[[], Topology], threads: int
) -> None:
    skips = LogAndSkipOnInvalidTimestamp()
    bench = Bench(program(), {"in": 1, "out": 1}, default_timestamp_extractor=skips)
    bench.plan = with_shards(bench.plan, OF, skips)
    for number, key in enumerate(KEYS * 3):
        bench.send("in", key, "x", number)
    for key in KEYS[:NEGATIVE]:
        bench.send("in", key, "x", -1)
    processed, dropped = 0.0, 0.0
    for shard in Shard.all_of(OF):
        task = TaskId(0, 0, shard)
        assert bench.live(
            assigned=frozenset({task}), transactional_id=f"app-{shard}", threads=threads
        )
        assert bench.worker is not None
        figures = bench.worker.tasks[task].figures.metrics()
        processed += figures["process-total"]
        dropped += figures["dropped-records-total"]
    assert dropped == NEGATIVE
    # A dropped record counts as processed, or not, as in tasks of whole partitions.
    assert len(KEYS) * 3 <= processed <= len(KEYS) * 3 + NEGATIVE
