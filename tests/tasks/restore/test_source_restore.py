"""Tables restored from their source topic: the same rows as processing, and no changelog."""

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import APP, Bench
from tidewheel import (
    ErrorResponse,
    Materialized,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.tasks.processing.api.topology_spec import OffsetReset

STRING = Serdes.string()
Store = dict[str, tuple[str, int]]


def bench_of(
    *,
    materialized: Materialized | str = "rows",
    partitions: int = 1,
    extractor: Any = None,
    offset_reset: OffsetReset | None = None,
    topology_optimization: Literal["all", "none"] = "all",
    **settings: Any,
) -> Bench:
    """Return a worker with table "rows" of topic "in"; its changes go to "out"."""
    builder = StreamsBuilder()
    table = builder.table(
        "in",
        key_serde=STRING,
        value_serde=STRING,
        store=materialized,
        timestamp_extractor=extractor,
        offset_reset=offset_reset,
    )
    table.to_stream().to("out", key_serde=STRING, value_serde=STRING)
    config = StreamsConfig(
        application_id=APP,
        bootstrap_servers="unused:9092",
        topology_optimization=topology_optimization,
    )
    return Bench(builder.build(config), {"in": partitions, "out": 1, "dead": 1}, **settings)


def rows(bench: Bench) -> Store:
    found: Store = {}
    for key, stored in bench.rows("rows").items():
        value, timestamp = unwrap_value(stored)[:2]
        found[key.decode()] = (value.decode(), timestamp)
    return found


def restores(bench: Bench) -> list[tuple[str, str, int, int, int]]:
    return [
        (event.kind, event.topic, event.start, event.end, event.restored)
        for event in bench.events
        if event.kind != "batch"
    ]


def test_a_table_restored_from_its_input_has_no_changelog() -> None:
    bench = bench_of()
    assert bench.plan.changelog_topics == ()
    bench.send("in", "a", "1", timestamp=5)
    bench.send("in", "b", "2", timestamp=6)
    bench.send("in", "a", "3", timestamp=7)
    assert bench.live()
    assert rows(bench) == {"a": ("3", 7), "b": ("2", 6)}
    assert bench.live()
    assert restores(bench) == []
    assert len(bench.outputs("out")) == 3


def test_a_lost_disk_is_restored_from_the_input() -> None:
    bench = bench_of()
    for number in range(5):
        bench.send("in", f"k{number}", str(number), timestamp=number)
    bench.send("in", "k0", None, timestamp=9)
    assert bench.live()
    bench.disk.versions.clear()
    bench.send("in", "new", "5", timestamp=10)
    assert bench.live()
    assert restores(bench) == [("start", "in", 0, 6, 0), ("end", "in", 0, 6, 6)]
    assert rows(bench) == {**{f"k{n}": (str(n), n) for n in range(1, 5)}, "new": ("5", 10)}
    assert len(bench.outputs("out")) == 7  # without restored rows


def test_a_new_application_restores_no_rows() -> None:
    bench = bench_of()
    bench.send("in", "a", "1", timestamp=1)
    assert bench.live()
    bench.broker.groups.clear()
    assert bench.live(accept_offsets=True)
    assert bench.events == []
    assert rows(bench) == {"a": ("1", 1)}
    assert len(bench.outputs("out")) == 2


def test_a_restore_includes_rows_from_before_the_first_start() -> None:
    """As in Kafka Streams: the topic is the changelog, from its start."""
    bench = bench_of(offset_reset="latest")
    bench.send("in", "a", "old", timestamp=1)
    bench.send("in", "b", "old", timestamp=2)
    assert bench.live()
    assert rows(bench) == {}
    bench.send("in", "b", "new", timestamp=3)
    assert bench.live()
    assert rows(bench) == {"b": ("new", 3)}
    bench.disk.versions.clear()
    assert bench.live()
    assert restores(bench) == [("start", "in", 0, 3, 0), ("end", "in", 0, 3, 3)]
    assert rows(bench) == {"a": ("old", 1), "b": ("new", 3)}
    assert len(bench.outputs("out")) == 1  # without old rows


def test_with_a_changelog_a_restore_includes_only_processed_rows() -> None:
    bench = bench_of(offset_reset="latest", topology_optimization="none")
    bench.send("in", "a", "old", timestamp=1)
    assert bench.live()
    bench.send("in", "b", "new", timestamp=3)
    assert bench.live()
    bench.disk.versions.clear()
    assert bench.live()
    assert rows(bench) == {"b": ("new", 3)}


def test_an_offset_that_was_set_back_empties_the_store() -> None:
    bench = bench_of()
    bench.send("in", "a", "1", timestamp=1)
    bench.send("in", "b", "2", timestamp=2)
    assert bench.live()
    (where, committed) = next(iter(bench.broker.groups[APP].items()))
    bench.broker.groups[APP][where] = type(committed)(1, "")
    seen: list[list[Any]] = []

    def track_rows(worker: Any, _source: Any) -> None:
        for task in worker.tasks.values():
            if task.life.cycle.state == "RUNNING" and not seen:
                seen.append([key for key, _ in task.stores.stores["rows"].all()])

    bench.at_poll.append(track_rows)
    assert bench.live(accept_offsets=True)
    assert restores(bench) == [("start", "in", 0, 1, 0), ("end", "in", 0, 1, 1)]
    assert seen[0][:1] == ["a"]
    assert rows(bench) == {"a": ("1", 1), "b": ("2", 2)}


def test_an_in_memory_table_is_restored_at_every_start() -> None:
    bench = bench_of(materialized=Materialized("rows", store_type="in_memory"))
    bench.send("in", "a", "1", timestamp=1)
    assert bench.live()
    assert bench.live()
    assert restores(bench) == [("start", "in", 0, 1, 0), ("end", "in", 0, 1, 1)]


# -- bad records -------------------------------------------------------------------------------------------------------


def poison(bench: Bench) -> None:
    """Send an undeserializable record between two good ones."""
    bench.send("in", "a", "1", timestamp=1)
    bench.broker.send("in", b"\xff\xfe", b"a", timestamp=2)
    bench.send("in", "b", "3", timestamp=3)


def test_bad_records_are_skipped_again() -> None:
    bench = bench_of(deserialization_exception_handler="continue", dead_letter_queue_topic="dead")
    poison(bench)
    assert bench.live()
    assert len(bench.outputs("dead")) == 1
    bench.disk.versions.clear()
    assert bench.live()
    assert rows(bench) == {"a": ("1", 1), "b": ("3", 3)}
    assert len(bench.outputs("dead")) == 1


def test_a_handler_that_returns_fail_stops_the_restore() -> None:
    asked: list[int] = []

    def once(context: Any, _record: Any, _error: Exception) -> ErrorResponse:
        asked.append(context.offset)
        return ErrorResponse(action="continue" if len(asked) == 1 else "fail")

    bench = bench_of(deserialization_exception_handler=once)
    poison(bench)
    assert bench.live()
    bench.disk.versions.clear()
    with pytest.raises(RecordFailedError, match="in-0 offset 1"):
        bench.live()
    assert asked == [1, 1]


# -- timestamps --------------------------------------------------------------------------------------------------------


def steps(record: Any, partition_time: int) -> int:
    """Return the header's time, or the partition time + 10."""
    for name, value in record.headers:
        if name == "at":
            return int(value)
    return partition_time + 10


def test_timestamps_are_extracted_again() -> None:
    bench = bench_of(extractor=steps)
    bench.broker.send("in", b"1", b"a", timestamp=0, headers=(("at", b"100"),))
    bench.send("in", "b", "2", timestamp=0)
    assert bench.live()
    bench.send("in", "c", "3", timestamp=0)
    assert bench.live()
    expected = {"a": ("1", 100), "b": ("2", 110), "c": ("3", 120)}
    assert rows(bench) == expected
    bench.disk.lose(2)
    assert bench.live()
    assert restores(bench)[:1] == [("start", "in", 0, 3, 0)]
    assert rows(bench) == expected


# -- random lives ------------------------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.sampled_from("xyz"), st.integers(0, 50)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=25)
@given(
    lives=st.lists(
        st.tuples(CHANGES, st.integers(0, 40), st.integers(0, 4)), min_size=1, max_size=4
    ),
    caching=st.booleans(),
)
def test_the_rows_are_those_of_the_topic(
    lives: list[tuple[list[tuple[str, str | None, int]], int, int]], *, caching: bool
) -> None:
    bench = bench_of(cache_bytes=1_000_000 if caching else 0)
    expected: Store = {}
    for changes, crash_after, lost in lives:
        for key, value, timestamp in changes:
            bench.send("in", key, value, timestamp=timestamp)
            expected.pop(key, None)
            if value is not None:
                expected[key] = (value, timestamp)
        bench.live(crash_after=crash_after)
        bench.disk.lose(lost)
    assert bench.live()
    assert rows(bench) == expected
    assert bench.committed[TopicPartition("in", 0)] == sum(len(changes) for changes, _, _ in lives)
