"""What Kafka Streams 4.3.1 does, input by input (`golden.json`, facts only), and which cases wait for what.

A case that seems wrong is reported, never edited.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streams import (
    Materialized,
    Processor,
    PunctuationType,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from streams.testing import TopologyTestDriver
from tasks.active_task import ActiveTask
from tests.tasks.bench import Bench

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case
    for case in json.loads((Path(__file__).parent / "golden.json").read_text(encoding="utf-8"))
}
STRING = Serdes.string()

LANGUAGE = "comes with the language issue (joins, windows, grouped tables, suppress, cogroup, versioned stores)"
GROUP = "comes with group coordination (assignors, reconciliation, learners)"
IDLE = "comes with max_task_idle_ms"

#: Every case that is not run here, and what it waits for.
NOT_YET = {
    **dict.fromkeys(
        [
            "stream_stream_inner_join",
            "stream_stream_left_join_null_key",
            "left_join_expired_emitted_by_left_side",
            "outer_join_right_expired_by_left",
            "table_table_inner_join",
            "table_table_left_join",
            "stream_table_left_join",
            "stream_table_inner_join_versioned",
            "stream_globaltable_left_join",
            "fk_inner_join_delete_left",
            "fk_left_join_delete_right",
            "suppress_until_time_limit_2ms",
            "suppress_until_window_closes_tumbling",
            "sliding_window_aggregate_on_update",
            "hopping_window_aggregate",
            "table_aggregate_add_subtract",
            "table_aggregate_repartition",
            "cogroup_two_streams_shared_keys",
            "session_immediate_forward_and_merge_tombstone",
            "versioned_store_as_of",
            "smoke_test_invariants",
        ],
        LANGUAGE,
    ),
    **dict.fromkeys(
        [
            "max_task_idle_disabled",
            "max_task_idle_wait_for_metadata",
            "max_task_idle_wait_for_known_lag",
            "max_task_idle_deadline",
        ],
        IDLE,
    ),
    **dict.fromkeys(
        [name for name, case in CASES.items() if case["kind"] in ("assignor", "reconciler")], GROUP
    ),
    "learner_scale_out_promotes_without_restore": GROUP,
}


def text(value: Any) -> str | None:
    """Return a value as the cases write it."""
    return None if value is None else str(value)


# -- dsl --------------------------------------------------------------------------------------------------------------


def table_source(builder: StreamsBuilder) -> None:
    """table('input', materialised 'store') -> toStream -> 'output'."""
    table = builder.table(
        "input", key_serde=STRING, value_serde=STRING, store=Materialized("store")
    )
    table.to_stream().to("output", key_serde=STRING, value_serde=STRING)


DSL: dict[str, Callable[[StreamsBuilder], None]] = {
    "table_source_out_of_order_and_tombstones": table_source,
}


@pytest.mark.parametrize("name", DSL)
@pytest.mark.parametrize("record_by_record", [False, True])
def test_dsl(name: str, record_by_record: bool) -> None:
    """Every record comes out at the input that Kafka Streams lets it come out at, with the same time, and no other."""
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
                (topic, record["key"], record["value"], record["ts"], record["after"])
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
    """With a cache, the last value per key of a commit interval is what comes out."""
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
    """Return a topology over p1 and p2 whose processor schedules at init."""

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
    """A task over p1 and p2 that takes one record when told."""

    def __init__(self, topology: Topology) -> None:
        self.driver = TopologyTestDriver(topology)
        self.task: ActiveTask = self.driver._tasks[0]
        self.inputs = {
            name: self.driver.create_input_topic(name, key_serde=STRING, value_serde=STRING)
            for name in ("p1", "p2")
        }
        self._offsets = dict.fromkeys(self.inputs, 0)

    def add(self, partition: str, times: list[int]) -> None:
        """Buffer records."""
        self.driver._enqueue(
            partition, [self.inputs[partition]._raw("k", "v", time, ()) for time in times]
        )

    def poll(self) -> tuple[str, int]:
        """Process one record; return its partition and time."""
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
        """Return the largest time polled from a partition."""
        return {each.topic: time for each, time in self.task.partition_times_ms.items()}[partition]


def test_punctuate_stream_time_after_gap() -> None:
    """Once per step of the grid that the stream time reached, gaps collapse."""
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
    """First after one interval, then on its grid."""
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
    """Return a topology over p1 and p2 that does nothing."""
    return ticking(PunctuationType.WALL_CLOCK_TIME, 1_000, [])


@pytest.mark.parametrize(
    "name", ["partition_group_time_tracking", "partition_group_choose_by_head_timestamp"]
)
def test_the_lowest_head_goes_next(name: str) -> None:
    """Partition by partition as Kafka Streams polls, with the times known after each record."""
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
    """Adding does not change it, polling raises it."""
    case = CASES["partition_time_is_max_processed"]
    stage = Stepped(idle())
    with stage.driver:
        stage.add("p1", case["inputs"][0]["ts"])
        assert stage.partition_time("p1") == -1
        for want in case["expected"]:
            stage.poll()
            assert stage.partition_time("p1") == want["partition_time"]


def test_partition_time_restored_from_commit_metadata() -> None:
    """A time that was set stands until a later record."""
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


# -- nothing is left out ----------------------------------------------------------------------------------------------

RUN = {
    *DSL,
    "record_cache_dedupes_within_commit_interval",
    "punctuate_stream_time_after_gap",
    "punctuate_wall_clock_interval",
    "partition_group_time_tracking",
    "partition_group_choose_by_head_timestamp",
    "partition_time_is_max_processed",
    "partition_time_restored_from_commit_metadata",
}


def test_every_case_is_run_or_listed_with_what_it_waits_for() -> None:
    """A case is in exactly one of the two."""
    assert RUN | set(NOT_YET) == set(CASES)
    assert RUN.isdisjoint(NOT_YET)
    assert len(CASES) == 54
