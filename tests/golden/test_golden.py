"""Golden cases of Kafka Streams 4.3.1, input by input (`golden.json`).

Facts only: report a wrong case, never edit it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.loop.bench import Bench
from tidewheel import (
    BufferConfig,
    Materialized,
    Processor,
    PunctuationType,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    Topology,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.windows import JoinWindows, SessionWindows, SlidingWindows, TimeWindows
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.partition_group import PartitionGroup
from tidewheel.tasks.task.task import Task
from tidewheel.testing import TopologyTestDriver

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case
    for case in json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
}
STRING = Serdes.string()


def text(value: Any) -> str | None:
    return None if value is None else str(value)


# -- dsl --------------------------------------------------------------------------------------------------------------


def table_source(builder: StreamsBuilder) -> None:
    """table('input', materialised 'store') -> toStream -> 'output'."""
    table = builder.table(
        "input", key_serde=STRING, value_serde=STRING, store=Materialized("store")
    )
    table.to_stream().to("output", key_serde=STRING, value_serde=STRING)


def stream_join(
    kind: str, joined_by: str, windows: JoinWindows
) -> Callable[[StreamsBuilder], None]:
    """stream('left') and stream('right') joined -> 'output'."""

    def use(builder: StreamsBuilder) -> None:
        left, right = (
            builder.stream(topic, key_serde=STRING, value_serde=STRING)
            for topic in ("left", "right")
        )
        join = getattr(left, kind)
        joined = join(right, joiner(joined_by), within=windows)
        joined.to("output", key_serde=STRING, value_serde=STRING)

    return use


def stream_table_join(kind: str, store: Materialized) -> Callable[[StreamsBuilder], None]:
    """stream('left') and table('right') joined -> 'output'."""

    def use(builder: StreamsBuilder) -> None:
        left = builder.stream("left", key_serde=STRING, value_serde=STRING)
        right = builder.table("right", key_serde=STRING, value_serde=STRING, store=store)
        joined = getattr(left, kind)(right, joiner("-"))
        joined.to("output", key_serde=STRING, value_serde=STRING)

    return use


def global_table_join(builder: StreamsBuilder) -> None:
    """stream('left') left-joined with globalTable('global') on the value's part after ',' -> 'output'."""
    left = builder.stream("left", key_serde=STRING, value_serde=STRING)
    right = builder.global_table("global", key_serde=STRING, value_serde=STRING)
    joined = left.left_join(right, joiner("+"), key_selector=lambda value: value.split(",")[1])
    joined.to("output", key_serde=STRING, value_serde=STRING)


def joiner(joined_by: str) -> Callable[[Any, Any], str]:
    return lambda left, right: joined_by.join(
        "null" if value is None else value for value in (left, right)
    )


TEN_SECONDS_AND_A_DAY = JoinWindows(10_000, grace=86_400_000)
FIVE_MINUTES = Materialized(store_type="versioned", history_retention=300_000)


def table_join(operator: str) -> Callable[[StreamsBuilder], None]:
    """table('left') joined with table('right') by key, uncached in 'output' -> 'output'."""

    def build(builder: StreamsBuilder) -> None:
        left, right = (
            builder.table(name, key_serde=STRING, value_serde=STRING) for name in ("left", "right")
        )
        kept = Materialized("output", value_serde=STRING, caching=False)
        joined = getattr(left, operator)(
            right, lambda mine, theirs: f"{mine or 'null'}-{theirs or 'null'}", store=kept
        )
        joined.to_stream().to("output", key_serde=STRING, value_serde=STRING)

    return build


def foreign_key_join(operator: str) -> Callable[[StreamsBuilder], None]:
    """table('left') joined with table('right') on the value's part after '|' -> 'output'."""

    def build(builder: StreamsBuilder) -> None:
        left, right = (
            builder.table(name, key_serde=STRING, value_serde=STRING) for name in ("left", "right")
        )
        joined = getattr(left, operator)(
            right,
            lambda mine, theirs: f"({mine},{theirs or 'null'})",
            foreign_key=lambda value: value.partition("|")[2],
        )
        joined.to_stream().to("output", key_serde=STRING, value_serde=STRING)

    return build


