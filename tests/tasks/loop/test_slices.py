"""Slice sizes, and single records after a death of the process without an error."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.tasks.loop.bench import Bench, Crash
from tidewheel import Serdes, StreamsBuilder, Topology
from tidewheel.rebalance.model import TopicPartition

STRING = Serdes.string()
IN = TopicPartition("in", 0)
OTHER = TopicPartition("other", 0)

#: Reports and calls in order: (partition, offset), (None, -1), or a value.
Steps = list[Any]


def _mapping(steps: Steps, *topics: str) -> Topology:
    def mapped(value: str) -> str:
        steps.append(value)
        if value == "poison":
            raise Crash
        return value

    builder = StreamsBuilder()
    streams = [builder.stream(topic, key_serde=STRING, value_serde=STRING) for topic in topics]
    first, *others = streams
    for each in others:
        first = first.merge(each)
    first.map_values(mapped).to("out", key_serde=STRING, value_serde=STRING)
    return builder.build()


def _bench(steps: Steps, *topics: str, **settings: Any) -> Bench:
    bench = Bench(_mapping(steps, *topics), dict.fromkeys((*topics, "out"), 1), **settings)
    bench.on_record = lambda partition, offset: steps.append((partition, offset))
    return bench


def test_each_record_is_reported_before_processing_and_the_end_of_the_slice_after() -> None:
    steps: Steps = []
    bench = _bench(steps, "in")
    for value in ("a", "b", "poison", "c"):
        bench.send("in", "k", value)
    assert not bench.live()
    # The last comes from the exception; a dead process reports nothing.
    assert steps == [(IN, 0), "a", (IN, 1), "b", (IN, 2), "poison", (None, -1)]


def test_merged_inputs_report_no_record_between_records() -> None:
    steps: Steps = []
    bench = _bench(steps, "in", "other")
    bench.send("in", "k", "a", timestamp=1)
    bench.send("other", "k", "b", timestamp=2)
    bench.send("in", "k", "c", timestamp=3)
    assert bench.live()
    nothing = (None, -1)
    assert steps == [
        (IN, 0), "a", nothing, (OTHER, 0), "b", nothing, (IN, 1), "c", nothing,
    ]  # fmt: skip


def test_processing_returns_to_batches_after_a_minute() -> None:
    steps: Steps = []
    bench = _bench(steps, "in")
    bench.send("in", "k", "a")

    def send_after_a_minute(_worker: object, _source: object) -> None:
        if steps.count("a") and not steps.count("sent"):
            steps.append("sent")
            bench.clock.advance(60_000)
            bench.send("in", "k", "b")

    bench.at_poll.append(send_after_a_minute)
    assert bench.live()
    assert steps == [(IN, 0), "a", (None, -1), "sent", "b"]
    assert [value for _, value in bench.outputs("out")] == [b"a", b"b"]


def test_key_ranges_report_no_single_records() -> None:
    steps: Steps = []
    bench = _bench(steps, "in", threads=2)
    bench.send("in", "k", "a")
    assert bench.live()
    assert steps == ["a"]


def test_a_slow_task_leaves_the_slices_of_other_tasks_long() -> None:
    steps: list[str] = []

    def slow(value: str) -> str:
        bench.clock.advance(10)
        steps.append("slow")
        return value

    def fast(value: str) -> str:
        steps.append("fast")
        return value

    builder = StreamsBuilder()
    for name, step in (("a", slow), ("b", fast)):
        read = builder.stream(f"in-{name}", key_serde=STRING, value_serde=STRING)
        read.map_values(step).to(f"out-{name}", key_serde=STRING, value_serde=STRING)
    topics = {f"{kind}-{name}": 1 for kind in ("in", "out") for name in "ab"}
    bench = Bench(builder.build(), topics)
    for number in range(2_000):
        bench.send("in-a", "k", str(number))
        bench.send("in-b", "k", str(number))
    assert bench.live()
    until_fast_ends = steps[: len(steps) - steps[::-1].index("fast")]
    assert until_fast_ends.count("slow") < 300


def _batches(records: int, call_ms: Callable[[int], int]) -> list[int]:
    sizes: list[int] = []

    def model(values: list[str]) -> list[str]:
        sizes.append(len(values))
        bench.clock.advance(call_ms(len(values)))
        return values

    builder = StreamsBuilder()
    read = builder.stream("in", key_serde=STRING, value_serde=STRING)
    read.map_values_batch(model).to("out", key_serde=STRING, value_serde=STRING)
    bench = Bench(builder.build(), {"in": 1, "out": 1})
    for number in range(records):
        bench.send("in", "k", str(number))
    assert bench.live()
    assert [value for _, value in bench.outputs("out")] == [b"%d" % n for n in range(records)]
    assert sum(sizes) == records
    return sizes


@pytest.mark.parametrize("call_ms", [25, 100, 400])
def test_K4_batches_grow_at_factor_one_for_calls_of_constant_cost(call_ms: int) -> None:
    sizes = _batches(5_000, lambda _: call_ms)
    assert max(sizes) >= 1_000, sizes[:20]


def test_K4_batches_stay_short_at_factor_one_for_slow_values() -> None:
    sizes = _batches(500, lambda values: 10 * values)
    assert max(sizes[10:]) <= 4, sizes[:20]
