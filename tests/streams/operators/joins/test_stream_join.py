"""Stream-stream joins against a model, in batches and record by record.

Fixed cases are those of Kafka Streams' KStreamKStreamJoinTest, -LeftJoinTest, -OuterJoinTest and
-SelfJoinTest; `tests/golden/test_joins.py` has random input.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tidewheel import (
    ErrorResponse,
    JoinWindows,
    KStream,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.streams.operators.joins.non_joined import (
    NonJoinedSettings,
    NonJoinedStore,
    SharedTime,
)
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.testing import TopologyTestDriver

JSON = Serdes.json()
#: Topic, key, value, timestamp.
Row = tuple[str, Any, Any, int]
Result = tuple[Any, Any, int]
Program = Callable[[KStream[Any, Any], KStream[Any, Any]], KStream[Any, Any]]


def driver_of(program: Program, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    left, right = (
        builder.stream(topic, key_serde=JSON, value_serde=JSON) for topic in ("left", "right")
    )
    program(left, right).to("out", key_serde=JSON, value_serde=JSON)
    record_by_record = options.pop("record_by_record", False)
    config = StreamsConfig(
        application_id="joins",
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=0,
        **options,
    )
    return TopologyTestDriver(builder.build(config), config, record_by_record=record_by_record)


def pipe(driver: TopologyTestDriver, rows: Sequence[Row], *, batches: bool = False) -> list[Result]:
    output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
    topics = {
        topic: driver.create_input_topic(topic, key_serde=JSON, value_serde=JSON)
        for topic in ("left", "right")
    }
    for topic, run in groupby(rows, key=lambda row: row[0]):
        records = [row[1:] for row in run]
        if batches:
            topics[topic].pipe_batch(records)
        else:
            for record in records:
                topics[topic].pipe_input(*record)
    return [(record.key, record.value, record.timestamp) for record in output.read_records()]


def run(program: Program, rows: Sequence[Row], **options: Any) -> list[Result]:
    with driver_of(program, **options) as driver:
        return pipe(driver, rows)


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


KINDS: dict[str, Callable[[JoinWindows], Program]] = {
    "inner": lambda within: lambda left, right: left.join(right, pair, within=within),
    "left": lambda within: lambda left, right: left.left_join(right, pair, within=within),
    "outer": lambda within: lambda left, right: left.outer_join(right, pair, within=within),
    "self": lambda within: lambda left, _: left.join(left, pair, within=within),
}


# -- laws ----------------------------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "b", None]),
        st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2), st.none()),
        st.integers(0, 60),
    ),
    min_size=6,
    max_size=25,
)
WINDOWS = st.builds(
    JoinWindows,
    before=st.integers(0, 30),
    after=st.integers(0, 30),
    grace=st.integers(0, 60),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(rows=ROWS, within=WINDOWS)
def test_batches_have_the_results_of_single_records(
    rows: list[Row], within: JoinWindows, kind: str
) -> None:
    program = KINDS[kind](within)
    single = run(program, rows, record_by_record=True)
    with driver_of(program) as driver:
        assert pipe(driver, rows, batches=True) == single
    event(f"{kind}, {'some' if single else 'no'} results")


def pipe_together(driver: TopologyTestDriver, rows: Sequence[Row], cut: int) -> list[Result]:
    """Buffer up to `cut` records of both topics, then process them in a worker's order."""
    output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
    for task in driver._tasks:
        task.group.queue = None
    for start in range(0, len(rows), cut):
        for topic in ("left", "right"):
            source = driver.create_input_topic(topic, key_serde=JSON, value_serde=JSON)
            raws = [
                source._raw(key, value, timestamp, ())
                for name, key, value, timestamp in rows[start : start + cut]
                if name == topic
            ]
            if raws:
                driver._enqueue(topic, raws)
        for task in driver._tasks:
            while task.process(cut):
                driver._commit(task)
    return [(record.key, record.value, record.timestamp) for record in output.read_records()]


