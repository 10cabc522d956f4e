"""Shards: tasks of parts of a partition give together the result of the whole task."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.bench import Bench
from tidewheel import Serdes, SessionWindows, StreamsBuilder, TimeWindows, Topology
from tidewheel.rebalance.model import Shard, TaskId
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

STRING = Serdes.string()
LONG = Serdes.int64()
KEYS = ["a", "b", "c", "d", "e", "f", "g"]

Sent = tuple[str | None, str | None, int]


def counts() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXT).group_by_key()
    grouped.count(store="store").to_stream().to("out", key_serde=STRING, value_serde=LONG)
    return builder.build()


def windows() -> Topology:
    builder = StreamsBuilder()
    windowed = builder.stream("in", **TEXT).group_by_key().windowed_by(TimeWindows(10, grace=20))
    windowed.count(store="store").to_stream(lambda key, _: f"{key.key}@{key.start}").to(
        "out", key_serde=STRING, value_serde=LONG
    )
    return builder.build()


def sessions() -> Topology:
    builder = StreamsBuilder()
    windowed = builder.stream("in", **TEXT).group_by_key().windowed_by(SessionWindows(5, grace=20))
    windowed.count(store="store").to_stream(lambda key, _: f"{key.key}@{key.start}-{key.end}").to(
        "out", key_serde=STRING, value_serde=LONG
    )
    return builder.build()


def joins() -> Topology:
    builder = StreamsBuilder()
    table = builder.table("table", store="store", **TEXT)
    builder.stream("in", **TEXT).left_join(table, lambda left, right: f"{left}+{right}").to(
        "out", key_serde=STRING, value_serde=STRING
    )
    return builder.build()


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([*KEYS, None]), st.sampled_from(["x", "y", None]), st.integers(0, 60)
    ),
    max_size=40,
)
#: By life of a worker: records sent before it, shards that it runs, step at which it crashes (0:
#: none), and whether the disk is lost after it.
LIVES = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.sets(st.integers(0, 3)),
        st.integers(0, 25),
        st.booleans(),
    ),
    max_size=6,
)


def by_key(bench: Bench) -> dict[str | None, list[bytes | None]]:
    outputs = defaultdict[str | None, list[bytes | None]](list)
    for key, value in bench.outputs("out"):
        outputs[key].append(value)
    return dict(outputs)


def send(bench: Bench, records: list[Sent], topics: list[str]) -> None:
    for number, (key, value, timestamp) in enumerate(records):
        bench.send(topics[number % len(topics)], key, value, timestamp)


@pytest.mark.parametrize("program", [counts, windows, sessions, joins])
@settings(max_examples=25, deadline=None)
@given(records=RECORDS, lives=LIVES, of=st.sampled_from([2, 4]))
def test_K8_shards_together_equal_the_whole_task(
    program: Callable[[], Topology],
    records: list[Sent],
    lives: list[tuple[int, set[int], int, bool]],
    of: int,
) -> None:
    topics = ["in", "table"] if program is joins else ["in"]
    counts = {**dict.fromkeys(topics, 1), "out": 1}
    options: dict[str, Any] = {"topology_optimization": "none"}
    whole, sharded = Bench(program(), counts, **options), Bench(program(), counts, **options)
    sharded.plan = with_shards(sharded.plan, of, None)
    send(whole, records, topics)
    assert whole.live()
    shards = [TaskId(0, 0, shard) for shard in Shard.all_of(of)]
    left = list(records)
    sent = 0
    for count, numbers, crash_after, loses_disk in [
        *lives,
        (len(records), set(range(of)), 0, False),
    ]:
        # The order of a join depends on the records that have arrived.
        arriving = len(records) if program is joins else count
        now, left = left[:arriving], left[arriving:]
        send(sharded, now, topics[sent % len(topics) :] + topics[: sent % len(topics)])
        sent += len(now)
        owned = frozenset(shard for shard in shards if shard.shard.number in numbers)
        if owned:
            assert sharded.live(assigned=owned, crash_after=crash_after or None) or crash_after
        if loses_disk:
            sharded.disk.versions.clear()
    assert by_key(sharded) == by_key(whole)
    assert sharded.rows("store") == whole.rows("store")
    for shard in Shard.all_of(of):
        ends = {
            partition.topic: offset.offset
            for partition, offset in sharded.broker.groups[f"app~{shard}"].items()
        }
        assert ends == {topic: len(sharded.broker.records(topic)) for topic in topics}
