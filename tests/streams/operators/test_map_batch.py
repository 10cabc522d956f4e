"""`map_batch`: values as tables; keys, times and headers stay with their records."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.bench import Bench
from tidewheel import (
    ErrorContext,
    ErrorResponse,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    TopologyError,
)
from tidewheel.testing import TopologyTestDriver

# As `Any`: two of them have no types.
pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
pd: Any = import_module("pandas")
pl: Any = import_module("polars")

ORDERS = [
    ("a", {"price": 3, "count": 2}, 10),
    (None, {"price": 5, "count": None}, 11),
    ("c", None, 12),
]
TOTALS = [
    ("a", {"price": 3, "count": 2, "total": 6}, 10),
    (None, {"price": 5, "count": None, "total": None}, 11),
    ("c", None, 12),
]


def _arrow_total(table: Any) -> Any:
    return table.append_column("total", pc.multiply(table["price"], table["count"]))


def _pandas_total(frame: Any) -> Any:
    return frame.assign(total=frame["price"] * frame["count"])


def _polars_total(frame: Any) -> Any:
    return frame.with_columns(total=pl.col("price") * pl.col("count"))


async def _awaited_total(table: Any) -> Any:
    await asyncio.sleep(0)
    return _arrow_total(table)


WAYS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "arrow": (_arrow_total, "arrow"),
    "arrow, awaited": (_awaited_total, "arrow"),
    "pandas": (_pandas_total, "pandas"),
    "polars": (_polars_total, "polars"),
    "from arrow to polars": (lambda table: _polars_total(pl.from_arrow(table)), "arrow"),
    "a record batch": (lambda table: _arrow_total(table).to_batches()[0], "arrow"),
    "fields only": (
        lambda table: _arrow_total(table).select(["price", "count", "total"]),
        "arrow",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_fields_of_the_values_are_columns(way: str) -> None:
    function, frame = WAYS[way]
    assert run(lambda s: s.map_batch(function, frame=frame), ORDERS) == TOTALS


def test_record_by_record_each_table_has_one_row() -> None:
    schema = pa.schema([("price", pa.int64()), ("count", pa.int64())])
    sizes: list[int] = []

    def total(table: Any) -> Any:
        sizes.append(table.num_rows)
        return _arrow_total(table)

    use = lambda s: s.map_batch(total, schema=schema)  # noqa: E731 - used twice
    assert run(use, ORDERS, record_by_record=True) == TOTALS
    assert run(use, ORDERS) == TOTALS
    assert sizes == [1, 1, 1, 1], "a key None has another type"


def test_values_without_fields_are_the_column_value() -> None:
    def double(table: Any) -> Any:
        return pa.table({"value": pc.multiply(table["value"], 2)})

    rows = [("a", 1, 10), ("b", None, 11)]
    assert run(lambda s: s.map_batch(double), rows) == [("a", 2, 10), ("b", None, 11)]


def test_the_table_has_keys_times_and_headers() -> None:
    tables: list[Any] = []

    def keep(table: Any) -> Any:
        tables.append(table)
        return table

    with driver_of(lambda s: s.map_batch(keep)) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_input("k", {"n": 1}, 1_500, (("h", b"1"), ("none", None)))
        source.pipe_input("k", {"n": 2}, 1_501)
        records = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON).read_records()
    assert [record.headers for record in records] == [(("h", b"1"), ("none", None)), ()]
    assert [record.value for record in records] == [{"n": 1}, {"n": 2}]
    first, second = tables
    assert first.column_names == ["n", "_key", "_timestamp", "_headers"]
    assert first["_key"].to_pylist() == ["k"]
    assert first["_timestamp"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)]
    headers = [{"name": "h", "value": b"1"}, {"name": "none", "value": None}]
    assert first["_headers"].to_pylist() == [headers]
    assert second["_headers"].to_pylist() == [None]
    assert first.schema == second.schema


class StructOrder(msgspec.Struct):
    price: int
    bought: datetime


@dataclass
class DataOrder:
    price: int
    bought: datetime


class ModelOrder(BaseModel):
    price: int
    bought: datetime


@pytest.mark.parametrize("kind", [StructOrder, DataOrder, ModelOrder])
def test_objects_of_record_classes_have_columns_of_their_fields(kind: Any) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    seen: list[Any] = []

    def see(table: Any) -> Any:
        seen.append(table)
        return table.select(["price"])

    builder = StreamsBuilder()
    orders = builder.stream("in", key_serde=str, value_serde=Serdes.json(kind))
    orders.map_batch(see).to("out", value_serde=Serdes.json())
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=Serdes.json(kind))
        source.pipe_input("a", kind(price=3, bought=at))
        output = driver.create_output_topic("out", key_serde=str, value_serde=JSON)
        assert output.read_value() == {"price": 3}
    assert seen[0]["bought"].to_pylist() == [at]


@pytest.mark.parametrize("frame", ["pandas", "polars"])
def test_frames_use_the_table_s_memory_and_keep_integers_next_to_nulls(frame: Any) -> None:
    frames: list[Any] = []

    def see(given: Any) -> Any:
        frames.append(given)
        return given

    rows = [("a", {"n": 2**53 + 1}, 10), ("b", {"n": None}, 11)]
    schema = pa.schema([("n", pa.int64())])
    assert run(lambda s: s.map_batch(see, frame=frame, schema=schema), rows) == rows
    assert isinstance(frames[0], pd.DataFrame if frame == "pandas" else pl.DataFrame)


def _with_twice(table: Any) -> Any:
    return pa.Table.from_arrays([table["price"], table["price"]], names=["price", "price"])


@pytest.mark.parametrize(
    ("mapper", "error"),
    [
        (lambda table: table.slice(1), r"mapper.* returned 1 rows for 2 \(in-0 offsets 0 to 1\)"),
        (lambda table: None, "mapper.* returned no table but NoneType"),
        (lambda table: [1, 2], "mapper.* returned no table but list"),
        (lambda table: table["price"], "mapper.* returned no table but ChunkedArray"),
        (lambda table: table["price"].chunk(0), "mapper.* returned no table but Int64Array"),
        (lambda table: table["price"].to_pandas(), "mapper.* returned no table but Series"),
        (lambda table: pl.from_arrow(table)["price"], "mapper.* returned no table but Series"),
        (lambda table: table.select(["_key"]), "mapper.* returned no column of the value"),
        (_with_twice, "mapper.* returned a column name twice"),
        (
            lambda table: table.take([1, 0]),
            r"mapper.* returned another column '_key' for in-0 offsets 0 to 1",
        ),
        (lambda table: table["missing"], "KeyError"),
    ],
)
def test_a_result_that_does_not_fit_names_function_and_records(
    mapper: Callable[[Any], Any], error: str
) -> None:
    mapper.__qualname__ = "mapper"
    rows = [("a", {"price": 1}, 10), ("b", {"price": 2}, 11)]
    with pytest.raises(RecordFailedError, match=error):
        run(lambda s: s.map_batch(mapper), rows)
    told: list[int | None] = []

    def skip(context: ErrorContext, record: Any, raised: Exception) -> ErrorResponse:
        told.append(context.offset)
        return ErrorResponse(action="continue")

    assert run(lambda s: s.map_batch(mapper), rows, processing_exception_handler=skip) == []
    assert told == [0, 1]


def test_with_a_schema_a_record_that_does_not_fit_fails_alone() -> None:
    schema = pa.schema([("price", pa.int64()), ("count", pa.int64())])
    told: list[tuple[int | None, str]] = []

    def skip(context: ErrorContext, record: Any, raised: Exception) -> ErrorResponse:
        told.append((context.offset, str(raised)))
        return ErrorResponse(action="continue")

    rows = [*ORDERS[:1], ("x", {"price": "secret"}, 11), ("y", 7, 12), *ORDERS[2:]]
    use = lambda s: s.map_batch(_arrow_total, schema=schema)  # noqa: E731 - used twice
    assert run(use, rows, processing_exception_handler=skip) == [TOTALS[0], TOTALS[2]]
    assert [offset for offset, _ in told] == [1, 2]
    assert "'price'" in told[0][1]
    assert "in-0 offset 1" in told[0][1]
    assert "secret" not in told[0][1], "errors quote no data"


def test_without_a_schema_a_value_that_fits_no_column_fails_alone() -> None:
    rows = [("a", {"n": 1}, 10), ("b", {"n": 2**70}, 11), ("c", {"n": [1, "x"]}, 12)]
    use = lambda s: s.map_batch(lambda table: table)  # noqa: E731 - used twice
    with pytest.raises(RecordFailedError, match=r"offset 1.*does not fit int64.*schema="):
        run(use, rows)
    assert run(use, rows, processing_exception_handler="continue") == rows[:1]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=2),
)
FIELDS = st.one_of(
    SCALARS,
    st.lists(st.integers(0, 9), max_size=2),
    st.dictionaries(st.sampled_from("xy"), SCALARS),
)
VALUES = st.one_of(SCALARS, st.dictionaries(st.sampled_from("pqr"), FIELDS, min_size=1))
KEYS = st.one_of(st.none(), st.text(max_size=1), st.integers(0, 3))


@given(rows=st.lists(st.tuples(KEYS, VALUES), max_size=8))
def test_no_result_depends_on_the_neighbours_of_its_record(rows: list[tuple[Any, Any]]) -> None:
    """The result has the types of the columns, as the function sees them."""

    def types(table: Any) -> Any:
        kept = [name for name in table.column_names if name not in ("_timestamp", "_headers")]
        text = [f"{kept} {table.select(kept).schema.types}"] * table.num_rows
        return table.append_column("types", pa.array(text))

    def outcome(*, record_by_record: bool) -> list[Any]:
        return run(
            lambda s: s.map_batch(types),
            [(key, value, 10 + place) for place, (key, value) in enumerate(rows)],
            record_by_record=record_by_record,
            processing_exception_handler="continue",
        )

    batched = outcome(record_by_record=False)
    assert repr(batched) == repr(outcome(record_by_record=True))
    assert [row for row in batched if row[1] is None] == [
        (key, None, 10 + place) for place, (key, value) in enumerate(rows) if value is None
    ]


def test_records_of_the_same_columns_share_a_table() -> None:
    sizes: list[int] = []

    def keep(table: Any) -> Any:
        sizes.append(table.num_rows)
        return table

    values = [{"p": 1}, {"p": 2}, {"q": 3}, None, {"p": 4}, {"p": 5.5}, 6, 7]
    rows = [("k", value, place) for place, value in enumerate(values)]
    assert run(lambda s: s.map_batch(keep), rows) == rows
    assert sizes == [3, 1, 1, 2]


def test_a_field_named_as_a_column_of_the_record_fails() -> None:
    with pytest.raises(RecordFailedError, match="'_key'"):
        run(lambda s: s.map_batch(lambda table: table), [("a", {"_key": 1}, 10)])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"frame": "numpy"}, "frame='numpy'"),
        ({"schema": {"price": int}}, "schema is of type dict"),
        ({"schema": pa.schema([("_key", pa.int64())])}, "'_key'"),
    ],
)
def test_wrong_arguments_name_the_line(options: dict[str, Any], error: str) -> None:
    stream = StreamsBuilder().stream("in", key_serde=str, value_serde=str)
    with pytest.raises(TopologyError, match=rf"map_batch \(.*test_map_batch.py:\d+\).*{error}"):
        stream.map_batch(lambda table: table, **options)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("tidewheel.streams.operators.arrow_batches.import_module", fail)
    stream = StreamsBuilder().stream("in", key_serde=str, value_serde=str)
    with pytest.raises(TopologyError, match=r"pip install 'tidewheel\[arrow\]'"):
        stream.map_batch(lambda table: table)


def test_K4_tables_of_key_ranges_have_records_of_one_range() -> None:
    tables: list[list[str]] = []

    def keep(table: Any) -> Any:
        tables.append(table["_key"].to_pylist())
        return table

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_batch(keep).to("out", value_serde=str)
    bench = Bench(builder.build(), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.idle_polls = 3
    for number in range(200):
        bench.send("in", f"k{number % 20}", str(number))
    assert bench.live(threads=4)
    assert len(bench.outputs("out")) == sum(map(len, tables)) == 200
    assert max(map(len, tables)) > 1


def test_a_failed_table_does_not_affect_the_next_one() -> None:
    def picky(table: Any) -> Any:
        if 2 in table["value"].to_pylist():
            raise ValueError("refused")
        return table

    with driver_of(lambda s: s.map_batch(picky), processing_exception_handler="continue") as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", 1, 10), ("b", 2, 11)])
        source.pipe_batch([("e", 5, 20)])
        assert outputs(driver) == [("e", 5, 20)]