TOGETHER: dict[str, Callable[[JoinWindows], Program]] = {
    **KINDS,
    "merged": lambda within: lambda left, right: left.join(right, pair, within=within).merge(left),
    "derived": lambda within: (
        lambda left, right: (
            left.merge(right.filter(_is_odd))
            .flat_map_values(lambda value: [value, 13, value])
            .join(right.filter_not(_is_odd), picky, within=within, value_serde=JSON)
        )
    ),
    "expanded": lambda within: (
        lambda left, right: (
            left.filter_not(_is_odd)
            .flat_map_values(lambda value: [value, 13, value])
            .join(right, picky, within=within, value_serde=JSON)
        )
    ),
}


def _is_odd(_key: Any, value: Any) -> bool:
    return isinstance(value, int) and value % 2 == 1


@pytest.mark.parametrize("kind", TOGETHER)
@settings(max_examples=25)
@given(rows=ROWS, within=WINDOWS, cut=st.integers(2, 25))
def test_joint_batches_have_the_results_of_single_records(
    rows: list[Row], within: JoinWindows, kind: str, cut: int
) -> None:
    program = TOGETHER[kind](within)
    results: list[list[Result]] = []
    failures: list[list[tuple[Any, ...]]] = []
    for record_by_record in (True, False):
        handled: list[tuple[Any, ...]] = []

        def handler(
            context: Any, record: Any, _error: Exception, handled: list[tuple[Any, ...]] = handled
        ) -> ErrorResponse:
            at = (context.topic, context.partition, context.offset)
            handled.append((context.node, *at, context.raw_value, repr(record.value)))
            return ErrorResponse(action="continue")

        with driver_of(
            program, record_by_record=record_by_record, processing_exception_handler=handler
        ) as driver:
            results.append(pipe_together(driver, rows, cut))
        failures.append(sorted(handled))
    assert results[0] == results[1]
    assert failures[0] == failures[1]
    event(f"{kind}, {'some' if results[0] else 'no'} results")


