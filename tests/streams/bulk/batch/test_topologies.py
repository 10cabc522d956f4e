"""Topologies travel to Spark's executors: each operator of the DSL gives there what it does here."""

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.serializers import CloudPickleSerializer

from tests.streams.batch.oracle import Result
from tests.streams.batch.records import columns_of, comparable, rows_of
from tidewheel import (
    BufferConfig,
    CalendarWindows,
    FixedKeyProcessor,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    ValueTransformerWithKey,
)
from tidewheel.state_stores.bulk_restore.spark.frames import PortableFunction
from tidewheel.streams.batch.inline import run_inline
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.dsl.cogrouped_kstream import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from tidewheel.streams.dsl.kgrouped_stream import KGroupedStream
from tidewheel.streams.dsl.kgrouped_table import KGroupedTable
from tidewheel.streams.dsl.windowed_kstream import SessionWindowedKStream, TimeWindowedKStream

pytestmark = pytest.mark.spark

_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
_TOPICS = {"in": 2, "other": 2, "wide": 2}
_WINDOWS = TimeWindows(10, grace=20)
_JOINED = JoinWindows(5, grace=10)


class _Shout(Processor[str, str, str, str]):
    def process(self, record: Any) -> None:
        self.context.forward(record.replace(value=f"{record.value}!"))


class _ShoutValues(FixedKeyProcessor[str, str, str]):
    def process(self, record: Any) -> None:
        self.context.forward(record.replace(value=f"{record.value}!"))


class _Transformer(ValueTransformerWithKey[str, str, str]):
    def transform(self, key: Any, value: Any) -> str:
        return f"{key}: {value}"


class _Newest(Processor[str, str, None, None]):
    def process(self, record: Any) -> None:
        if record.key is not None:
            cast("Any", self.context.get_state_store("newest")).put(record.key, record.value)


def _out(stream: KStream[Any, Any]) -> None:
    stream.map(lambda key, value: (str(key), str(value))).to("out", **_TEXT)


def _table_out(table: KTable[Any, Any]) -> None:
    _out(table.to_stream())


def _with_values(lines: KStream[str, str]) -> KStream[str, str]:
    return lines.filter(lambda value: value is not None)


def _stateless(lines: KStream[str, str], _: StreamsBuilder) -> None:
    kept = _with_values(lines).filter_not(lambda value: "7" in value)
    values = kept.map_values(str.upper).flat_map_values(lambda value: [value, value + "2"])
    moved = values.map(lambda key, value: (key, value[:2])).flat_map(lambda k, v: [(k, v), (v, v)])
    named = moved.select_key(lambda key, _: f"{key}-").peek(lambda _: None)
    named.foreach(lambda _: None)
    named.print("seen")
    branches = named.split({"low": lambda key, _: (key or "") < "c"}, default="high")
    _out(branches["low"].merge(branches["high"]))


def _batches(lines: KStream[str, str], _: StreamsBuilder) -> None:
    batch = _with_values(lines).map_values_batch(lambda values: [value + "2" for value in values])
    _out(batch.map_batch(lambda table: table.select(["value"])))


def _processors(lines: KStream[str, str], builder: StreamsBuilder) -> None:
    builder.add_state_store(Stores.key_value("seen", **_TEXT))
    rates = Stores.key_value("newest", **_TEXT)
    builder.add_global_store(rates, "wide", _Newest, **_TEXT)
    _out(lines.process(_Shout, stores=["seen"]).process_values(_ShoutValues))


def _repartitioned(lines: KStream[str, str], _: StreamsBuilder) -> None:
    _out(lines.select_key(lambda _, value: value or "").repartition(**_TEXT))


def _tables(lines: KStream[str, str], _: StreamsBuilder) -> None:
    table = lines.to_table(store=Materialized("table", **_TEXT))
    kept = table.filter(lambda value: "7" not in value).filter_not(lambda value: "8" in value)
    transformed = kept.map_values(str.upper).transform_values(
        _Transformer, store=Materialized("transformed", value_serde=str)
    )
    _table_out(transformed.suppress(Suppressed.until_time_limit(20, BufferConfig.max_records(3))))


def _versioned(lines: KStream[str, str], builder: StreamsBuilder) -> None:
    store = Materialized("versions", store_type="versioned", history_retention=50, **_TEXT)
    table = builder.table("other", store=store, **_TEXT)
    _out(lines.join(table, lambda one, two: f"{one}{two}", grace=5))


def _expiring(lines: KStream[str, str], _: StreamsBuilder) -> None:
    expiring = Materialized("expiring", ttl=timedelta(milliseconds=20))
    _table_out(lines.group_by_key().count(store=expiring))


def _grouped(lines: KStream[str, str], _: StreamsBuilder) -> None:
    lines = _with_values(lines)
    grouped = lines.group_by_key()
    _table_out(grouped.count())
    _table_out(grouped.reduce(min))
    by = lines.group_by(lambda key, value: f"{key}{len(value)}", **_TEXT)
    _table_out(by.aggregate(str, lambda _, value, text: text + value[-1], value_serde=str))


def _windowed(lines: KStream[str, str], _: StreamsBuilder) -> None:
    grouped = _with_values(lines).group_by_key()
    counts = grouped.windowed_by(_WINDOWS).count()
    closing = Suppressed.until_window_closes(BufferConfig.unbounded())
    _table_out(counts.suppress(closing))
    _table_out(grouped.windowed_by(SlidingWindows(7, grace=20)).reduce(min))
    _table_out(
        grouped.windowed_by(CalendarWindows("day", grace=20)).aggregate(
            str, lambda _, value, text: text + value[-1], value_serde=str
        )
    )
    on_close = TimeWindows(10, grace=5)
    _table_out(grouped.windowed_by(on_close).emit_strategy("on_window_close").count())


