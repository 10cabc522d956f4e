"""Batch runs on Spark: results are those of the inline run and of the test driver."""

import doctest
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.batch_topologies import (
    counted,
    joined,
    joined_by_foreign_key,
    payments,
    windowed,
)
from tests.streams.batch.oracle import Row
from tests.streams.batch.records import Rows, columns_of, comparable, rows_of
from tidewheel import Serde, Serdes, StreamsBuilder, StreamsConfig, StreamsError, Topology
from tidewheel.bulk import BatchResult, BulkProgress, FrameSource, run_batch
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession
from tidewheel.streams.batch.inline import run_inline
from tidewheel.streams.batch.job import BatchJob
from tidewheel.testing import TopologyTestDriver

_CONFIG = StreamsConfig(application_id="app")
_RECORDS = (
    "key binary, value binary, timestamp bigint, headers array<struct<key:string,value:binary>>, "
    "partition int, offset bigint"
)
_TEXT, _NUMBER = Serdes.string(), Serdes.int64()
_PARTITIONS = 2


@dataclass(frozen=True)
class Case:
    """A topology; `is_ordered`: each key's outputs come in the driver's order."""

    topology: Callable[[], Topology]
    topics: list[str]
    stores: Mapping[str, Serde[Any]]
    value_serde: Serde[Any] = _TEXT
    is_ordered: bool = True


_CASES = [
    Case(counted, ["in"], {"counts": _NUMBER}, _NUMBER, is_ordered=False),
    Case(windowed, ["in"], {"windows": _NUMBER}),
    Case(joined, ["clicks", "users"], {"users": _TEXT}),
    Case(
        joined_by_foreign_key,
        ["orders", "users"],
        {"users": _TEXT, "joined": _TEXT},
        is_ordered=False,
    ),
]


def _frames(spark: SparkSession, rows: Rows, topics: Iterable[str]) -> dict[str, DataFrame]:
    return {
        topic: spark.createDataFrame(
            [
                (row.key, row.value, row.timestamp, list(row.headers), at.partition, place)
                for at, every in rows.items()
                if at.topic == topic
                for place, row in enumerate(every)
            ],
            _RECORDS,
        )
        for topic in topics
    }


