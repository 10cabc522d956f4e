from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tidewheel import (
    CalendarWindows,
    Materialized,
    Processor,
    RecordFailedError,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
)
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp
from tidewheel.testing import TopologyTestDriver

KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}


def store(**changes: Any) -> Materialized:
    return Materialized("store", **{**KEYED, **changes})


def counted(stream: Any) -> Any:
    return (
        stream.group_by_key(**KEYED).count(store=Materialized("store", key_serde=JSON)).to_stream()
    )


def reduced(stream: Any) -> Any:
    return (
        stream.group_by_key(**KEYED).reduce(lambda a, b: a + b or None, store=store()).to_stream()
    )


def listed(stream: Any) -> Any:
    def add(key: Any, value: Any, seen: list[Any]) -> list[Any] | None:
        seen.append(value)
        return None if value == "clear" else seen

    return stream.group_by_key(**KEYED).aggregate(list, add, store=store()).to_stream()


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("use", [counted, reduced, listed])
def test_null_keys_and_null_values_are_dropped(use: Any, record_by_record: bool) -> None:
    with driver_of(use, record_by_record=record_by_record) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([(None, 1, 1), ("a", None, 2), ("a", 5, 3), (None, None, 4)])
        assert [(key, time) for key, _, time in outputs(driver)] == [("a", 3)]
        assert driver.metrics()["0_0"]["dropped-records-total"] == 3
        source.pipe_batch([(None, 1, 1)])
        assert outputs(driver) == []


@pytest.mark.parametrize("use", [counted, reduced, listed])
def test_a_result_has_the_largest_timestamp_of_its_records(use: Any) -> None:
    rows = [("a", 1, 10), ("b", 1, 3), ("a", 1, 5), ("a", 1, 12), ("b", 1, 2)]
    assert [(key, time) for key, _, time in run(use, rows)] == [
        ("a", 10),
        ("b", 3),
        ("a", 10),
        ("a", 12),
        ("b", 3),
    ]


STEPS = st.one_of(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9)), min_size=1, max_size=8),
    st.just("forget"),
    st.tuples(st.sampled_from("abcde"), st.none() | st.integers(1, 9), st.integers(0, 12)),
)


@pytest.mark.parametrize("kept_bytes", [1, 64 << 20])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@given(steps=st.lists(STEPS, max_size=8))
def test_counts_continue_from_stored_rows_and_from_rows_of_other_writers(
    cache_bytes: int, kept_bytes: int, steps: list[Any]
) -> None:
    rows: dict[str, tuple[int, int]] = {}
    memory: dict[str, Any] = {
        "statestore_cache_max_bytes": cache_bytes,
        "statestore_uncommitted_max_bytes": kept_bytes,
    }
    with driver_of(counted, **memory) as driver:
        source = driver.create_input_topic("in", **KEYED)
        counts: Any = driver.get_state_store("store")
        for step in steps:
            if step == "forget":
                counts.buffer.discard()
            elif isinstance(step, tuple):
                key, value, time = step
                counts.put(key, None if value is None else ValueAndTimestamp(value, time))
                rows[key] = (value, time)
                if value is None:
                    del rows[key]
                driver.advance_wall_clock_time(
                    0
                )  # Earlier puts are committed and, without a cache, forwarded.
                outputs(driver)
            else:
                expected: list[Any] = []
                for key, time in step:
                    count, latest = rows.get(key, (0, -1))
                    rows[key] = (count + 1, max(latest, time))
                    expected.append((key, *rows[key]))
                source.pipe_batch([(key, 0, time) for key, time in step])
                if cache_bytes:
                    last = reversed(dict.fromkeys(key for key, _ in reversed(step)))
                    expected = [(key, *rows[key]) for key in last]
                assert outputs(driver) == expected
        assert {key: (kept.value, kept.timestamp) for key, kept in counts.all()} == rows


def test_a_result_of_none_deletes_the_row_with_its_time() -> None:
    assert run(reduced, [("a", 2, 10), ("a", -2, 11), ("a", 7, 4)]) == [
        ("a", 2, 10),
        ("a", None, 11),
        ("a", 7, 4),
    ]
    assert run(listed, [("a", 1, 10), ("a", "clear", 9), ("a", 2, 4)]) == [
        ("a", [1], 10),
        ("a", None, 10),
        ("a", [2], 4),
    ]