def test_buffered_records_of_both_sides_are_joined_in_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The laws above hold for joint batches only if there are some."""
    joint: list[int] = []
    run_together = TaskGraph.run_together

    def counted(
        graph: TaskGraph, batches: Sequence[tuple[str, RecordBatch, Sequence[int]]]
    ) -> None:
        joint.append(sum(len(batch) for _, batch, _ in batches))
        run_together(graph, batches)

    monkeypatch.setattr(TaskGraph, "run_together", counted)
    rows = [("right", "a", 1, 1), ("left", "a", 2, 2), ("right", "a", 3, 3), ("left", "a", 4, 4)]
    with driver_of(KINDS["inner"](JoinWindows(10, grace=0))) as driver:
        results = pipe_together(driver, rows, 4)
    assert joint == [3]
    assert results == [
        ("a", [2, 1], 2),
        ("a", [2, 3], 3),
        ("a", [4, 1], 4),
        ("a", [4, 3], 4),
    ]


def model_of(rows: Sequence[Row], within: JoinWindows) -> list[tuple[str, Any, Any, int]]:
    kept = [row for row in rows if row[1] is not None and row[2] is not None]
    return [
        (key, value, other, max(timestamp, other_time))
        for topic, key, value, timestamp in kept
        for other_topic, other_key, other, other_time in kept
        if topic == "left"
        and other_topic == "right"
        and key == other_key
        and timestamp - within.before_ms <= other_time <= timestamp + within.after_ms
    ]


@settings(max_examples=15)
@given(rows=ROWS, before=st.integers(-5, 10), after=st.integers(5, 10))
def test_an_inner_join_emits_every_pair_within_its_window(
    rows: list[Row], before: int, after: int
) -> None:
    within = JoinWindows(before=before, after=after, grace=100)
    found = run(KINDS["inner"](within), rows)
    told = [(key, left, right, timestamp) for key, (left, right), timestamp in found]
    assert sorted(map(repr, told)) == sorted(map(repr, model_of(rows, within)))


@settings(max_examples=15)
@given(
    rows=ROWS,
    # Without grace, the stores drop the oldest partners of a window, as in Kafka Streams.
    within=WINDOWS.filter(lambda within: within.grace_ms > 0),
)
def test_a_record_in_time_order_is_emitted_either_in_pairs_or_alone(
    rows: list[Row], within: JoinWindows
) -> None:
    numbered: list[Row] = [
        (topic, key, None if value is None else number, timestamp)
        for number, (topic, key, value, timestamp) in enumerate(
            sorted(rows, key=lambda row: row[3])
        )
    ]
    end: Row = ("left", "end", "end", 10_000)
    found = run(KINDS["outer"](within), [*numbered, end])
    pairs = model_of(numbered, within)
    paired = {value for _, left, right, _ in pairs for value in (left, right)}
    alone = [
        (key, [value, None] if topic == "left" else [None, value], timestamp)
        for topic, key, value, timestamp in numbered
        if value is not None and value not in paired
    ]
    expected = [(key, [left, right], timestamp) for key, left, right, timestamp in pairs] + alone
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    event("somebody alone" if alone else "nobody alone")


# -- scans for due records -------------------------------------------------------------------


def test_a_record_with_a_null_key_is_emitted_immediately_without_a_partner() -> None:
    """KIP-962."""
    rows: list[Row] = [
        ("left", None, 1, 5),
        ("right", None, 2, 6),
        ("left", None, None, 7),
        ("left", "a", None, 8),
    ]
    within = JoinWindows(10)
    assert run(KINDS["inner"](within), rows) == []
    assert run(KINDS["left"](within), rows) == [(None, [1, None], 5)]
    assert run(KINDS["outer"](within), rows) == [(None, [1, None], 5), (None, [None, 2], 6)]
    with driver_of(KINDS["left"](within)) as driver:
        pipe(driver, rows)
        assert driver.metrics()["0_0"]["dropped-records-total"] == 3


def test_a_scan_delayed_by_the_emit_interval_runs_at_a_later_record() -> None:
    with driver_of(KINDS["left"](JoinWindows(10)), emit_interval_ms=1_000) as driver:
        assert pipe(driver, [("left", "a", 1, 0), ("left", "a", 2, 20)]) == []
        driver.advance_wall_clock_time(1_000)
        assert pipe(driver, [("left", "a", 3, 22)]) == [("a", [1, None], 0)]
        assert pipe(driver, [("left", "a", 4, 40)]) == []
        driver.advance_wall_clock_time(999)
        assert pipe(driver, [("left", "a", 5, 60)]) == []
        driver.advance_wall_clock_time(1)
        due = [("a", [n, None], time) for n, time in ((2, 20), (3, 22), (4, 40), (5, 60))]
        assert pipe(driver, [("left", "a", 6, 80)]) == due


def test_a_left_join_scans_from_the_end_of_its_last_scan() -> None:
    """As in Kafka Streams: a row behind the newest record is emitted at the next scan."""
    rows: list[Row] = [("left", "a", 0, 0), ("left", "b", 1, 5), ("left", "c", 2, 9)]
    with driver_of(KINDS["left"](JoinWindows(10))) as driver:
        assert pipe(driver, rows) == []
        # The scan stops at 9; this record has a partner.
        assert pipe(driver, [("right", "c", 0, 11)]) == [("a", [0, None], 0), ("c", [2, 0], 11)]
        assert pipe(driver, [("right", "x", 0, 17)]) == []
        assert pipe(driver, [("right", "x", 0, 20)]) == [("b", [1, None], 5)]


# -- errors of user code and serdes -------------------------------------------------------------


def test_a_joiner_with_three_parameters_receives_the_key_first() -> None:
    def told(key: Any, left: Any, right: Any) -> list[Any]:
        return [key, left, right]

    def program(left: KStream[Any, Any], right: KStream[Any, Any]) -> KStream[Any, Any]:
        return left.left_join(right, told, within=JoinWindows(10))

    rows: list[Row] = [
        ("left", "a", 1, 0),
        ("right", "a", 2, 1),
        ("left", "b", 3, 2),
        ("left", "c", 4, 50),
    ]
    assert run(program, rows) == [("a", ["a", 1, 2], 1), ("b", ["b", 3, None], 2)]


def picky(left: Any, right: Any) -> list[Any]:
    if 13 in (left, right):
        raise ValueError("unlucky")
    return [left, right]


def test_a_failing_joiner_skips_the_results_of_one_record() -> None:
    def program(left: KStream[Any, Any], right: KStream[Any, Any]) -> KStream[Any, Any]:
        return left.left_join(right, picky, within=JoinWindows(10))

    handled: list[tuple[str | None, int | None]] = []

    def handler(context: Any, _record: Any, _error: Exception) -> ErrorResponse:
        handled.append((context.topic, context.offset))
        return ErrorResponse(action="continue")

    rows: list[Row] = [
        ("right", "a", 1, 0),
        ("right", "a", 13, 1),
        ("right", "a", 2, 2),
        ("left", "a", 7, 3),
        ("left", "b", 13, 4),
        ("left", "b", 8, 5),
        ("left", "c", 9, 50),
    ]
    found = run(program, rows, processing_exception_handler=handler)
    assert found == [("a", [7, 1], 3), ("b", [8, None], 5)]
    assert handled == [("left", 0), ("left", 3)]


def without_13_and_14(left: Any, right: Any) -> list[Any]:
    if 14 in (left, right):
        next(iter(()))
    return picky(left, right)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.sampled_from("ab"),
            st.sampled_from([1, 2, 13, 14]),
            st.integers(0, 30),
        ),
        max_size=20,
    )
)
def test_records_that_fail_in_a_batch_are_those_that_fail_alone(rows: list[Row]) -> None:
    def program(left: KStream[Any, Any], right: KStream[Any, Any]) -> KStream[Any, Any]:
        return left.join(right, without_13_and_14, within=JoinWindows(10, grace=100))

    runs: list[Any] = []
    for batches in (False, True):
        handled: list[tuple[str | None, int | None]] = []

        def handler(
            context: Any, _record: Any, _error: Exception, handled: list[Any] = handled
        ) -> ErrorResponse:
            handled.append((context.topic, context.offset))
            return ErrorResponse(action="continue")

        with driver_of(program, processing_exception_handler=handler) as driver:
            runs.append((pipe(driver, rows, batches=batches), handled))
    assert runs[0] == runs[1]
    event(f"{len(runs[0][1])} fail")


def test_a_value_mutated_by_the_joiner_is_not_changed_in_the_store() -> None:
    def program(left: KStream[Any, Any], right: KStream[Any, Any]) -> KStream[Any, Any]:
        return left.join(right, lambda n, seen: (seen.append(n), seen)[1], within=JoinWindows(10))

    rows: list[Row] = [("right", "a", [], 0), ("left", "a", 1, 1), ("left", "a", 2, 2)]
    with driver_of(program) as driver:
        assert pipe(driver, rows, batches=True) == [("a", [1], 1), ("a", [2], 2)]


def test_a_result_has_the_headers_of_the_record_that_caused_it() -> None:
    with driver_of(KINDS["left"](JoinWindows(10))) as driver:
        left = driver.create_input_topic("left", key_serde=JSON, value_serde=JSON)
        right = driver.create_input_topic("right", key_serde=JSON, value_serde=JSON)
        left.pipe_input("a", 1, 0, headers=(("by", b"first"),))
        right.pipe_input("a", 2, 1, headers=(("by", b"second"),))
        left.pipe_input("b", 3, 2, headers=(("by", b"third"),))
        left.pipe_input("c", 4, 50, headers=(("by", b"fourth"),))
        output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
        assert [record.headers for record in output.read_records()] == [
            (("by", b"second"),),
            (("by", b"fourth"),),
        ]


# -- store of unmatched records -----------------------------------------------------------------


def test_rows_are_kafka_streams() -> None:
    with driver_of(KINDS["outer"](JoinWindows(10))) as driver:
        pipe(driver, [("left", "a", 1, 3), ("left", "a", 2, 3), ("right", "b", 7, 3)])
        rows = dict(driver.get_state_store("KSTREAM-OUTERSHARED-0000000004-store").all())
    time = (3).to_bytes(8)
    assert rows == {
        time + b'\0"b"': b"\1" + b"\0\0\0\1" + b"\0\0\0\2" + b"\x007",
        time + b'\1"a"': b"\1" + b"\0\0\0\2" + b"\0\0\0\2" + b"\x011" + b"\0\0\0\2" + b"\x012",
    }


def test_both_sides_of_a_task_share_their_time_and_tasks_do_not() -> None:
    shared = NonJoinedSettings(
        "KSTREAM-OUTERSHARED-0000000004-store", SharedTime(), 10, 10, is_outer=True
    )
    serdes = (JSON, JSON, JSON)
    with (
        driver_of(KINDS["outer"](JoinWindows(10))) as one,
        driver_of(KINDS["outer"](JoinWindows(10))) as two,
    ):
        stores = [driver.get_state_store(shared.store_name) for driver in (one, two)]
        left = NonJoinedStore(shared, stores[0], serdes, is_left=True)
        right = NonJoinedStore(shared, stores[0], serdes, is_left=False)
        elsewhere = NonJoinedStore(shared, stores[1], serdes, is_left=True)
        left.restore_times((5, 3))
        assert right.times() == (5, 3)
        assert elsewhere.times() == (-1, -1)


def test_a_start_without_stream_time_derives_it_from_the_rows() -> None:
    with driver_of(KINDS["left"](JoinWindows(10))) as driver:
        pipe(driver, [("left", "a", 1, 3)])
        shared = NonJoinedSettings(
            "KSTREAM-OUTERSHARED-0000000004-store", SharedTime(), 10, 10, is_outer=False
        )
        store = driver.get_state_store(shared.store_name)
        waiting = NonJoinedStore(shared, store, (JSON, JSON, JSON), is_left=True)
        waiting.begin()
        assert waiting.times() == (-1, 3)
        waiting.tracker.stream_time_ms = 14
        assert waiting.may_be_due(10)
        assert [(each.key, each.left, each.timestamp) for each in waiting.due(14)] == [("a", 1, 3)]
        waiting.tracker.earliest_ms = -1
        waiting.begin()
        assert list(waiting.due(14)) == []
        assert waiting.times() == (14, -1)


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("store_type", "found"), [("rocksdb", ["x-y"]), ("in_memory", [])])
def test_a_null_value_moves_the_time_of_a_store_in_memory_alone(
    store_type: Any, found: list[str], batched: bool, record_by_record: bool
) -> None:
    """As in Kafka Streams."""
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
    )
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    left, right = (builder.stream(topic, **text) for topic in ("left", "right"))
    left.join(
        right,
        lambda one, two: f"{one}-{two}",
        within=JoinWindows(10),
        store=Materialized(store_type=store_type),
    ).to("out", **text)
    with TopologyTestDriver(
        builder.build(config), config, record_by_record=record_by_record
    ) as driver:
        rows: list[Any] = [("a", "x", 0), ("a", None, 60_000)]
        source = driver.create_input_topic("left", **text)
        if batched:
            source.pipe_batch(rows)
        else:
            for row in rows:
                source.pipe_input(*row)
        driver.create_input_topic("right", **text).pipe_input("a", "y", 5)
        assert driver.create_output_topic("out", **text).read_key_values() == [
            ("a", text) for text in found
        ]