def table_aggregate(
    selector: Callable[[Any, Any], tuple[Any, Any] | None],
) -> Callable[[StreamsBuilder], None]:
    """table('input').groupBy(selector).aggregate('0', +, -) -> 'output'."""

    def build(builder: StreamsBuilder) -> None:
        table = builder.table("input", key_serde=STRING, value_serde=STRING)
        grouped = table.group_by(selector, key_serde=STRING, value_serde=STRING)
        grouped.aggregate(
            lambda: "0",
            lambda key, value, total: f"{total}+{value}",
            lambda key, value, total: f"{total}-{value}",
            value_serde=STRING,
        ).to_stream().to("output")

    return build


def by_value(key: str, value: str) -> tuple[str | None, str] | None:
    if key == "NULL":
        return None
    return (None, value) if key == "null" else (value, value)


def suppress_until_time_limit(builder: StreamsBuilder) -> None:
    """table('input').groupBy((k,v)->(v,k)).count() -> 'raw', and suppressed until 2 ms -> 'supp'."""
    table = builder.table("input", key_serde=STRING, value_serde=STRING)
    grouped = table.group_by(lambda k, v: (v, k), key_serde=STRING, value_serde=STRING)
    counts = grouped.count()
    counts.to_stream().map_values(str).to("raw", value_serde=STRING)
    held = counts.suppress(Suppressed.until_time_limit(2, BufferConfig.unbounded()))
    held.to_stream().map_values(str).to("supp", value_serde=STRING)


def suppress_until_window_closes(builder: StreamsBuilder) -> None:
    """groupBy(k).windowedBy(2 ms, grace 1 ms).count() -> 'raw', and suppressed until windows close -> 'supp'."""
    grouped = builder.stream("input", key_serde=STRING, value_serde=STRING).group_by_key()
    counts = grouped.windowed_by(TimeWindows(2, grace=1)).count()
    counts.to_stream(windowed_key).map_values(str).to("raw", key_serde=STRING, value_serde=STRING)
    final = counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    final.to_stream(windowed_key).map_values(str).to("supp", key_serde=STRING, value_serde=STRING)


def windowed_texts(windows: TimeWindows | SlidingWindows) -> Callable[[StreamsBuilder], None]:
    """Return stream('input').groupByKey().windowedBy(windows).aggregate('0', agg+'+'+v) -> 'output'."""

    def build(builder: StreamsBuilder) -> None:
        grouped = builder.stream("input", key_serde=STRING, value_serde=STRING).group_by_key()
        table = grouped.windowed_by(windows).aggregate(
            lambda: "0", lambda _key, value, seen: f"{seen}+{value}", value_serde=STRING
        )
        table.to_stream(windowed_key).to("output", key_serde=STRING, value_serde=STRING)

    return build


def counted_sessions(builder: StreamsBuilder) -> None:
    """groupByKey().windowedBy(sessions of 5 minutes, no grace).count() -> 'output'."""
    grouped = builder.stream("input", key_serde=STRING, value_serde=STRING).group_by_key()
    counts = grouped.windowed_by(SessionWindows(300_000)).count().to_stream(windowed_key)
    counts.map_values(text).to("output", key_serde=STRING, value_serde=STRING)


def cogroup(builder: StreamsBuilder) -> None:
    """one.groupByKey().cogroup(agg+v).cogroup(two.groupByKey(), agg+v).aggregate('') -> 'output'."""
    one, two = (
        builder.stream(name, key_serde=STRING, value_serde=STRING).group_by_key()
        for name in ("one", "two")
    )

    def add(_key: str, value: str, seen: str) -> str:
        return seen + value

    table = one.cogroup(add).cogroup(two, add).aggregate(str, value_serde=STRING)
    table.to_stream().to("output", key_serde=STRING, value_serde=STRING)


def windowed_key(key: Any, _value: Any) -> str:
    return f"{key.key}@{key.start}-{key.end}"


def expected_key(record: dict[str, Any]) -> str | None:
    if "window" not in record:
        key: str | None = record["key"]
        return key
    start, end = record["window"]
    return f"{record['key']}@{start}-{end}"