def test_every_forwarded_aggregate_keeps_its_value() -> None:
    assert [value for _, value, _ in run(listed, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)])] == [
        [1],
        [1, 2],
        [1, 2, 3],
    ]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_failing_function_does_not_change_the_aggregate(cache_bytes: int) -> None:
    def add(key: Any, value: Any, seen: list[Any]) -> list[Any]:
        seen.append(value)
        if value == "boom":
            raise ValueError("after the change")
        return seen

    def use(stream: Any) -> Any:
        return stream.group_by_key(**KEYED).aggregate(list, add, store=store()).to_stream()

    rows = [("a", "boom", 1), ("a", 1, 2), ("a", "boom", 3), ("a", 2, 4), ("a", "boom", 5)]
    settings: dict[str, Any] = {
        "processing_exception_handler": "continue",
        "statestore_cache_max_bytes": cache_bytes,
    }
    assert run(use, rows, **settings)[-1] == ("a", [1, 2], 4)
    with pytest.raises(RecordFailedError, match=r"KSTREAM-AGGREGATE-.*in-0 offset 0.*ValueError"):
        run(use, rows)


def test_a_result_that_does_not_serialise_fails_its_record() -> None:
    def use(stream: Any) -> Any:
        return (
            stream.group_by_key(**KEYED)
            .aggregate(lambda: 0, lambda k, v, a: object() if v == 2 else a + v, store=store())
            .to_stream()
        )

    assert run(
        use, [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)], processing_exception_handler="continue"
    ) == [("a", 1, 1), ("a", 4, 3)]


def test_a_key_that_does_not_serialise_fails_its_record() -> None:
    def use(stream: Any) -> Any:
        return (
            stream.group_by_key()
            .count(store=Materialized("store", key_serde=Serdes.string()))
            .to_stream()
        )

    rows = [("a", 1, 1), (7, 1, 2), ("b", 1, 3)]
    assert run(use, rows, processing_exception_handler="continue") == [("a", 1, 1), ("b", 1, 3)]


ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 30)), max_size=30
)


@given(ROWS, ROWS)
def test_a_count_is_the_number_of_records_and_its_time_their_largest(
    first: list[Any], second: list[Any]
) -> None:
    with driver_of(counted) as driver:
        source = driver.create_input_topic("in", **KEYED)
        counts: dict[str, tuple[int, int]] = {}
        for rows in (first, second):
            source.pipe_batch(rows)
            expected = []
            for key, _, time in rows:
                count, latest = counts.get(key, (0, time))
                counts[key] = (count + 1, max(latest, time))
                expected.append((key, *counts[key]))
            assert outputs(driver) == expected


@given(ROWS, ROWS)
def test_with_a_cache_the_last_change_of_each_key_is_forwarded_at_the_commit(
    first: list[Any], second: list[Any]
) -> None:
    with driver_of(counted, statestore_cache_max_bytes=1 << 20) as driver:
        source = driver.create_input_topic("in", **KEYED)
        counts: dict[str, tuple[int, int]] = {}
        for rows in (first, second):
            source.pipe_batch(rows)
            for key, _, time in rows:
                count, latest = counts.get(key, (0, time))
                counts[key] = (count + 1, max(latest, time))
            last = reversed(dict.fromkeys(key for key, _, _ in reversed(rows)))
            assert outputs(driver) == [(key, *counts[key]) for key in last]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_headers_of_a_result_are_those_of_its_last_record(cache_bytes: int) -> None:
    with driver_of(counted, statestore_cache_max_bytes=cache_bytes) as driver:
        driver._enqueue("in", [driver.create_input_topic("in", **KEYED)._raw(key, 1, 5, headers) for key, headers in (
            ("a", (("n", b"1"),)), ("a", (("n", b"2"),)), ("b", (("n", b"3"),)), ("b", ()))])  # fmt: skip
        driver._settle()
        records = driver.create_output_topic("out", **KEYED).read_records()
        assert {(record.key, record.value): record.headers for record in records}[("a", 2)] == (
            ("n", b"2"),
        )
        assert {(record.key, record.value): record.headers for record in records}[("b", 2)] == ()


def test_a_row_created_and_deleted_between_two_commits_is_no_tombstone() -> None:
    with driver_of(reduced, statestore_cache_max_bytes=1 << 20) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("a", 2, 10), ("a", -2, 11), ("b", 1, 12)])
        assert outputs(driver) == [("b", 1, 12)]
        source.pipe_batch([("b", -1, 13)])
        assert outputs(driver) == [("b", None, 13)]


