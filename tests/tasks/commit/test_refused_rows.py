"""Errors of refused changelog rows name the store, its writer and the input record."""

from typing import Any

import pytest

from tests.tasks.loop.bench import Bench
from tests.tasks.loop.test_stream_worker import STRING, counting
from tidewheel import (
    Materialized,
    Processor,
    PunctuationType,
    RecordFailedError,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

BIG = "x" * 100


class Keeper(Processor[str, str, str, str]):
    def init(self, context: Any) -> None:
        self._store = context.get_state_store("kept")
        context.schedule(100, PunctuationType.STREAM_TIME, self._tick)

    def process(self, record: Any) -> None:
        self._store.put(record.key, record.value)

    def _tick(self, _now_ms: int) -> None:
        self._store.put("tick", BIG)


def keeping() -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("kept", key_serde=STRING, value_serde=STRING))
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.process(Keeper, stores=["kept"], name="keeper")
    return builder.build()


def run(bench: Bench, changelog: str) -> RecordFailedError:
    bench.broker.refuse(changelog, lambda record: len(record.value or b"") > 50)
    with pytest.raises(RecordFailedError) as raised:
        bench.live()
    return raised.value


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_the_last_record_with_the_key_is_named(guarantee: str) -> None:
    bench = Bench(keeping(), {"in": 1}, guarantee=guarantee)
    for key, value in [("a", "1"), ("b", "1"), ("a", BIG), ("b", "2"), ("c", "3")]:
        bench.send("in", key, value)
    error = run(bench, "app-kept-changelog")
    assert (error.topic, error.partition, error.offset) == ("in", 0, 2)
    assert "store kept" in str(error)
    assert "keeper" in str(error)


def test_K8_the_input_of_a_shard_is_named() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    bench.plan = with_shards(bench.plan, 4)
    bench.broker.refuse("app-counts-changelog", lambda record: record.key == b"b")
    for key in "abcda":
        bench.send("in", key, "1")
    with pytest.raises(
        RecordFailedError, match="changelog app-counts-changelog-0 refuses"
    ) as raised:
        bench.live(assigned=frozenset(bench.plan.tasks))
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("in", 0, 1)


def test_a_scheduled_callback_is_named_by_its_processor() -> None:
    bench = Bench(keeping(), {"in": 1})
    for time in range(0, 300, 50):
        bench.send("in", "a", "1", time)
    error = run(bench, "app-kept-changelog")
    assert error.offset is None
    assert "scheduled callback" in str(error)
    assert "keeper" in str(error)


def test_the_key_of_a_window_leads_to_its_record() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=STRING, value_serde=STRING).group_by_key().windowed_by(
        TimeWindows(10)
    ).reduce(lambda before, now: before + now, store=Materialized("joined", caching=True))
    bench = Bench(builder.build(), {"in": 1})
    for time, (key, value) in enumerate([("a", "1"), ("b", BIG), ("b", BIG), ("a", "1")]):
        bench.send("in", key, value, time)
    error = run(bench, "app-joined-changelog")
    assert error.offset == 2


def test_a_single_record_is_named_for_any_key() -> None:
    bench = Bench(counting(), {"in": 1, "out": 1})
    bench.broker.refuse("app-counts-changelog", lambda _: True)
    bench.send("in", "a", "1")
    with pytest.raises(RecordFailedError) as raised:
        bench.live()
    assert raised.value.offset == 0