DSL: dict[str, Callable[[StreamsBuilder], None]] = {
    "sliding_window_aggregate_on_update": windowed_texts(SlidingWindows(10, grace=5)),
    "hopping_window_aggregate": windowed_texts(TimeWindows(10, advance=5, grace=100)),
    "session_immediate_forward_and_merge_tombstone": counted_sessions,
    "cogroup_two_streams_shared_keys": cogroup,
    "table_aggregate_add_subtract": table_aggregate(lambda key, value: (key, value)),
    "table_aggregate_repartition": table_aggregate(by_value),
    "suppress_until_time_limit_2ms": suppress_until_time_limit,
    "suppress_until_window_closes_tumbling": suppress_until_window_closes,
    "stream_globaltable_left_join": global_table_join,
    "stream_stream_inner_join": stream_join("join", "-", TEN_SECONDS_AND_A_DAY),
    "stream_stream_left_join_null_key": stream_join("left_join", "-", TEN_SECONDS_AND_A_DAY),
    "left_join_expired_emitted_by_left_side": stream_join("left_join", "+", JoinWindows(100)),
    "outer_join_right_expired_by_left": stream_join("outer_join", "+", JoinWindows(100)),
    "stream_table_left_join": stream_table_join("left_join", Materialized()),
    "stream_table_inner_join_versioned": stream_table_join("join", FIVE_MINUTES),
    "table_source_out_of_order_and_tombstones": table_source,
    "table_table_inner_join": table_join("join"),
    "table_table_left_join": table_join("left_join"),
    "fk_inner_join_delete_left": foreign_key_join("join"),
    "fk_left_join_delete_right": foreign_key_join("left_join"),
}


@pytest.mark.parametrize("name", DSL)
@pytest.mark.parametrize("record_by_record", [False, True])
def test_dsl(name: str, record_by_record: bool) -> None:
    case = CASES[name]
    builder = StreamsBuilder()
    DSL[name](builder)
    config = StreamsConfig(
        application_id="golden", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
    )
    with TopologyTestDriver(
        builder.build(config), config, record_by_record=record_by_record
    ) as driver:
        inputs = {
            topic: driver.create_input_topic(topic, key_serde=STRING, value_serde=STRING)
            for topic in {record["topic"] for record in case["inputs"]}
        }
        outputs = {
            topic: driver.create_output_topic(topic, key_serde=STRING, value_serde=STRING)
            for topic in {record["topic"] for record in case["expected"]}
        }
        seen: list[Any] = []
        for index, record in enumerate(case["inputs"]):
            inputs[record["topic"]].pipe_input(record["key"], record["value"], record["ts"])
            seen += [
                (topic, out.key, text(out.value), out.timestamp, index)
                for topic, output in outputs.items()
                for out in output.read_records()
            ]
        for topic in outputs:
            expected = [
                (topic, expected_key(record), record["value"], record["ts"], record["after"])
                for record in case["expected"]
                if record["topic"] == topic
            ]
            assert [row for row in seen if row[0] == topic] == expected
        for store, rows in case.get("expected_tables", {}).items():
            found = [
                {"key": key, "value": text(row.value), "ts": row.timestamp}
                for key, row in driver.get_state_store(store).all()
            ]
            assert found == rows


def test_record_cache_dedupes_within_commit_interval() -> None:
    case = CASES["record_cache_dedupes_within_commit_interval"]
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    grouped = stream.group_by(lambda value: value, key_serde=STRING, value_serde=STRING)
    grouped.reduce(lambda a, b: f"{a}:{b}").to_stream().to(
        "out", key_serde=STRING, value_serde=STRING
    )
    bench = Bench(
        builder.build(), {"in": 3, "out": 1}, cache_bytes=10 * 1024 * 1024, commit_interval_ms=100
    )
    times = {"t1": 1_000, "t2": 2_000}
    for record in case["inputs"]:
        bench.send("in", record["key"], record["value"], times[record["ts"]])
    assert bench.live()
    last = {each.key: each for each in bench.broker.records("out")}
    assert {
        (key or b"").decode(): ((each.value or b"").decode(), each.timestamp)
        for key, each in last.items()
    } == {record["key"]: (record["value"], times[record["ts"]]) for record in case["expected"]}