def _sessions(lines: KStream[str, str], _: StreamsBuilder) -> None:
    sessions = _with_values(lines).group_by_key().windowed_by(SessionWindows(3, grace=20))
    _table_out(sessions.count())
    _table_out(sessions.reduce(min))
    _table_out(
        sessions.aggregate(
            str,
            lambda _, value, text: text + value[-1],
            merger=lambda _, one, two: one + two,
            value_serde=str,
        )
    )


def _cogrouped(lines: KStream[str, str], builder: StreamsBuilder) -> None:
    def add(_: str, value: str, text: str) -> str:
        return text + value[-1]

    others = _with_values(builder.stream("other", **_TEXT)).group_by_key()
    both = _with_values(lines).group_by_key().cogroup(add).cogroup(others, add)
    _table_out(both.aggregate(str, value_serde=str))
    _table_out(both.windowed_by(_WINDOWS).aggregate(str, value_serde=str))
    sessions = both.windowed_by(SessionWindows(3, grace=20))
    _table_out(sessions.aggregate(str, merger=lambda _, one, two: one + two, value_serde=str))


def _grouped_tables(lines: KStream[str, str], _: StreamsBuilder) -> None:
    grouped = lines.to_table().group_by(lambda key, value: (value[-1], value), **_TEXT)
    _table_out(grouped.count())
    _table_out(grouped.reduce(lambda one, _: one, lambda one, _: one))
    _table_out(
        grouped.aggregate(
            str, lambda _, v, text: text + v[-1], lambda _, v, text: text[1:], value_serde=str
        )
    )


def _stream_joins(lines: KStream[str, str], builder: StreamsBuilder) -> None:
    others = builder.stream("other", **_TEXT)
    _out(lines.join(others, lambda one, two: f"{one}{two}", within=_JOINED))
    _out(lines.left_join(others, lambda one, two: f"{one}{two}", within=_JOINED))
    _out(lines.outer_join(others, lambda one, two: f"{one}{two}", within=_JOINED))


def _table_joins(lines: KStream[str, str], builder: StreamsBuilder) -> None:
    others = builder.table("other", **_TEXT)
    wide = builder.global_table("wide", **_TEXT)
    _out(lines.join(others, lambda one, two: f"{one}{two}"))
    _out(lines.left_join(others, lambda one, two: f"{one}{two}"))
    _out(lines.join(wide, lambda one, two: f"{one}{two}", key_selector=lambda key, _: key))
    _out(lines.left_join(wide, lambda one, two: f"{one}{two}", key_selector=lambda key, _: key))
    table = lines.to_table()
    _table_out(table.join(others, lambda one, two: f"{one}{two}"))
    _table_out(table.left_join(others, lambda one, two: f"{one}{two}"))
    _table_out(table.outer_join(others, lambda one, two: f"{one}{two}"))


def _foreign_key_joins(lines: KStream[str, str], builder: StreamsBuilder) -> None:
    users, orders = builder.table("other", **_TEXT), lines.to_table()
    _table_out(
        orders.join(
            users,
            lambda order, user: f"{order}{user}",
            foreign_key=lambda order: "abcdef"[len(order) % 6],
            store=Materialized("joined", value_serde=str),
        )
    )


_CASES: list[Callable[[KStream[str, str], StreamsBuilder], None]] = [
    _stateless,
    _batches,
    _processors,
    _repartitioned,
    _tables,
    _versioned,
    _expiring,
    _grouped,
    _windowed,
    _sessions,
    _cogrouped,
    _grouped_tables,
    _stream_joins,
    _table_joins,
    _foreign_key_joins,
]


def _topology(case: Callable[[KStream[str, str], StreamsBuilder], None]) -> Topology:
    builder = StreamsBuilder()
    case(builder.stream("in", **_TEXT), builder)
    return builder.build()


def _run(job: BatchJob) -> Result:
    rows = rows_of(11, sorted(_TOPICS), 2, 3)
    read = {
        topic for planned in job.plan.subtopologies.values() for topic in planned.topic_partitions
    } | {store.topic for store in job.plan.global_stores}
    rows = {at: every for at, every in rows.items() if at.topic in read}
    return comparable(run_inline(job, columns_of(rows, 100)))


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.__name__)
def test_a_topology_that_was_sent_gives_the_same_results(
    case: Callable[[KStream[str, str], StreamsBuilder], None],
) -> None:
    job = BatchJob.of(_topology(case), None, _TOPICS)
    serializer: Any = cast("Any", CloudPickleSerializer)()
    sent = serializer.loads(serializer.dumps(PortableFunction(partial(_run, job))))
    expected, found = _run(job), sent()
    assert found.outputs == expected.outputs
    assert found.stores == expected.stores
    assert found.ends == expected.ends
    assert any(expected.outputs.values())


_CLASSES = [
    *(StreamsBuilder, KStream, KTable, KGroupedStream, KGroupedTable, CogroupedKStream),
    *(TimeWindowedKStream, SessionWindowedKStream),
    *(TimeWindowedCogroupedKStream, SessionWindowedCogroupedKStream),
]
#: No operators, or not for batch runs.
_OTHERS = {
    "aggregations",
    "queryable_store_name",
    "to_sink",
    "key_serde",
    "write_to",
    "resolve_parents",
    "stores",
}


def test_each_operator_is_sent_here() -> None:
    operators = {
        name
        for each in _CLASSES
        for name, _ in inspect.getmembers(each)
        if not name.startswith("_") and name not in _OTHERS
    }
    called = set(re.findall(r"\.(\w+)\(", Path(__file__).read_text(encoding="utf-8")))
    assert operators <= called
