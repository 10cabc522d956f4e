"""Batches equal record-at-a-time processing, for random topologies and inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tidewheel import KStream, Materialized, Serdes, StreamsBuilder, StreamsConfig, Topology
from tidewheel.testing import TopologyTestDriver

KEYS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "e", "f"]))
VALUES = st.one_of(st.none(), st.integers(-5, 40))
TIMES = st.integers(0, 200)
RECORDS = st.lists(st.tuples(KEYS, VALUES, TIMES), min_size=1, max_size=120)


class BoomError(Exception): ...


@dataclass
class Calls:
    """Calls of user functions by operator; equal results include equal calls."""

    made: dict[str, list[Any]] = field(default_factory=dict)

    def note(self, name: str, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        def recorded(key: Any, value: Any) -> Any:
            self.made.setdefault(name, []).append((key, value))
            return function(key, value)

        return recorded


def boom_above_30(value: int | None) -> int | None:
    if value is not None and value > 30:
        raise BoomError(value)
    return value


#: Name -> (function of (key, value), its use on a stream). Values may be None.
OPERATORS = (
    "filter", "filter_not", "map", "map_values", "flat_map", "flat_map_values", "select_key", "peek", "split",
    "merge", "merge_self", "count", "reduce", "aggregate", "repartition", "failing_map", "failing_filter",
    "failing_reduce",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    operator: str
    source: int
    other: int


STEPS = st.lists(
    st.builds(Step, st.sampled_from(OPERATORS), st.integers(0, 1000), st.integers(0, 1000)),
    min_size=1,
    max_size=7,
)


Stream = KStream[Any, Any]

#: (stream, function that records the calls of another).
STATELESS: dict[str, Callable[[Stream, Callable[..., Any]], Stream]] = {
    "filter": lambda s, recorded: s.filter(recorded(lambda k, v: (v or 0) % 2 == 0)),
    "filter_not": lambda s, recorded: s.filter_not(recorded(lambda k, v: (v or 0) % 3 == 0)),
    "map": lambda s, recorded: s.map(
        recorded(lambda k, v: (v if k is None else f"{k}{k}"[:2], (v or 0) + 1))
    ),
    "map_values": lambda s, recorded: s.map_values(
        recorded(lambda k, v: None if v is None else v * 2)
    ),
    "flat_map": lambda s, recorded: s.flat_map(
        recorded(lambda k, v: [(k, i) for i in range((v or 0) % 4)])
    ),
    "flat_map_values": lambda s, recorded: s.flat_map_values(
        recorded(lambda k, v: [v, None, 7][: (v or 0) % 4])
    ),
    "select_key": lambda s, recorded: s.select_key(
        recorded(lambda k, v: None if v is None else f"k{v % 3}")
    ),
    "peek": lambda s, recorded: s.peek(recorded(lambda k, v: None)),
    "failing_map": lambda s, recorded: s.map_values(recorded(lambda k, v: boom_above_30(v))),
    "failing_filter": lambda s, recorded: s.filter(
        recorded(lambda k, v: boom_above_30(v) is not None)
    ),
}


def _stateful(step: Step, name: str, stream: KStream[Any, Any], calls: Calls) -> KStream[Any, Any]:
    store = Materialized(
        f"{name}-store", key_serde=Serdes.json(), value_serde=Serdes.json(), store_type="in_memory"
    )
    grouped = stream.group_by_key(key_serde=Serdes.json(), value_serde=Serdes.json())
    match step.operator:
        case "count":
            counts = Materialized(f"{name}-store", key_serde=Serdes.json(), store_type="in_memory")
            return grouped.count(store=counts).to_stream()
        case "reduce":
            return grouped.reduce(calls.note(name, lambda a, b: a + b), store=store).to_stream()
        case "failing_reduce":
            return grouped.reduce(lambda a, b: a + (boom_above_30(b) or 0), store=store).to_stream()
        case _:

            def add(key: Any, value: Any, seen: list[Any]) -> list[Any]:
                seen.append(value)  # Changes its aggregate in place, then may fail.
                boom_above_30(value)
                return seen[-3:]

            lists = grouped.aggregate(list, add, store=store).to_stream()
            return lists.map_values(sum)


def build(steps: list[Step], calls: Calls) -> Topology:
    builder = StreamsBuilder()
    json = Serdes.json()
    streams: list[KStream[Any, Any]] = [builder.stream("in", key_serde=json, value_serde=json)]
    leaves = {0}
    for number, step in enumerate(steps):
        name = f"op{number}"
        at = step.source % len(streams)
        stream = streams[at]
        leaves.discard(at)
        if step.operator in STATELESS:
            streams.append(STATELESS[step.operator](stream, partial(calls.note, name)))
        elif step.operator == "split":
            branches = stream.split(
                {
                    "low": calls.note(name, lambda k, v: (v or 0) < 5),
                    "high": lambda k, v: (v or 0) > 20,
                },
                default="rest",
            )
            leaves.update(range(len(streams), len(streams) + len(branches) - 1))
            streams.extend(branches.values())
        elif step.operator in ("merge", "merge_self"):
            other = (
                streams[step.other % len(streams)]
                if step.operator == "merge"
                else stream.map_values(lambda v: v)
            )
            leaves.discard(step.other % len(streams) if step.operator == "merge" else at)
            streams.append(stream.merge(other))
        elif step.operator == "repartition":
            streams.append(stream.repartition(name=name, key_serde=json, value_serde=json))
        else:
            streams.append(_stateful(step, name, stream, calls))
        leaves.add(len(streams) - 1)
    for number in sorted(leaves):
        streams[number].to(f"out{number}", key_serde=json, value_serde=json)
    return builder.build()


@dataclass
class Result:
    outputs: dict[str, list[tuple[Any, Any, int]]]
    stores: dict[str, list[Any]]
    calls: dict[str, list[Any]]


def run(
    steps: list[Step],
    records: list[Any],
    *,
    record_by_record: bool,
    cuts: list[int],
    cache_bytes: int = 0,
) -> Result:
    """`cuts` are batch bounds."""
    calls = Calls()
    topology = build(steps, calls)
    config = StreamsConfig(
        application_id="executors",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=cache_bytes,
        processing_exception_handler="continue",
    )
    json = Serdes.json()
    with TopologyTestDriver(topology, config, record_by_record=record_by_record) as driver:
        source = driver.create_input_topic("in", key_serde=json, value_serde=json)
        bounds = [0, *sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
        for start, stop in pairwise(bounds):
            source.pipe_batch(records[start:stop])
        topics = [
            node.topic
            for sub in topology.spec(config).subtopologies
            for node in sub.sinks
            if not node.internal
        ]
        outputs = {
            str(topic): [
                (r.key, r.value, r.timestamp)
                for r in driver.create_output_topic(
                    str(topic), key_serde=json, value_serde=json
                ).read_records()
            ]
            for topic in topics
        }
        stores = {name: list(store.all()) for name, store in driver.get_all_state_stores().items()}
    return Result(outputs, stores, calls.made)


@pytest.mark.slow
@settings(max_examples=60)
@given(steps=STEPS, records=RECORDS, cuts=st.lists(st.integers(0, 1000), max_size=4))
def test_batches_equal_record_by_record(
    steps: list[Step], records: list[Any], cuts: list[int]
) -> None:
    for step in steps:
        event(step.operator)
    expected = run(steps, records, record_by_record=True, cuts=[])
    assert run(steps, records, record_by_record=False, cuts=[]) == expected
    if build(steps, Calls()).spec().repartition_topics:
        # Repartitioned records meet others elsewhere, so only equal cuts compare.
        expected = run(steps, records, record_by_record=True, cuts=cuts)
    assert run(steps, records, record_by_record=False, cuts=cuts) == expected


@pytest.mark.slow
@settings(max_examples=50)
@given(steps=STEPS, records=RECORDS, cuts=st.lists(st.integers(0, 1000), max_size=4))
def test_batches_equal_record_by_record_with_caches(
    steps: list[Step], records: list[Any], cuts: list[int]
) -> None:
    expected = run(steps, records, record_by_record=True, cuts=cuts, cache_bytes=1 << 20)
    assert run(steps, records, record_by_record=False, cuts=cuts, cache_bytes=1 << 20) == expected
