"""Stream-table joins against a model, in batches, and with a grace period.

Fixed cases are those of Kafka Streams' KStreamKTableJoinTest, -LeftJoinTest and -JoinWithGraceTest;
`tests/golden/test_joins.py` has random input.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tidewheel import (
    ErrorResponse,
    KStream,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.streams.operators.joins.join_buffer import BufferedRecord, JoinBuffer
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.testing import TopologyTestDriver

JSON = Serdes.json()
STRING = Serdes.string()
#: Topic, key, value, timestamp.
Row = tuple[str, Any, Any, int]
Result = tuple[Any, Any, int]
Program = Callable[[KStream[Any, Any], KTable[Any, Any]], KStream[Any, Any]]

VERSIONED = Materialized("T", store_type="versioned", history_retention=1_000)
PLAIN = Materialized("T")


def driver_of(
    program: Program,
    store: Materialized,
    *,
    record_by_record: bool = False,
    **options: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    stream = builder.stream("stream", key_serde=JSON, value_serde=JSON)
    table = builder.table("table", key_serde=JSON, value_serde=JSON, store=store)
    program(stream, table).to("out", key_serde=JSON, value_serde=JSON)
    config = StreamsConfig(
        application_id="joins",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=0,
        **options,
    )
    return TopologyTestDriver(builder.build(config), config, record_by_record=record_by_record)


def pipe(driver: TopologyTestDriver, rows: Sequence[Row], *, batches: bool = False) -> list[Result]:
    output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
    for topic, run in groupby(rows, key=lambda row: row[0]):
        records = [row[1:] for row in run]
        into = driver.create_input_topic(topic, key_serde=JSON, value_serde=JSON)
        for batch in [records] if batches else [[record] for record in records]:
            into.pipe_batch(batch)
    return [(record.key, record.value, record.timestamp) for record in output.read_records()]


def run(
    program: Program, rows: Sequence[Row], store: Materialized = PLAIN, **options: Any
) -> list[Result]:
    with driver_of(program, store, **options) as driver:
        return pipe(driver, rows)


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def joining(kind: str, grace: int | None = None) -> Program:
    return lambda stream, table: getattr(stream, kind)(table, pair, grace=grace)


KINDS = st.sampled_from(["join", "left_join"])
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["stream", "stream", "table"]),
        st.sampled_from(["a", "b", "ab", None]),
        st.one_of(st.integers(0, 99), st.none()),
        st.integers(0, 60),
    ),
    max_size=25,
)


@settings(max_examples=15)
@given(rows=ROWS, kind=KINDS)
def test_each_record_is_joined_with_the_current_row_of_its_key(rows: list[Row], kind: str) -> None:
    table: dict[str, Any] = {}
    expected: list[Result] = []
    for topic, key, value, timestamp in rows:
        if topic == "table":
            table[key] = value
            continue
        row = None if key is None else table.get(key)
        has_key = key is not None or kind == "left_join"
        if value is not None and has_key and (row is not None or kind == "left_join"):
            expected.append((key, [value, row], timestamp))
    with driver_of(joining(kind), PLAIN) as driver:
        assert pipe(driver, rows, batches=True) == expected
    event("some results" if expected else "no result")


@settings(max_examples=15)
@given(rows=ROWS, kind=KINDS, grace=st.sampled_from([None, 0, 1, 10, 50]))
def test_batches_have_the_results_of_single_records(
    rows: list[Row], kind: str, grace: int | None
) -> None:
    program = joining(kind, grace)
    single = run(program, rows, VERSIONED, record_by_record=True)
    with driver_of(program, VERSIONED) as driver:
        assert pipe(driver, rows, batches=True) == single
    event(f"grace {grace}, {'some' if single else 'no'} results")


@settings(max_examples=15)
@given(rows=ROWS, grace=st.integers(0, 40))
def test_with_a_grace_period_records_wait_for_late_rows(rows: list[Row], grace: int) -> None:
    versions: dict[str, dict[int, Any]] = {}
    waiting: list[tuple[int, bytes, int, Any]] = []
    observed = -1
    expected: list[Result] = []

    def joined(key: Any, value: Any, timestamp: int) -> None:
        known = versions.get(key, {})
        at = max((time for time in known if time <= timestamp), default=None)
        expected.append((key, [value, None if at is None else known[at]], timestamp))

    for number, (topic, key, value, timestamp) in enumerate(rows):
        if topic == "table":
            if key is not None:
                versions.setdefault(key, {})[timestamp] = value
        elif value is None:
            continue
        elif key is None or observed - grace > timestamp:
            joined(key, value, timestamp)
        else:
            observed = max(observed, timestamp)
            waiting.append((timestamp, JSON.serialize("", key) or b"", number, (key, value)))
            waiting.sort()
            while waiting and waiting[0][0] <= observed - grace:
                due, _, _, (due_key, due_value) = waiting.pop(0)
                joined(due_key, due_value, due)
    assert run(joining("left_join", grace), rows, VERSIONED) == expected
    event("some wait to the end" if waiting else "nobody waits to the end")


def test_a_record_without_a_row_is_dropped_silently_by_an_inner_join() -> None:
    rows: list[Row] = [("stream", "a", 1, 0), ("stream", None, 1, 1), ("stream", "a", None, 2)]
    with driver_of(joining("join"), PLAIN) as driver:
        assert pipe(driver, rows) == []
        assert driver.metrics()["0_0"]["dropped-records-total"] == 2


def test_a_table_that_is_not_kept_is_computed_for_each_record() -> None:
    def program(stream: KStream[Any, Any], table: KTable[Any, Any]) -> KStream[Any, Any]:
        even = table.filter(lambda value: value % 2 == 0).map_values(lambda value: value * 10)
        return stream.left_join(even, lambda key, left, right: [key, left, right])

    rows: list[Row] = [
        ("table", "a", 2, 0),
        ("table", "b", 3, 0),
        ("stream", "a", 1, 1),
        ("stream", "b", 1, 1),
    ]
    assert run(program, rows) == [("a", ["a", 1, 20], 1), ("b", ["b", 1, None], 1)]


def test_a_failing_joiner_or_lookup_skips_one_record() -> None:
    def unlucky(value: int) -> int:
        if value == 13:
            raise ValueError("unlucky")
        return value

    def program(stream: KStream[Any, Any], table: KTable[Any, Any]) -> KStream[Any, Any]:
        return stream.join(table.map_values(unlucky), lambda left, right: [unlucky(left), right])

    seen: list[tuple[str | None, int | None]] = []

    def handler(context: Any, _record: Any, _error: Exception) -> ErrorResponse:
        if context.topic == "stream":
            seen.append((context.topic, context.offset))
        return ErrorResponse(action="continue")

    rows: list[Row] = [
        ("table", "a", 1, 0),
        ("table", "b", 13, 0),
        ("stream", "a", 5, 1),
        ("stream", "b", 6, 2),
        ("stream", "a", 13, 3),
        ("stream", "a", 7, 4),
    ]
    with driver_of(program, PLAIN, processing_exception_handler=handler) as driver:
        assert pipe(driver, rows, batches=True) == [("a", [5, 1], 1), ("a", [7, 1], 4)]
    assert seen == [("stream", 1), ("stream", 2)]


# -- the buffer ----------------------------------------------------------------------------------------------------------


def test_a_buffered_record_keeps_its_headers() -> None:
    with driver_of(joining("left_join", 5), VERSIONED) as driver:
        into = driver.create_input_topic("stream", key_serde=JSON, value_serde=JSON)
        into.pipe_input("a", 1, 0, headers=(("by", b"first"), ("and", None)))
        into.pipe_input("b", 2, 5)
        output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
        (record,) = output.read_records()
        assert (record.key, record.value, record.timestamp) == ("a", [1, None], 0)
        assert record.headers == (("by", b"first"), ("and", None))


def test_rows_are_kafka_streams() -> None:
    with driver_of(joining("join", 5), VERSIONED) as driver:
        into = driver.create_input_topic("stream", key_serde=JSON, value_serde=JSON)
        into.pipe_input("k", 7, 3, headers=(("h", b"x"),))
        rows = dict(driver.get_state_store("KSTREAM-JOIN-0000000003-Buffer").all())
    number = (1).to_bytes
    assert rows == {
        b"\0" + number(8)[:-1] + b'\3"k"' + number(4): b"".join(
            (
                (3).to_bytes(8) + (0).to_bytes(8),  # timestamp, offset
                (6).to_bytes(4) + b"stream" + (0).to_bytes(4),  # topic, partition
                number(4) + number(4) + b"h" + number(4) + b"x",  # headers
                b"\xff" * 8,  # no prior value, no old value
                number(4) + b"7",
                bytes(8),  # buffer time
            )
        )
    }


@pytest.fixture
def buffered() -> Any:
    with driver_of(joining("join", 5), VERSIONED) as driver:
        store = driver.get_state_store("KSTREAM-JOIN-0000000003-Buffer")
        yield lambda: JoinBuffer(store, 5, STRING, STRING)


def put(buffer: JoinBuffer, key: str, timestamp: int) -> list[tuple[str, int]]:
    buffer.begin(timestamp)
    taken = buffer.put(BufferedRecord(key, "v", timestamp, ()), RecordMetadata("t", 0, 0))
    due = [(record.key, record.timestamp) for record in buffer.release()] if taken else []
    buffer.end(timestamp)
    return due


def test_a_buffer_without_times_finds_them_in_its_rows(buffered: Any) -> None:
    first = buffered()
    assert put(first, "a", 10) == put(first, "a", 12) == []
    second = buffered()
    assert put(second, "a", 12) == []
    assert second.times() == (12, 3)
    assert put(second, "b", 17) == [("a", 10), ("a", 12), ("a", 12)]


def test_a_rejected_record_does_not_advance_stream_time(buffered: Any) -> None:
    buffer = buffered()
    assert put(buffer, "a", 10) == []
    buffer.begin(100)
    with pytest.raises(Exception, match="serialise"):
        buffer.put(BufferedRecord(object(), "v", 100, ()), None)
    buffer.end(100)
    assert buffer.times() == (10, 1)
    assert put(buffer, "b", 14) == []
    assert put(buffer, "b", 15) == [("a", 10)]
