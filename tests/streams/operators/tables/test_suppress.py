"""`suppress`: only the last change of a row is emitted, when due or when the buffer is full."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tidewheel import (
    BufferConfig,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Suppressed,
    TopologyError,
)
from tidewheel.streams.windows import (
    CalendarWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windows,
)
from tidewheel.testing import TopologyTestDriver

KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}
UNBOUNDED = BufferConfig.unbounded()
MEMORY = Materialized("table", store_type="in_memory", **KEYED)


def held(limit: int | None, buffer: BufferConfig = UNBOUNDED) -> Callable[[Any], Any]:
    suppressed = Suppressed.until_time_limit(limit, buffer)
    return lambda stream: stream.to_table(store=MEMORY, **KEYED).suppress(suppressed).to_stream()


def test_no_time_to_wait_emits_every_change() -> None:
    rows = [("a", 1, 0), ("a", 0, 1), ("b", 1, 1), ("a", None, 1), ("b", 2, 0)]
    assert run(held(0), rows) == rows


def test_the_time_limit_counts_from_the_first_change_of_a_row() -> None:
    with driver_of(held(10)) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("a", 1, 0), ("a", 2, 9), ("b", 3, 9)])
        assert outputs(driver) == []
        source.pipe_input("c", 4, 10)
        assert outputs(driver) == [("a", 2, 9)]
        source.pipe_batch([("a", 5, 11), ("b", None, 15), ("d", 6, 18)])
        assert outputs(driver) == []
        source.pipe_input("e", 7, 21)
        assert outputs(driver) == [("b", None, 15), ("c", 4, 10), ("a", 5, 11)]


def test_an_older_record_does_not_move_stream_time_back() -> None:
    assert run(held(5), [("a", 1, 20), ("b", 2, 3), ("a", 3, 1)]) == [("b", 2, 3)]


def test_rows_of_equal_time_are_emitted_in_the_order_of_their_keys() -> None:
    """Serialised keys, as in Kafka Streams."""
    rows = [("b", 1, 0), ("a", 1, 0), ("z", 0, 10)]
    assert run(held(10), rows) == [("a", 1, 0), ("b", 1, 0)]


def test_a_full_buffer_emits_its_oldest_rows_early() -> None:
    rows = [("a", 1, 5), ("a", 0, 6), ("b", 1, 4), ("c", 1, 9), ("c", 2, 9)]
    buffer = BufferConfig.max_records(1).emit_early_when_full()
    assert run(held(None, buffer), rows) == [("b", 1, 4), ("a", 0, 6)]


def test_a_buffer_of_no_records_emits_every_change() -> None:
    rows = [("a", 1, 100), ("a", None, 100)]
    assert run(held(100, BufferConfig.max_records(0)), rows) == rows


def test_bytes_are_counted_as_kafka_streams_counts_them() -> None:
    # Key '"a"' (3 bytes), value of one digit, topic "in": 8 + 3 + 20 + 2 + 1 = 34 bytes per row.
    def use(limit: int) -> list[Any]:
        rows = [("a", 1, 0), ("b", 2, 1)]
        return run(held(None, BufferConfig.max_bytes(limit)), rows)

    assert use(68) == []
    assert use(67) == [("a", 1, 0)]


def test_the_values_before_count_for_the_size() -> None:
    with driver_of(held(None, BufferConfig.max_bytes(34 + 1 + 1))) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([("a", 1, 0), ("a", 2, 1)])  # 34, and 1 for the old value
        assert outputs(driver) == []
        source.pipe_input("b", 1, 0)
        assert outputs(driver) == [("a", 2, 1)]
        source.pipe_batch([("b", 22, 2), ("b", 333, 2)])  # 36, then 33 + 3 + 2
        assert outputs(driver) == [("b", 333, 2)]
        source.pipe_input("b", 4, 3)  # 34, and 3 for the value emitted before
        assert outputs(driver) == [("b", 4, 3)]


def test_headers_stay_with_their_change_and_count_for_the_size() -> None:
    with driver_of(held(5)) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_input("a", 1, 0, headers=(("first", b"1"),))
        source.pipe_input("a", 2, 1, headers=(("h", b"xy"), ("none", None)))
        source.pipe_input("b", 2, 1)
        source.pipe_input("c", 3, 6)
        records = driver.create_output_topic("out", **KEYED).read_records()
        assert [(record.key, record.headers) for record in records] == [
            ("a", (("h", b"xy"), ("none", None))),
            ("b", ()),
        ]
    with driver_of(held(None, BufferConfig.max_bytes(34))) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_input("a", 1, 0)
        assert outputs(driver) == []
        source.pipe_input("a", 1, 0, headers=(("h", b""),))
        assert outputs(driver) == [("a", 1, 0)]


def held_in_format(limit: int, rows: list[Any], store_format: str) -> list[Any]:
    use = held(None, BufferConfig.max_bytes(limit))
    with driver_of(use, dsl_store_format=store_format) as driver:
        source = driver.create_input_topic("in", **KEYED)
        for key, value, time, headers in rows:
            source.pipe_input(key, value, time, headers=headers)
        return outputs(driver)


@pytest.mark.parametrize(
    ("rows", "plain", "with_headers"),
    [
        # Timestamp (8) and an empty set of headers (1).
        ([("a", 1, 0, ())], 34, 34 + 9),
        # Headers count again: size, number, and two lengths.
        ([("a", 1, 0, (("h", b"12"),))], 34 + 3, 34 + 3 + 8 + (1 + 1 + 5)),
        # The old value counts with its own timestamp and headers.
        ([("a", 1, 0, (("h", b"12"),)), ("a", 2, 1, ())], 34 + 3, 34 + 9 + 1 + 8 + (1 + 1 + 5)),
        # A deletion has no value to count.
        ([("a", 1, 0, ()), ("a", None, 1, ())], 34, 34 - 1 + 1 + 9),
        ([("a", 1, 0, ()), ("a", None, 1, ()), ("a", 3, 2, ())], 34, 34 + 9),
    ],
)
def test_values_count_with_their_headers_if_stores_keep_them(
    rows: list[Any], plain: int, with_headers: int
) -> None:
    """Kafka Streams 4.4."""
    for store_format, size in (("DEFAULT", plain), ("HEADERS", with_headers)):
        assert held_in_format(size, rows, store_format) == []
        assert held_in_format(size - 1, rows, store_format) != []


@pytest.mark.parametrize(
    ("buffer", "figures"),
    [
        (BufferConfig.max_records(1), "2 of at most 1 records"),
        (BufferConfig.max_bytes(60), "68 of at most 60 bytes"),
        (
            BufferConfig.max_bytes(60).with_max_records(1),
            "2 of at most 1 records and 68 of at most 60 bytes",
        ),
    ],
)
@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_a_full_buffer_that_must_not_emit_stops_the_application(
    buffer: BufferConfig, figures: str, handler: str
) -> None:
    use = held(100, buffer.shut_down_when_full())
    with driver_of(use, processing_exception_handler=handler) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_input("a", 1, 0)
        with pytest.raises(StreamsError, match=rf"SUPPRESS-\d+: suppress holds {figures}, and"):
            source.pipe_input("b", 2, 1)


def test_an_aggregation_below_subtracts_the_values_it_added() -> None:
    def totals(stream: Any) -> Any:
        held_back = stream.to_table(store=MEMORY, **KEYED).suppress(
            Suppressed.until_time_limit(10, UNBOUNDED)
        )
        grouped = held_back.group_by(lambda k, v: ("all", v), **KEYED)
        return grouped.reduce(lambda total, v: total + v, lambda total, v: total - v).to_stream()

    rows = [
        ("a", 1, 0),
        ("a", 2, 1),
        ("a", 3, 2),
        ("b", 9, 10),
        ("a", 4, 11),
        ("a", 5, 12),
        ("c", 9, 21),
    ]
    assert run(totals, rows) == [("all", 3, 2), ("all", 12, 10), ("all", 14, 12)]


# -- joins of a suppressed table -----------------------------------------------------------


def joined(*, suppress_left: bool) -> StreamsBuilder:
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
    tables: dict[str, KTable[str, str]] = {
        name: builder.table(name, **text) for name in ("left", "right")
    }
    name = "left" if suppress_left else "right"
    tables[name] = tables[name].suppress(Suppressed.until_time_limit(10, UNBOUNDED))
    result = tables["left"].outer_join(tables["right"], lambda one, two: f"({one},{two})")
    result.to_stream().to("out", **text)
    return builder


@pytest.mark.parametrize("suppress_left", [False, True])
def test_a_join_reads_the_last_emitted_row(suppress_left: bool) -> None:
    """Kafka Streams' prior value view."""
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
    )
    pair = "({1},{0})" if suppress_left else "({0},{1})"

    def both(other: str | None, own: str | None) -> str:
        return pair.format(other, own)

    with TopologyTestDriver(joined(suppress_left=suppress_left).build(config), config) as driver:
        text: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
        out = driver.create_output_topic("out", **text)
        own = driver.create_input_topic("left" if suppress_left else "right", **text)
        other = driver.create_input_topic("right" if suppress_left else "left", **text)

        def seen() -> list[Any]:
            return [(record.key, record.value, record.timestamp) for record in out.read_records()]

        own.pipe_input("B", "1", 0)
        own.pipe_input("A", "1", 0)
        assert seen() == []
        own.pipe_input("tick", "tick", 10)
        assert seen() == [("A", both(None, "1"), 0), ("B", both(None, "1"), 0)]
        own.pipe_input("A", "2", 11)
        assert seen() == []
        other.pipe_input("A", "a", 12)
        assert seen() == [("A", both("a", "1"), 12)]
        other.pipe_input("B", "b", 12)
        assert seen() == [("B", both("b", "1"), 12)]
        other.pipe_input("A", "b", 13)
        assert seen() == [("A", both("b", "1"), 13)]
        own.pipe_input("tick", "tick1", 21)
        assert seen() == [("tick", both(None, "tick1"), 21), ("A", both("b", "2"), 13)]


