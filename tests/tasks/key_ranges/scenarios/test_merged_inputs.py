"""Inputs of a task are merged in the same order after a crash, also with uneven ranges."""

import random
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.by_hand import begun, end, halves, work
from tests.tasks.key_ranges.programs import STRING, TEXT
from tests.tasks.key_ranges.scenarios.test_far_apart import Gate
from tests.tasks.loop.bench import Bench, Crash
from tidewheel import Processor, Record, Stores, StreamsBuilder, Topology
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Threads (and factor) of a life, and after how many steps it crashes.
Life = tuple[int, int]
#: (topic, key, timestamp) of a record.
Row = tuple[str, str, int]


def appending(sleep_s: float = 0.0, gate: Any = str) -> Topology:
    class Append(Processor[str, str, str, str]):
        keyed = True

        def init(self, context: Any) -> None:
            super().init(context)
            self._store = context.get_state_store("texts")
            self._random = random.Random(0)

        def process(self, record: Record[str, str]) -> None:
            gate(record.value)
            time.sleep(self._random.random() * sleep_s)
            text = f"{self._store.get(record.key) or ''} {record.value}"
            self._store.put(record.key, text)
            self.context.forward(record.replace(value=text))

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("texts", key_serde=STRING, value_serde=STRING))
    merged = builder.stream("a", **TEXT).merge(builder.stream("b", **TEXT))
    merged.process(Append, stores=["texts"]).to("out", **TEXT)
    return builder.build()


def bench_of(topology: Topology, rows: list[Row]) -> Bench:
    topics = {"a": 1, "b": 1, "out": 1}
    bench = Bench(topology, topics, commit_interval_ms=3, max_task_idle_ms=1_000)
    for number, (topic, key, timestamp) in enumerate(rows):
        value = "held" if key == "slow" and not number else f"{topic}{number}"
        bench.send(topic, key, value, timestamp=timestamp)
    return bench


def texts(bench: Bench) -> dict[str | None, list[bytes | None]]:
    by_key: dict[str | None, list[bytes | None]] = {}
    for key, value in bench.outputs("out"):
        by_key.setdefault(key, []).append(value)
    return by_key


#: The second input's first record is another key's, and holds a late one of the slow key back.
HELD: list[Row] = [
    ("a", "slow", 100),
    ("a", "slow", 500),
    ("b", "quick", 1_000),
    ("b", "slow", 200),
]


def test_K3_inputs_are_read_again_from_one_time_of_the_task() -> None:
    gate = Gate()
    bench = bench_of(appending(gate=gate), HELD)

    def crash(_worker: Any, _source: Any) -> None:
        if "quick" in texts(bench):
            raise Crash("far apart")

    bench.at_poll.append(crash)
    assert not bench.live(threads=4)
    bench.at_poll.clear()
    gate.opened.set()
    assert bench.live(threads=4)
    assert texts(bench) == {"slow": [b" held", b" held a1", b" held a1 b3"], "quick": [b" b2"]}


def test_K3_inputs_are_read_again_from_a_time_all_ranges_passed_in_one_input() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    task = begun(appending(), {a: halves({b"a": 4, b"b": 0}), b: halves({b"a": 0, b"b": 0})})
    for topic, offset, key in (("a", 0, b"b"), ("b", 0, b"a"), ("a", 1, b"b")):
        task.group.add(SourceRecords(topic, 0, [offset], [key], [b"v"], [offset], None))
        assert task.process(1) == 1
    work(task, b"b")
    task.drain()
    offsets = {each: task.offset_to_commit(each, -1) for each in (a, b)}
    assert offsets == {a: 1, b: 0}
    assert task.progress(a, 1) == halves({b"a": 4, b"b": 2})
    end(task)


_LIVES = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 60)), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None)
@given(
    lives=_LIVES,
    records=st.integers(1, 120),
    late=st.integers(0, 300),
    slice_records=st.integers(1, 20),
    seed=st.integers(),
)
def test_K3_two_inputs_are_merged_in_the_same_order_over_crashes(
    lives: list[Life], records: int, late: int, slice_records: int, seed: int
) -> None:
    chosen = random.Random(seed)
    rows = [
        (chosen.choice("ab"), f"k{chosen.randrange(7)}", each * 10 + chosen.randint(0, late))
        for each in range(records)
    ]
    bench = bench_of(appending(0.002), rows)
    bench.slice_records = slice_records
    for threads, crash_after in lives:
        bench.live(threads=threads, crash_after=crash_after)
    assert bench.live(threads=lives[-1][0])
    whole = bench_of(appending(), rows)
    assert whole.live()
    assert texts(bench) == texts(whole)