def _output(result: BatchResult, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    outputs: dict[int, list[tuple[Any, ...]]] = {}
    for row in result.outputs[topic].orderBy("partition", "offset").collect():
        headers = tuple((header.key, bytes(header.value)) for header in row.headers)
        rows = outputs.setdefault(row.partition, [])
        assert row.offset == len(rows)
        rows.append((row.key, row.value, row.timestamp, headers))
    return outputs


def _decoded(row: Row, value_serde: Serde[Any]) -> tuple[Any, ...]:
    key = None if row.key is None else row.key.decode()
    value = None if row.value is None else value_serde.deserialize("out", row.value)
    return key, value, row.timestamp, row.headers


def _stored(rows: Iterable[StoredRow], value_serde: Serde[Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            row.key.decode(),
            *(() if row.start is None else (row.start, row.end)),
            value_serde.deserialize("store", row.value),
            row.timestamp,
        )
        for row in rows
    )


def _by_key(rows: Iterable[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    by_key: dict[Any, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row[1:])
    return by_key


def _drive(case: Case, rows: Rows) -> tuple[list[tuple[Any, ...]], dict[str, list[StoredRow]]]:
    """Pipe the records into the test driver in canonical order."""
    piped: list[tuple[int, str, int, int, Row]] = []
    for at, every in rows.items():
        latest = -1
        for place, row in enumerate(every):
            latest = max(latest, row.timestamp)
            piped.append((latest, at.topic, at.partition, place, row))
    with TopologyTestDriver(case.topology(), _CONFIG) as driver:
        for _, topic, _, _, row in sorted(piped, key=lambda each: each[:4]):
            raw = driver.create_input_topic(topic, key_serde=bytes, value_serde=bytes)
            raw.pipe_input(row.key, row.value, row.timestamp, row.headers)
        output = driver.create_output_topic("out", key_serde=bytes, value_serde=bytes)
        outputs = [
            _decoded(Row(each.key, each.value, each.timestamp, each.headers), case.value_serde)
            for each in output.read_records()
        ]
        stores = {
            store: list(task.rows(store))
            for task in driver._batch_tasks.values()
            for store in task.stores
            if store in case.stores
        }
    return outputs, stores


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.topology.__name__)
def test_results_are_those_of_the_inline_run_and_of_the_driver(
    spark: SparkSession, case: Case
) -> None:
    rows = rows_of(7, case.topics, _PARTITIONS, 1)
    topology = case.topology()
    job = BatchJob.of(topology, _CONFIG, dict.fromkeys(case.topics, _PARTITIONS))
    inline = comparable(run_inline(job, columns_of(rows, 1_000)))
    expected = {
        at.partition: [_decoded(row, case.value_serde) for row in every]
        for at, every in inline.outputs.items()
        if at.topic == "out"
    }
    frames = _frames(spark, rows, case.topics)
    with run_batch(topology, frames, partitions=_PARTITIONS, config=_CONFIG) as result:
        outputs = _output(result, "out")
        stores = {
            store: sorted(map(tuple, result.stores[store].collect())) for store in case.stores
        }
    assert outputs == expected
    assert sum(map(len, outputs.values())) > 20
    driven, driven_stores = _drive(case, rows)
    for store, serde in case.stores.items():
        every = [row for rows in inline.stores[store].values() for row in rows]
        assert stores[store] == _stored(every, serde) == _stored(driven_stores[store], serde)
        assert stores[store]
    if case.is_ordered:
        found = _by_key(row for of_partition in outputs.values() for row in of_partition)
        expected_by_key = _by_key(driven)
        # Records without a key are in several partitions.
        assert sorted(found.pop(None, [])) == sorted(expected_by_key.pop(None, []))
        assert found == expected_by_key


def test_columns_of_any_type(spark: SparkSession) -> None:
    """Fields of a class, times, null keys and values, headers, and a global table."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    at_ms = 1_767_323_045_678
    headers = [("trace", b"1"), ("empty", None)]
    paid = spark.createDataFrame(
        [(1, at, "B", 500, headers), (None, at, "X", None, []), (2, at, "B", 7, None)],
        "key bigint, timestamp timestamp, city string, cents bigint, "
        "headers array<struct<key:string,value:binary>>",
    )
    cities = spark.createDataFrame(
        [(b"B", "Bonn", 5), (b"X", "gone", 5), (b"X", None, 6)],
        "key binary, value string, timestamp int",
    )
    frames = {"payments": paid, "cities": cities}
    with run_batch(payments(), frames, partitions=2) as result:
        assert set(result.outputs) == {"cents", "names"}
        assert "nothing" not in result.outputs
        cents = result.outputs["cents"]
        assert cents.columns == ["key", "value", "timestamp", "headers", "partition", "offset"]
        assert dict(cents.dtypes[:3]) == {"key": "bigint", "value": "bigint", "timestamp": "bigint"}
        rows = {row.key: row for row in cents.collect()}
        assert {key: row.value for key, row in rows.items()} == {1: 500, None: None, 2: 7}
        assert {row.timestamp for row in rows.values()} == {at_ms}
        assert [tuple(header) for header in rows[1].headers] == headers
        assert rows[2].headers == []
        names = {row.key: row.value for row in result.outputs["names"].collect()}
        assert names == {1: "Bonn", None: None, 2: "Bonn"}
        as_text = result.output("cents", value_type="string").collect()
        assert {row.value for row in as_text} == {"500", "7", None}


def test_records_without_offsets_are_ordered_by_their_times(spark: SparkSession) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).to("out", key_serde=str, value_serde=str)
    rows = [("k", f"v{time:03}", time) for time in reversed(range(200))]
    frame = spark.createDataFrame(rows, "key string, value string, timestamp bigint").repartition(3)
    with run_batch(builder.build(), {"in": frame}) as result:
        (found,) = _output(result, "out").values()
    assert [row[1] for row in found] == [f"v{time:03}" for time in range(200)]


def test_files_live_as_long_as_the_result(spark: SparkSession, tmp_path: Path) -> None:
    steps: list[BulkProgress] = []
    frame = spark.createDataFrame([("k", "v", 1)], "key string, value string, timestamp bigint")
    result = run_batch(
        counted(), {"in": frame}, partitions=1, work=tmp_path, on_progress=steps.append
    )
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    counts = result.stores["counts"]
    assert [row.value for row in counts.collect()] == [1]
    result.close()
    result.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StreamsError, match="closed"):
        _ = result.outputs["out"]
    assert {step.step: step.done for step in steps} == {
        "reading in": 1,
        "pass 1 of 2 (sub-topology 0)": 1,
        "pass 2 of 2 (sub-topology 1)": 1,
    }


@pytest.mark.parametrize(
    ("rows", "schema", "problem"),
    [
        ([("k", 7, 1)], "key string, value bigint, timestamp bigint", "topic in: the value"),
        ([("k", "v", -1)], "key string, value string, timestamp bigint", "timestamp .* is -1"),
        ([("k", "v", 1, 5)] * 2, "key string, value string, timestamp bigint, offset int", "offset 5"),
        (
            [("k", "v", 1, 2)],
            "key string, value string, timestamp bigint, partition int",
            "partitions=3",
        ),
        ([("k", "v")], "key string, value string", "no column timestamp"),
    ],
)  # fmt: skip
def test_a_bad_frame_is_an_error_that_names_its_topic(
    spark: SparkSession, tmp_path: Path, rows: list[Any], schema: str, problem: str
) -> None:
    frame = spark.createDataFrame(rows, schema)
    with pytest.raises(StreamsError, match=problem):
        run_batch(counted(), {"in": frame}, partitions=2, work=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_function_ends_the_run(spark: SparkSession, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    lines = builder.stream("in", key_serde=str, value_serde=str)
    lines.map_values(lambda value: value[99]).to("out", key_serde=str, value_serde=str)
    frame = spark.createDataFrame([("k", "v", 1)], "key string, value string, timestamp bigint")
    with pytest.raises(StreamsError, match="IndexError"):
        run_batch(builder.build(), {"in": frame}, work=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_docstring_runs(spark: SparkSession) -> None:
    text = (run_batch.__doc__ or "").replace("  # doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(text, {"spark": spark}, "run_batch", None, 0)
    assert len(example.examples) > 4
    assert doctest.DocTestRunner().run(example).failed == 0


def test_files_are_read_by_a_source(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text,at\n007,a,1\n007,bb,2\n8,a,3\n")
    source = FrameSource(
        source=str(tmp_path / "in.csv"),
        select=("id AS key", "text AS value", "at AS timestamp"),
    )
    with run_batch(counted(), {"in": source}, spark=spark, partitions=2) as result:
        counts = {row.key: row.value for row in result.stores["counts"].collect()}
    assert counts == {"007-1": 1, "007-2": 1, "8-1": 1}