# -- punctuation ------------------------------------------------------------------------------------------------------


def ticking(clock: PunctuationType, interval_ms: int, fired: list[int]) -> Topology:
    class Ticking(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(interval_ms, clock, fired.append)

        def process(self, record: Any) -> None:
            pass

    return (
        Topology()
        .add_source("read", ["p1", "p2"], key_serde=STRING, value_serde=STRING)
        .add_processor("tick", Ticking, "read")
    )


class Stepped:
    """A task over p1 and p2 that takes one record per call."""

    def __init__(self, topology: Topology) -> None:
        self.driver = TopologyTestDriver(topology)
        self.task: Task = self.driver._tasks[0]
        self.inputs = {
            name: self.driver.create_input_topic(name, key_serde=STRING, value_serde=STRING)
            for name in ("p1", "p2")
        }
        self._offsets = dict.fromkeys(self.inputs, 0)

    def add(self, partition: str, times: list[int]) -> None:
        self.driver._enqueue(
            partition, [self.inputs[partition]._raw("k", "v", time, ()) for time in times]
        )

    def poll(self) -> tuple[str, int]:
        """Return partition and time of the processed record."""
        group = self.task.group
        heads = {
            each.topic: (buffer.records, buffer.head_timestamp())
            for each, buffer in group.buffers.items()
        }
        assert self.task.process(1) == 1
        (partition,) = [
            each.topic
            for each, buffer in group.buffers.items()
            if buffer.records != heads[each.topic][0]
        ]
        time = heads[partition][1]
        assert time is not None
        return partition, time

    def partition_time(self, partition: str) -> int:
        return {each.topic: time for each, time in self.task.partition_times_ms.items()}[partition]


def test_punctuate_stream_time_after_gap() -> None:
    case = CASES["punctuate_stream_time_after_gap"]
    fired: list[int] = []
    stage = Stepped(ticking(PunctuationType.STREAM_TIME, case["params"]["interval_ms"], fired))
    with stage.driver:
        for entry in case["inputs"]:
            stage.add(entry["partition"], entry["ts"])
        for step in case["expected"]:
            fired.clear()
            stage.poll()
            assert stage.task.stream_time_ms == step["stream_time"]
            assert fired == ([step["stream_time"]] if step["fires"] else [])


def test_punctuate_wall_clock_interval() -> None:
    case = CASES["punctuate_wall_clock_interval"]
    fired: list[int] = []
    stage = Stepped(ticking(PunctuationType.WALL_CLOCK_TIME, case["params"]["interval_ms"], fired))
    with stage.driver as driver:
        for step in case["expected"]:
            fired.clear()
            driver.advance_wall_clock_time(step["now"] - driver.wall_clock_ms)
            assert fired == ([step["now"]] if step["fires"] else [])


# -- task scheduling --------------------------------------------------------------------------------------------------


def idle() -> Topology:
    return ticking(PunctuationType.WALL_CLOCK_TIME, 1_000, [])


@pytest.mark.parametrize(
    "name", ["partition_group_time_tracking", "partition_group_choose_by_head_timestamp"]
)
def test_the_partition_with_the_lowest_head_is_processed_next(name: str) -> None:
    """In the order of Kafka Streams' polls."""
    case = CASES[name]
    stage = Stepped(idle())
    expected = iter(case["expected"])
    with stage.driver:
        for step in case["inputs"]:
            if step["op"] == "add":
                stage.add(step["partition"], step["ts"])
                continue
            for _ in range(step["n"]):
                want = next(expected, None)
                if want is None:
                    assert stage.task.process(1) == 0
                    continue
                assert stage.poll() == (want["partition"], want["ts"])
                if "stream_time" in want:
                    assert stage.task.stream_time_ms == want["stream_time"]
                    assert stage.task.stream_time_ms - want["ts"] == want["lateness"]
                    for partition, time in want["partition_time"].items():
                        assert stage.partition_time(partition) == time
    assert next(expected, None) is None


def test_partition_time_is_max_processed() -> None:
    case = CASES["partition_time_is_max_processed"]
    stage = Stepped(idle())
    with stage.driver:
        stage.add("p1", case["inputs"][0]["ts"])
        assert stage.partition_time("p1") == -1
        for want in case["expected"]:
            stage.poll()
            assert stage.partition_time("p1") == want["partition_time"]


def test_partition_time_restored_from_commit_metadata() -> None:
    case = CASES["partition_time_restored_from_commit_metadata"]
    stage = Stepped(idle())
    with stage.driver:
        for step, want in zip(case["inputs"], case["expected"], strict=True):
            if step["op"] == "set_partition_time":
                for each in stage.task.partition_times_ms:
                    if each.topic == "p1":
                        stage.task.partition_times_ms[each] = step["value"]
            elif step["op"] == "add":
                stage.add("p1", step["ts"])
            else:
                stage.poll()
            assert stage.partition_time("p1") == want["partition_time"]


IDLE_MS = {
    "max_task_idle_disabled": -1,
    "max_task_idle_wait_for_metadata": 0,
    "max_task_idle_wait_for_known_lag": 0,
    "max_task_idle_deadline": 1,
}


@pytest.mark.parametrize("name", IDLE_MS)
def test_a_task_waits_for_an_empty_input(name: str) -> None:
    case = CASES[name]
    assert f"max.task.idle.ms={IDLE_MS[name]};" in case["topology"]
    partitions = {topic: TopicPartition(topic, 0) for topic in ("p1", "p2")}
    group = PartitionGroup(partitions.values(), max_task_idle_ms=IDLE_MS[name])
    expected = iter(case["expected"])
    for step in case["inputs"]:
        if step["op"] == "add":
            nothing = [None] * len(step["ts"])
            offsets = range(len(step["ts"]))
            group.add(SourceRecords(step["partition"], 0, offsets, nothing, nothing, step["ts"], None))  # fmt: skip
        elif step["op"] == "lag":
            group.update_lags({partitions[step["partition"]]: step["lag"]})
        else:
            want = next(expected)
            assert group.ready(step["now"]) is want["ready"]
            assert group.enforcing or not want.get("enforced", False)
    assert next(expected, None) is None


# -- stores -----------------------------------------------------------------------------------------------------------


def test_versioned_store_as_of() -> None:
    case = CASES["versioned_store_as_of"]
    prices = Stores.versioned(
        "store",
        history_retention=case["params"]["history_retention_ms"],
        key_serde=STRING,
        value_serde=STRING,
    )
    topology = (
        Topology()
        .add_source("read", "in", key_serde=STRING, value_serde=STRING)
        .add_processor("use", Processor, "read")
        .add_state_store(prices, "use")
    )
    puts = [want for want in case["expected"] if want["op"] == "put"]
    gets = [want for want in case["expected"] if want["op"] == "get"]
    with TopologyTestDriver(topology) as driver:
        store = driver.get_state_store("store")
        for step, want in zip(case["inputs"], puts, strict=True):
            assert store.put(step["key"], step["value"], step["ts"]) == want["valid_to"]
        for want in gets:
            found = store.get(want["key"], want.get("as_of"))
            if want["value"] is None:
                assert found is None
                continue
            assert found.value == want["value"]
            assert found.timestamp == want.get("valid_from", want.get("ts"))
            assert found.valid_to == want.get("valid_to")


# -- completeness ---------------------------------------------------------------------------

RUN = {
    *DSL,
    "record_cache_dedupes_within_commit_interval",
    "punctuate_stream_time_after_gap",
    "punctuate_wall_clock_interval",
    "partition_group_time_tracking",
    "partition_group_choose_by_head_timestamp",
    "partition_time_is_max_processed",
    "partition_time_restored_from_commit_metadata",
    *IDLE_MS,
    "learner_scale_out_promotes_without_restore",  # tests/integration/groups/test_groups_basic.py
    "smoke_test_invariants",  # tests/integration/test_smoke.py
    "versioned_store_as_of",
    *(name for name, case in CASES.items() if case["kind"] == "assignor"),  # test_golden_assignors
    *(name for name, case in CASES.items() if case["kind"] == "reconciler"),  # …_reconciler
}


def test_every_case_is_run() -> None:
    assert set(CASES) == RUN
    assert len(CASES) == 54