# -- final results -----------------------------------------------------------------------------------------------------


def final_counts(windows: Windows) -> Callable[[Any], Any]:
    def use(stream: Any) -> Any:
        counts = stream.group_by_key(**KEYED).windowed_by(windows).count()
        final = counts.suppress(Suppressed.until_window_closes(UNBOUNDED))
        return final.to_stream(lambda key, _: [key.key, key.start, key.end])

    return use


def test_time_windows_have_one_result_each_in_the_order_of_their_close() -> None:
    times = [0, 1, 2, 0, 3, 0, 4, 0, 30]
    rows = [("k1", "v1", time) for time in times]
    assert run(final_counts(TimeWindows(2, grace=2)), rows) == [
        (["k1", 0, 2], 4, 1),
        (["k1", 2, 4], 2, 3),
        (["k1", 4, 6], 1, 4),
    ]


def test_sliding_windows_have_one_result_each() -> None:
    times = [10, 11, 10, 13, 10, 24, 5, 7, 90]
    rows = [("k1", "v1", time) for time in times]
    assert run(final_counts(SlidingWindows(5, grace=15)), rows) == [
        (["k1", 5, 10], 5, 10),
        (["k1", 6, 11], 5, 11),
        (["k1", 8, 13], 5, 13),
        (["k1", 11, 16], 2, 13),
        (["k1", 12, 17], 1, 13),
        (["k1", 19, 24], 1, 24),
    ]


