"""Resharding: a changed number of shards changes no result, in any life of the application."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import APP, Bench
from tests.tasks.task.test_shards import (
    RECORDS,
    Sent,
    by_key,
    callbacks,
    counts,
    joins,
    send,
    sessions,
    windows,
)
from tidewheel import Topology
from tidewheel.rebalance.model import HASH_END, Shard, TaskId, TopicPartition
from tidewheel.tasks.commit.resharding import (
    UnlikeProgressError,
    committed,
    floor_of,
    resharded,
)
from tidewheel.tasks.kafka.internal_topics import offsets_group
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

COUNTS = st.sampled_from([1, 2, 4, 8])


@st.composite
def vectors(draw: st.DrawFn, shard: Shard) -> Vector:
    inner = st.integers(shard.first_hash + 1, shard.end_hash - 1)
    firsts = (shard.first_hash, *sorted(draw(st.sets(inner, max_size=3))))
    offsets = draw(st.lists(st.integers(0, 9), min_size=len(firsts), max_size=len(firsts)))
    return Vector(firsts, tuple(offsets), shard.end_hash)


def progress(vector: Vector, shards: int, **facts: Any) -> Progress:
    return Progress(
        task_epoch=7,
        transactional_id="app-1",
        topic_id=facts.pop("topic_id", bytes(16)),
        topology_hash=bytes(8),
        vector=vector,
        shards=shards,
        **facts,
    )


@given(st.data(), COUNTS, COUNTS)
def test_the_next_offset_of_each_hash_stays(data: st.DataObject, before: int, after: int) -> None:
    old = {
        shard: progress(data.draw(vectors(shard)), before, stream_time_ms=shard.number)
        for shard in Shard.all_of(before)
    }
    new = resharded(old, after, "app-reshard")
    assert list(new) == list(Shard.all_of(after))
    for hash_ in data.draw(st.lists(st.integers(0, HASH_END - 1), min_size=5)):
        found = [
            next_offset(each[hash_ // (HASH_END // count)].vector, hash_)
            for each, count in ((list(old.values()), before), (list(new.values()), after))
        ]
        assert found[0] == found[1]
    for shard, each in new.items():
        assert (each.vector.first_hashes[0], each.vector.end_hash) == (
            shard.first_hash,
            shard.end_hash,
        )
        sources = [
            source
            for at, source in old.items()
            if at.first_hash < shard.end_hash and shard.first_hash < at.end_hash
        ]
        assert each.committed_offset <= min(source.vector.lowest for source in sources)
        assert each.stream_time_ms == min(source.stream_time_ms for source in sources)
        offset = committed(each)
        assert Progress.decode(offset.metadata, committed_offset=offset.offset) == each
    floor = floor_of(new.values())
    assert floor.committed_offset == min(each.committed_offset for each in new.values())
    assert floor.shards == after
    # There and back again, nothing has changed.
    assert resharded(resharded(new, before, "app-reshard"), after, "app-reshard") == new


def next_offset(vector: Vector, hash_: int) -> int:
    return vector.lowest_between(hash_, hash_ + 1)


def test_progress_of_another_topic_cannot_be_joined() -> None:
    low, high = Shard.all_of(2)
    old = {
        low: progress(Vector.at(5, low.first_hash, low.end_hash), 2),
        high: progress(Vector.at(5, high.first_hash, high.end_hash), 2, topic_id=b"x" * 16),
    }
    with pytest.raises(UnlikeProgressError):
        resharded(old, 1, "app-reshard")
    del old[high]
    with pytest.raises(ValueError, match="hashes"):
        resharded({**old, high: progress(Vector.at(5, 9, 10), 2)}, 1, "app-reshard")


#: By number of shards: records of a life of all shards, then of some of them that run ahead, which
#: ones, step at which these crash (0: none), whether the disk is lost, and threads.
EPOCHS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4]),
        st.integers(0, 4),
        st.integers(4, 15),
        st.sets(st.integers(0, 3), max_size=3),
        st.just(0) | st.integers(0, 25),
        st.booleans(),
        st.sampled_from([1, 1, 3]),
    ),
    max_size=4,
)
_ALL = {0, 1, 2, 3}


def reshard(bench: Bench, topics: list[str], before: int, after: int) -> None:
    groups = bench.broker.groups
    moved: dict[str, dict[TopicPartition, Any]] = {}
    for topic in topics:
        at = TopicPartition(topic, 0)
        old: dict[Shard, Progress] = {}
        for shard in Shard.all_of(before):
            offset = groups[offsets_group(APP, shard)].get(at)
            assert offset is not None, "all shards have run"
            found = Progress.decode(offset.metadata, committed_offset=offset.offset)
            assert isinstance(found, Progress), "all shards have committed"
            old[shard] = found
        new: Mapping[Shard, Progress] = resharded(old, after, "app-reshard")
        if after > 1:
            moved.setdefault(APP, {})[at] = committed(floor_of(new.values()))
        for shard, each in new.items():
            moved.setdefault(offsets_group(APP, shard), {})[at] = committed(each)
    for group, offsets in moved.items():
        groups[group].update(offsets)


@pytest.mark.parametrize("program", [counts, windows, sessions, joins, callbacks])
@settings(max_examples=20, deadline=None)
@given(records=RECORDS, epochs=EPOCHS)
def test_K8_a_changed_number_of_shards_changes_no_result(
    program: Callable[[], Topology],
    records: list[Sent],
    epochs: list[tuple[int, int, int, set[int], int, bool, int]],
) -> None:
    topics = ["in", "table"] if program is joins else ["in"]
    partitions = {**dict.fromkeys(topics, 1), "out": 1}
    options: dict[str, Any] = {"topology_optimization": "none"}
    whole, bench = Bench(program(), partitions, **options), Bench(program(), partitions, **options)
    plan = bench.plan
    send(whole, records, topics)
    assert whole.live()
    left, of = list(records), 0

    def live(count: int, numbers: set[int], threads: int, crash_after: int = 0) -> None:
        # The order of a join depends on the records that have arrived.
        arriving = len(records) if program is joins else count
        start = len(records) - len(left)
        send(bench, left[:arriving], topics[start % len(topics) :] + topics[: start % len(topics)])
        del left[:arriving]
        shards = [TaskId(0, 0, shard) for shard in Shard.all_of(of) if shard.number in numbers]
        if shards:
            is_over = bench.live(
                assigned=frozenset(shards), crash_after=crash_after or None, threads=threads
            )
            assert is_over or crash_after

    for wanted, together, ahead, numbers, crash_after, loses_disk, threads in [
        *epochs,
        (4, len(records), 0, _ALL, 0, False, 2),
    ]:
        if of and wanted != of:
            reshard(bench, topics, of, wanted)
        of = wanted
        bench.plan = with_shards(plan, of, None)
        live(together, _ALL, threads)
        live(ahead, numbers, threads, crash_after)
        if loses_disk:
            bench.disk.versions.clear()
    assert by_key(bench) == by_key(whole)
    names = {str(TaskId(0, 0, shard)).replace("/", "-") for shard in Shard.all_of(of)}
    for name in bench.disk.versions.keys() - names:  # those of other numbers of shards
        del bench.disk.versions[name]
    assert bench.rows("store") == whole.rows("store")