class Small(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize("commits_between", [0, 1, 2])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("number", [7, Small.SEVEN, True])
def test_a_processor_may_write_into_the_store_of_a_count(
    number: int, cache_bytes: int, commits_between: int
) -> None:
    class Setter(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            self.context.get_state_store("store").put("a", ValueAndTimestamp(number, 1))

    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=JSON, value_serde=JSON)
    stream.group_by_key(**KEYED).count(store=Materialized("store", key_serde=JSON)).to_stream().to(
        "out", **KEYED
    )
    builder.stream("set", key_serde=JSON, value_serde=JSON).process(Setter, stores=["store"])
    config = StreamsConfig(
        application_id="set",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=cache_bytes,
        statestore_uncommitted_max_bytes=1,
    )
    with TopologyTestDriver(builder.build(config), config) as driver:
        task = driver._tasks[0]
        setter = driver.create_input_topic("set", **KEYED)
        source = driver.create_input_topic("in", **KEYED)
        driver._enqueue("set", [setter._raw("x", 1, 1, ())])
        for _ in range(commits_between):
            while task.process(10):
                pass
            driver._settle()
        driver._enqueue("in", [source._raw("a", 1, 2, ()), source._raw("a", 1, 3, ())])
        while task.process(10):
            pass
        driver._settle()
        assert outputs(driver)[-1] == ("a", int(number) + 2, 3)


# -- deletions ---------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _fold(_key: str, value: str, aggregate: str) -> str | None:
    return None if value == "d" else aggregate + value


def _reduce(aggregate: str, value: str) -> str | None:
    return None if value == "d" else aggregate + value


def _cogroup(grouped: Any) -> Any:
    return grouped.cogroup(_fold).aggregate(str, value_serde=JSON)


DELETING: dict[str, Any] = {
    "aggregate": lambda grouped: grouped.aggregate(str, _fold, value_serde=JSON),
    "reduce": lambda grouped: grouped.reduce(_reduce),
    "cogroup": _cogroup,
    "tumbling": lambda grouped: grouped.windowed_by(TimeWindows(50, grace=50)).reduce(_reduce),
    "calendar": lambda grouped: grouped.windowed_by(CalendarWindows("day")).reduce(_reduce),
}


@pytest.mark.parametrize("store_type", ["rocksdb", "in_memory"])
@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize("name", DELETING)
def test_a_cached_deletion_has_the_time_of_its_record(
    name: str, store_type: str, store_format: str
) -> None:
    """Without a cache: the later time of record and row, as in Kafka Streams."""

    def times(cache: int) -> list[int]:
        with driver_of(
            lambda stream: (
                DELETING[name](stream.group_by_key(key_serde=JSON, value_serde=JSON))
                .to_stream()
                .select_key(lambda key, value: _text(value))
            ),
            statestore_cache_max_bytes=cache,
            dsl_store_suppliers=store_type,
            dsl_store_format=store_format,
        ) as driver:
            source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
            for row in (("a", "x", 10), ("a", "d", 5), ("a", "y", 7), ("a", "d", 20)):
                source.pipe_input(*row)
            return [time for _, _, time in outputs(driver)]

    assert times(0) == [10, 10, 7, 20]
    assert times(1 << 20) == [10, 5, 7, 20]


CACHED: dict[str, Any] = {
    "count": lambda stream: stream.group_by_key(**KEYED).count(),
    "reduce": lambda stream: stream.group_by_key(**KEYED).reduce(lambda old, new: new),
    "cogroup": lambda stream: (
        stream.group_by_key(**KEYED)
        .cogroup(lambda key, value, old: value)
        .cogroup(stream.group_by_key(**KEYED), lambda key, value, old: value)
        .aggregate(int, value_serde=JSON)
    ),
    "windows": lambda stream: (
        stream.group_by_key(**KEYED).windowed_by(TimeWindows(50)).reduce(lambda old, new: new)
    ),
    "sessions": lambda stream: stream.group_by_key(**KEYED).windowed_by(SessionWindows(5)).count(),
}


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("name", CACHED)
def test_a_cache_is_flushed_in_the_order_of_the_last_changes(
    name: str, record_by_record: bool
) -> None:
    """As in Kafka Streams; where a store or repartition topic is downstream."""
    for keys in ("cfbfcb", "cfbfcb" * 300):
        with driver_of(
            lambda stream: (
                CACHED[name](stream)
                .to_stream(lambda own, _: getattr(own, "key", own))
                .repartition(**KEYED)
            ),
            statestore_cache_max_bytes=1 << 20,
            record_by_record=record_by_record,
        ) as driver:
            source = driver.create_input_topic("in", **KEYED)
            source.pipe_batch([(key, number, 7) for number, key in enumerate(keys)])
            assert [key for key, _, _ in outputs(driver)] == ["f", "c", "b"]


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_a_deleted_session_has_the_time_of_its_end(cache: int) -> None:
    with driver_of(
        lambda stream: (
            stream.group_by_key(key_serde=JSON, value_serde=JSON)
            .windowed_by(SessionWindows(40, grace=50))
            .reduce(_reduce)
            .to_stream(lambda key, _: [key.start, key.end])
        ),
        statestore_cache_max_bytes=cache,
    ) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        for row in (("a", "x", 0), ("a", "y", 60), ("a", "z", 30)):
            source.pipe_input(*row)
        deleted = [(key, time) for key, value, time in outputs(driver) if value is None]
    assert deleted == [([0, 0], 0), ([60, 60], 60)]
