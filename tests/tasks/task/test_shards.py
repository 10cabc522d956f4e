"""Shards: tasks of parts of a partition give together the result of the whole task."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.bench import Bench
from tidewheel import (
    Processor,
    PunctuationType,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from tidewheel.rebalance.model import Shard, TaskId
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress

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


class Flush(Processor[str, str, str, int]):
    """Counts each key, and forwards the counts of all keys as stream time passes."""

    keyed = True

    def init(self, context: Any) -> None:
        super().init(context)
        self._store = context.get_state_store("store")
        context.schedule(10, PunctuationType.STREAM_TIME, self._flush, start=0)

    def process(self, record: Record[str, str]) -> None:
        self._store.put(record.key, (self._store.get(record.key) or 0) + 1)

    def _flush(self, now_ms: int) -> None:
        for key, count in list(self._store.all()):
            self._store.delete(key)
            self.context.forward(Record(key, 1_000 * now_ms + count, now_ms))


def callbacks() -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("store", key_serde=STRING, value_serde=LONG))
    texts = builder.stream("in", **TEXT).filter(lambda key, _: key is not None)
    texts.process(Flush, stores=["store"]).to("out", key_serde=STRING, value_serde=LONG)
    return builder.build()


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([*KEYS, None]), st.sampled_from(["x", "y", None]), st.integers(0, 60)
    ),
    max_size=40,
)
#: By life of a worker: records sent before it, shards that it runs, step at which it crashes (0:
#: none), whether the disk is lost after it, and its threads (and key ranges per shard).
LIVES = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.sets(st.integers(0, 3)),
        st.integers(0, 25),
        st.booleans(),
        st.sampled_from([1, 1, 3, 8]),
    ),
    max_size=6,
)


def by_key(bench: Bench) -> dict[str | None, list[bytes | None]]:
    outputs = defaultdict[str | None, list[bytes | None]](list)
    for key, value in bench.outputs("out"):
        outputs[key].append(value)
    # Records without a key have no order: several shards have them.
    outputs[None].sort(key=repr)
    return outputs


def send(bench: Bench, records: list[Sent], topics: list[str]) -> None:
    for number, (key, value, timestamp) in enumerate(records):
        bench.send(topics[number % len(topics)], key, value, timestamp)


@pytest.mark.parametrize("program", [counts, windows, sessions, joins, callbacks])
@settings(max_examples=25, deadline=None)
@given(records=RECORDS, lives=LIVES, of=st.sampled_from([2, 4]))
def test_K8_shards_together_equal_the_whole_task(
    program: Callable[[], Topology],
    records: list[Sent],
    lives: list[tuple[int, set[int], int, bool, int]],
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
    for count, numbers, crash_after, loses_disk, threads in [
        *lives,
        (len(records), set(range(of)), 0, False, 2),
    ]:
        # The order of a join depends on the records that have arrived.
        arriving = len(records) if program is joins else count
        now, left = left[:arriving], left[arriving:]
        send(sharded, now, topics[sent % len(topics) :] + topics[: sent % len(topics)])
        sent += len(now)
        owned = frozenset(shard for shard in shards if shard.shard.number in numbers)
        if owned:
            is_over = sharded.live(assigned=owned, crash_after=crash_after or None, threads=threads)
            assert is_over or crash_after
        if loses_disk:
            sharded.disk.versions.clear()
    assert by_key(sharded) == by_key(whole)
    assert sharded.rows("store") == whole.rows("store")
    for shard in Shard.all_of(of):
        committed = sharded.broker.groups[f"app~{shard}"]
        ends = {partition.topic: at.offset for partition, at in committed.items()}
        assert ends == {topic: len(sharded.broker.records(topic)) for topic in topics}
        for at in committed.values():
            progress = Progress.decode(at.metadata, committed_offset=at.offset)
            assert progress is not None
            bounds = progress.vector.first_hashes[0], progress.vector.end_hash
            assert bounds == (shard.first_hash, shard.end_hash)