def test_a_sliding_window_has_one_closing_time() -> None:
    """Kafka Streams gives two final results: its suppress closes 1 ms before its aggregate."""
    rows = [("k1", "v", 10), ("k2", "v", 25), ("k1", "v", 9), ("k2", "v", 100)]
    results = run(final_counts(SlidingWindows(5, grace=15)), rows)
    windows = [window for window, _, _ in results]
    assert len(windows) == len({tuple(window) for window in windows})
    assert (["k1", 5, 10], 2, 10) in results


def test_merged_sessions_emit_no_tombstones() -> None:
    rows = [
        ("k1", "v", 0),
        ("k1", "v", 5),
        ("k1", "v", 1),
        ("k2", "v", 11),
        ("k1", "v", 5),
        ("k1", "v", 30),
    ]
    assert run(final_counts(SessionWindows(5)), rows) == [
        (["k1", 0, 5], 3, 5),
        (["k2", 11, 11], 1, 11),
    ]


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), min_size=5, max_size=20),
    st.sampled_from(
        [
            TimeWindows(4, grace=3),
            TimeWindows(4, 2),
            SlidingWindows(3, grace=2),
            SessionWindows(3, grace=1),
        ]
    ),
)
def test_a_window_has_one_final_result_and_it_is_the_last_update(
    records: list[tuple[str, int]], windows: Windows
) -> None:
    def use(stream: Any) -> Any:
        counts = stream.group_by_key(**KEYED).windowed_by(windows).count()
        counts.to_stream(lambda key, _: [key.key, key.start, key.end]).to("raw", **KEYED)
        final = counts.suppress(Suppressed.until_window_closes(UNBOUNDED))
        return final.to_stream(lambda key, _: [key.key, key.start, key.end])

    last: dict[tuple[Any, ...], Any] = {}
    with driver_of(use) as driver:
        source = driver.create_input_topic("in", **KEYED)
        source.pipe_batch([(key, "v", time) for key, time in records] + [("end", "v", 1_000)])
        for window, count, time in outputs(driver, "raw"):
            if window[0] != "end":
                last[tuple(window)] = (count, time)
        final = [(tuple(window), (count, time)) for window, count, time in outputs(driver)]
    assert len(final) == len(dict(final))
    assert dict(final) == {window: row for window, row in last.items() if row[0] is not None}


