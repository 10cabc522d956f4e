"""Own keys: one range sees each row, and only its key's range writes it."""

from collections import Counter
from typing import Any

import pytest

from tests.tasks.key_ranges.programs import STRING
from tests.tasks.loop.bench import Bench
from tidewheel import Processor, PunctuationType, Record, Stores, StreamsBuilder, Topology
from tidewheel.state_stores.errors import StreamsError


class Reporting(Processor[str, str, str, str]):
    """Stores the last value of each key; reports all rows at stream time 10 s."""

    keyed = True

    def init(self, context: Any) -> None:
        super().init(context)
        self._store = context.get_state_store("last")
        context.schedule(10_000, PunctuationType.STREAM_TIME, self._report, start=10_000)

    def process(self, record: Record[str, str]) -> None:
        self._store.put(record.key, record.value)

    def _report(self, now_ms: int) -> None:
        for key, value in list(self._store.all()):
            self.context.forward(Record(key, value, now_ms))
            self._store.delete(key)


class Adding(Processor[str, str, str, str]):
    """Declares itself keyed, but writes one row for all keys."""

    keyed = True

    def process(self, record: Record[str, str]) -> None:
        self.context.get_state_store("last").put("all", record.value)


def topology(supplier: type[Processor[str, str, str, str]]) -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("last", key_serde=STRING, value_serde=STRING))
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING).process(
        supplier, stores=["last"], name="own"
    )
    stream.to("out", key_serde=STRING, value_serde=STRING)
    return builder.build()


@pytest.mark.parametrize("threads", [1, 4, 16])
def test_K3_all_ranges_together_see_each_row_once(threads: int) -> None:
    bench = Bench(topology(Reporting), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.idle_polls = 3
    keys = [f"k{index}" for index in range(100)]
    for key in keys:
        bench.send("in", key, "v", timestamp=1_000)
    assert bench.live(threads=threads)
    for key in keys:  # advance the time of every range
        bench.send("in", key, "w", timestamp=10_000)
    assert bench.live(threads=threads)
    reported = Counter(key for key, value in bench.outputs("out") if value == b"v")
    at_most_once = Counter(key for key, _ in bench.outputs("out"))
    assert set(at_most_once.values()) == {1}
    assert len(at_most_once) == 100
    assert sum(reported.values()) >= 100 - threads


def test_K3_a_row_of_another_ranges_key_is_refused() -> None:
    bench = Bench(topology(Adding), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.idle_polls = 3
    for index in range(50):
        bench.send("in", f"k{index}", "v")
    with pytest.raises(StreamsError, match=r"own wrote to store last by a key of hash [0-9a-f]{8}"):
        bench.live(threads=4)
    assert bench.live(threads=1)
