"""IcebergTable on a catalogue in SQLite: rows and positions in one commit, and other writers."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tidewheel import ConfigError, FencedError, StreamsError
from tidewheel.sinks import IcebergTable, RowsRefused, SinkBatch, SinkTaskInfo, TopicPartition

pytestmark = pytest.mark.slow

pa: Any = import_module("pyarrow")

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }


@pytest.fixture
def catalog(properties: dict[str, str]) -> Catalog:
    made = load_catalog("default", **properties)
    made.create_namespace("shop")
    made.create_table("shop.orders", SCHEMA)
    return made


def info(*partitions: TopicPartition) -> SinkTaskInfo:
    return SinkTaskInfo(
        application_id="shop", sink="s", task_id="0_0", start=dict.fromkeys(partitions or [AT], 0)
    )


def batch(first: int, values: list[Any], at: TopicPartition = AT) -> SinkBatch:
    offsets = range(first, first + len(values))
    return SinkBatch(at.topic, at.partition, offsets, values, values, [0] * len(values))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}"}


def ids(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table("shop.orders").scan().to_arrow()["id"].to_pylist())


def test_rows_and_positions_are_one_commit(catalog: Catalog, properties: dict[str, str]) -> None:
    sink = IcebergTable("shop.orders", properties=properties)
    assert sink.open(info()) == {}
    sink.write(batch(0, [row(0), row(1), None]))
    sink.flush({AT: 3})
    sink.flush({AT: 5})  # without rows
    assert ids(catalog) == [0, 1]
    assert IcebergTable("shop.orders", properties=properties).open(info()) == {AT: 5}


def test_later_owner_wins(catalog: Catalog, properties: dict[str, str]) -> None:
    earlier, later = (IcebergTable("shop.orders", properties=properties) for _ in range(2))
    for sink in (earlier, later):
        sink.open(info())
        sink.write(batch(0, [row(0)]))
    later.flush({AT: 1})
    with pytest.raises(FencedError, match=r"shop\.orders"):
        earlier.flush({AT: 1})
    assert ids(catalog) == [0]


def test_commits_of_other_tasks_do_not_disturb(
    catalog: Catalog, properties: dict[str, str]
) -> None:
    first, second = (IcebergTable("shop.orders", properties=properties) for _ in range(2))
    first.open(info(AT))
    second.open(info(OTHER))
    for number in range(3):
        first.write(batch(number, [row(number)]))
        first.flush({AT: number + 1})
        second.write(batch(number, [row(10 + number)], OTHER))
        second.flush({OTHER: number + 1})
    assert ids(catalog) == [0, 1, 2, 10, 11, 12]
    assert first.open(info(AT, OTHER)) == {AT: 3, OTHER: 3}


def test_rows_that_do_not_fit_are_refused(catalog: Catalog, properties: dict[str, str]) -> None:
    sink = IcebergTable("shop.orders", properties=properties)
    sink.open(info())
    sink.write(batch(0, [row(0), {"id": "x"}, {"name": "no id"}]))
    with pytest.raises(RowsRefused) as refused:
        sink.flush({AT: 3})
    assert [each.row for each in refused.value.rows] == [1, 2]
    assert ids(catalog) == []


def test_reset_deletes_positions_and_no_rows(catalog: Catalog, properties: dict[str, str]) -> None:
    sink = IcebergTable("shop.orders", properties=properties)
    sink.open(info())
    sink.write(batch(0, [row(0)]))
    sink.flush({AT: 1})
    sink.reset("shop")
    assert sink.open(info()) == {}
    assert ids(catalog) == [0]


def test_wrong_catalogue_and_name_are_final_errors() -> None:
    with pytest.raises(ConfigError, match="namespace"):
        IcebergTable("orders")
    with pytest.raises(StreamsError, match="not configured"):
        IcebergTable("shop.orders", properties={"type": "nothing"}).open(info())


def test_position_columns_must_exist(catalog: Catalog, properties: dict[str, str]) -> None:
    sink = IcebergTable("shop.orders", properties=properties, position_columns=True)
    with pytest.raises(StreamsError, match="_offset"):
        sink.open(info())
    with catalog.load_table("shop.orders").update_schema() as update:
        update.union_by_name(
            pa.schema([("_topic", pa.string()), ("_partition", pa.int64())])
        ).union_by_name(pa.schema([("_offset", pa.int64()), ("_timestamp", pa.int64())]))
    sink.open(info())
    sink.write(batch(3, [row(0)]))
    sink.flush({AT: 4})
    assert catalog.load_table("shop.orders").scan().to_arrow()["_offset"].to_pylist() == [3]


def test_missing_table_is_a_final_error(catalog: Catalog, properties: dict[str, str]) -> None:
    with pytest.raises(StreamsError, match="create it"):
        IcebergTable("shop.nothing", properties=properties).open(info())