# -- final results of cogroups -----------------------------------------------------------------------------------------


def append(_key: str, value: str, seen: str) -> str:
    return f"{seen}-{value}" if seen else value


@pytest.mark.parametrize(
    ("windows", "expected", "more"),
    [
        (TimeWindows(10), [("a@0:10", "x-y", 4)], {}),
        (TimeWindows(10, advance=5), [("a@0:10", "x-y", 4)], {"statestore_cache_max_bytes": 9_999}),
        (SlidingWindows(10), [("a@0:10", "x-y", 4), ("a@1:11", "y", 4)], {}),
        (SessionWindows(10), [("a@0:4", "x-y", 4)], {"dsl_store_suppliers": "in_memory"}),
        (CalendarWindows("day"), [("a@0:86400000", "x-y", 4)], {"dsl_store_format": "HEADERS"}),
    ],
    ids=["tumbling", "hopping-cached", "sliding", "sessions-in-memory", "days-headers"],
)
@pytest.mark.parametrize("record_by_record", [False, True])
def test_windows_of_a_cogroup_have_one_result_each(
    windows: Any, expected: list[Any], more: dict[str, Any], record_by_record: bool
) -> None:
    config = StreamsConfig(
        application_id="t",
        bootstrap_servers="unused:9092",
        **{"statestore_cache_max_bytes": 0, **more},
    )
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    one, two, three = (builder.stream(name, **text).group_by_key() for name in ("1", "2", "3"))
    both: Any = one.cogroup(append).cogroup(two, append).cogroup(three, append)
    options = (
        {"merger": lambda key, one, two: append(key, two, one)}
        if isinstance(windows, SessionWindows)
        else {}
    )
    table = both.windowed_by(windows).aggregate(str, value_serde=str, **options)
    final = table.filter(lambda value: True).suppress(Suppressed.until_window_closes(UNBOUNDED))
    final.to_stream(lambda key, _: f"{key.key}@{key.start}:{key.end}").to("out", **text)
    with TopologyTestDriver(
        builder.build(config), config, record_by_record=record_by_record
    ) as driver:
        inputs = [driver.create_input_topic(name, **text) for name in ("1", "2")]
        inputs[0].pipe_input("a", "x", 0)
        inputs[1].pipe_input("a", "y", 4)
        out = driver.create_output_topic("out", **text)
        assert out.read_records() == []
        inputs[0].pipe_input("b", "z", 86_400_100)
        assert [(row.key, row.value, row.timestamp) for row in out.read_records()] == expected


def test_a_cogroup_in_unlimited_windows_has_no_final_results() -> None:
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    one, two = (builder.stream(name, **text).group_by_key() for name in ("1", "2"))
    table: Any = one.cogroup(append).cogroup(two, append).windowed_by(UnlimitedWindows())
    final: Any = Suppressed.until_window_closes(UNBOUNDED)
    with pytest.raises(TopologyError, match="unlimited windows never close"):
        table.aggregate(str, value_serde=str).suppress(final)


# -- the model ---------------------------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 3), st.integers(0, 15)),
    min_size=6,
    max_size=25,
)


def model(changes: list[Any], limit: int | None, records: int | None) -> list[Any]:
    observed, emitted = -1, list[Any]()
    rows: dict[str, tuple[int, Any, int]] = {}
    for key, value, time in changes:
        observed = max(observed, time)
        rows[key] = (rows[key][0] if key in rows else time, value, time)
        for first in sorted(rows, key=lambda name: (rows[name][0], name)):
            is_due = limit is not None and rows[first][0] <= observed - limit
            if is_due or (records is not None and len(rows) > records):
                _, last, last_time = rows.pop(first)
                emitted.append((first, last, last_time))
    return emitted


@settings(max_examples=30)
@given(CHANGES, st.none() | st.integers(0, 10), st.none() | st.integers(0, 3), st.booleans())
def test_results_equal_those_of_the_model(
    changes: list[Any], limit: int | None, records: int | None, record_by_record: bool
) -> None:
    buffer = UNBOUNDED if records is None else BufferConfig.max_records(records)
    with driver_of(held(limit, buffer), record_by_record=record_by_record) as driver:
        driver.create_input_topic("in", **KEYED).pipe_batch(changes)
        assert outputs(driver) == model(changes, limit, records)
