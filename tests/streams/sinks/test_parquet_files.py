"""ParquetFiles: whole files, positions from commit files, owners, and refused rows."""

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped] # it has no types
import msgspec
import pytest
from pydantic import BaseModel

from tidewheel import ConfigError, FencedError, StreamsError
from tidewheel.sinks import ParquetFiles, RowsRefused, SinkBatch, SinkTaskInfo, TopicPartition
from tidewheel.streams.sinks import parquet_files

pa: Any = import_module("pyarrow")
ds: Any = import_module("pyarrow.dataset")

AT, OTHER = TopicPartition("orders", 0), TopicPartition("returns", 0)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def info(start: int = 0) -> SinkTaskInfo:
    return SinkTaskInfo(
        application_id="shop", sink="s", task_id="1_0", start={AT: start, OTHER: start}
    )


def batch(first: int, values: list[Any], at: TopicPartition = AT) -> SinkBatch:
    offsets = range(first, first + len(values))
    return SinkBatch(at.topic, at.partition, offsets, values, values, [0] * len(values))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}"}


def ids(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder).to_table()["id"].to_pylist()) if files(folder) else []


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.parquet"))


def test_flush_of_a_partition_is_one_file_and_positions_come_back(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path), schema=SCHEMA)
    assert sink.open(info()) == {}
    sink.write(batch(0, [row(0), row(1)]))
    sink.write(batch(5, [row(5)], OTHER))
    sink.write(batch(2, [row(2), None]))
    sink.flush({AT: 4, OTHER: 6})
    sink.flush({AT: 9})  # without rows
    sink.write(batch(9, [row(9)]))
    sink.flush({AT: 10})
    assert ids(tmp_path) == [0, 1, 2, 5, 9]
    assert files(tmp_path) == [
        f"1_0-orders-0-{0:020d}-{3:020d}.parquet",
        f"1_0-orders-0-{9:020d}-{9:020d}.parquet",
        f"1_0-returns-0-{0:020d}-{5:020d}.parquet",
    ]
    assert ParquetFiles(str(tmp_path)).open(info()) == {AT: 10, OTHER: 6}


@pytest.mark.parametrize("flushes", [1, 5])
def test_later_owner_wins_and_the_earlier_one_adds_no_file(tmp_path: Path, flushes: int) -> None:
    """After several flushes the commit file that the earlier owner would need is deleted."""
    earlier, later = (ParquetFiles(str(tmp_path), schema=SCHEMA) for _ in range(2))
    earlier.open(info())
    earlier.write(batch(0, [row(0)]))
    later.open(info())
    for number in range(flushes):
        later.write(batch(number, [row(number)]))
        later.flush({AT: number + 1})
    with pytest.raises(FencedError, match="orders-0"):
        earlier.flush({AT: 1})
    assert ids(tmp_path) == list(range(flushes))
    assert ParquetFiles(str(tmp_path)).open(info()) == {AT: flushes}


def test_next_owner_completes_a_commit_without_its_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetFiles(str(tmp_path), schema=SCHEMA)
    sink.open(info())
    sink.write(batch(0, [row(0), row(1)]))

    def die(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet_files, "failpoint", die)
    with pytest.raises(KeyboardInterrupt):
        sink.flush({AT: 2})
    monkeypatch.undo()
    assert ids(tmp_path) == []
    assert ParquetFiles(str(tmp_path)).open(info()) == {AT: 2}
    assert ids(tmp_path) == [0, 1]


def test_old_commit_files_and_files_of_dead_owners_are_deleted(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path), schema=SCHEMA)
    sink.open(info())
    folder = tmp_path / "_tidewheel" / "shop" / "orders-0"
    for number in range(10):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:020d}-dead.parquet").write_bytes(b"half a file")
        sink.write(batch(number, [row(number)]))
        sink.flush({AT: number + 1})
    assert len(list(folder.iterdir())) <= 3
    assert ids(tmp_path) == list(range(10))


def test_rows_that_do_not_fit_the_schema_are_refused(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path), schema=SCHEMA)
    sink.open(info())
    sink.write(batch(0, [row(0), {"id": "x"}, row(2), {"name": "no id"}]))
    with pytest.raises(RowsRefused) as refused:
        sink.flush({AT: 4})
    assert [each.row for each in refused.value.rows] == [1, 3]
    assert ids(tmp_path) == []


def test_schema_is_inferred_and_kept(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path), position_columns=True)
    sink.open(info())
    sink.write(batch(7, [row(0)]))
    sink.flush({AT: 8})
    sink.write(batch(8, [{"id": 1, "name": None}]))
    sink.flush({AT: 9})
    table = ds.dataset(tmp_path).to_table()
    assert table["_offset"].to_pylist() == [7, 8]
    assert table.schema.field("name").type == pa.string()
    unknown = ParquetFiles(str(tmp_path))
    unknown.open(info())
    unknown.write(batch(9, [{"id": None}]))
    with pytest.raises(StreamsError, match="give schema="):
        unknown.flush({AT: 10})


def test_no_column_is_lost_silently(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path))
    sink.open(info())
    sink.write(batch(0, [{"id": 1}, {"id": 2, "name": "two"}]))
    sink.flush({AT: 2})
    rows = [{"id": 1, "name": None}, {"id": 2, "name": "two"}]
    assert ds.dataset(tmp_path).to_table().to_pylist() == rows
    sink.write(batch(2, [row(3), {"id": 4, "colour": "red"}]))
    with pytest.raises(RowsRefused, match="no column colour") as refused:
        sink.flush({AT: 4})
    assert [each.row for each in refused.value.rows] == [1]


def test_given_schema_selects_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    sink = ParquetFiles(str(tmp_path), schema=schema, position_columns=True)
    sink.open(info())
    sink.write(batch(5, [row(1)]))
    sink.flush({AT: 6})
    (found,) = ds.dataset(tmp_path).to_table().to_pylist()
    assert found == {"id": 1, "_topic": "orders", "_partition": 0, "_offset": 5, "_timestamp": 0}
    sink = ParquetFiles(str(tmp_path), schema=schema)
    sink.open(info())
    sink.write(batch(6, [row(2), {"name": "of no column"}]))
    with pytest.raises(RowsRefused) as refused:
        sink.flush({AT: 8})
    assert [each.row for each in refused.value.rows] == [1]


@pytest.mark.parametrize("positions", [False, True])
def test_row_that_is_no_mapping_is_refused(tmp_path: Path, positions: bool) -> None:
    sink = ParquetFiles(
        str(tmp_path), to_row=lambda _key, value: value["row"], position_columns=positions
    )
    sink.open(info())
    sink.write(batch(0, [{"row": row(0)}, {"row": [1, "n1"]}, {"row": None}]))
    with pytest.raises(RowsRefused, match="must return a mapping") as refused:
        sink.flush({AT: 3})
    assert [each.row for each in refused.value.rows] == [1, 2]


def test_memory_is_an_object_store(tmp_path: Path) -> None:
    url = f"memory:/{tmp_path}"
    earlier, later = (ParquetFiles(url, schema=SCHEMA) for _ in range(2))
    for sink in (earlier, later):
        sink.open(info())
        sink.write(batch(0, [row(0)]))
    later.flush({AT: 1})
    with pytest.raises(FencedError):
        earlier.flush({AT: 1})
    assert ParquetFiles(url).open(info()) == {AT: 1}
    assert len(fsspec.filesystem("memory").glob(f"{tmp_path}/*.parquet")) == 1


def test_store_that_replaces_existing_files_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    replacing = type(memory).pipe_file

    def pipe_file(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        replacing(self, path, value)

    monkeypatch.setattr(type(memory), "pipe_file", pipe_file)
    with pytest.raises(StreamsError, match="If-None-Match"):
        ParquetFiles(f"memory:/{tmp_path}").open(info())
    assert not memory.find(str(tmp_path))


def test_reset_deletes_positions_and_no_rows(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path), schema=SCHEMA)
    sink.open(info())
    sink.write(batch(0, [row(0)]))
    sink.flush({AT: 1})
    sink.reset("shop")
    sink.reset("shop")
    assert sink.open(info()) == {}
    assert ids(tmp_path) == [0]


def test_location_that_cannot_create_exclusively_is_rejected() -> None:
    with pytest.raises(ConfigError, match="ftp://"):
        ParquetFiles("ftp://host/folder")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("", {}),
        ("/data/orders", {"compression": "zip"}),
        ("/data/orders", {"schema": {"id": int}}),
    ],
)
def test_wrong_arguments_are_rejected(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ParquetFiles(url, **options)


def test_folder_that_cannot_be_made_is_a_final_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        with pytest.raises(StreamsError, match="can't be made"):
            ParquetFiles(str(tmp_path / name)).open(info())


def test_folder_that_cannot_be_written_is_a_final_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(StreamsError, match="can't write"):
        ParquetFiles(str(tmp_path)).open(info())


def test_missing_package_of_an_object_store_is_a_final_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match="s3fs"):
        ParquetFiles("s3://lake/orders").open(info())


class OrderStruct(msgspec.Struct):
    at: datetime


@dataclass
class OrderData:
    at: datetime


class OrderModel(BaseModel):
    at: datetime


def test_fields_of_objects_are_columns_with_their_types(tmp_path: Path) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    sink = ParquetFiles(str(tmp_path))
    sink.open(info())
    sink.write(batch(0, [OrderStruct(at), OrderData(at), OrderModel(at=at)]))
    sink.flush({AT: 3})
    assert ds.dataset(tmp_path).to_table()["at"].to_pylist() == [at] * 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b'{"next": 1',
        b'{"task": "1_0"}',
        b'{"next": -1, "task": "1_0"}',
        b'{"next": 1, "task": "1_0", "hidden": "../../secret.parquet", "file": "a.parquet"}',
        b'{"next": 1, "task": "1_0", "hidden": "a.parquet", "file": "/etc/a.parquet"}',
    ],
)
def test_damaged_commit_file_is_a_final_error(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "_tidewheel" / "shop" / "orders-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.json").write_bytes(content)
    (tmp_path / "secret.parquet").touch()
    with pytest.raises(StreamsError, match="is damaged"):
        ParquetFiles(str(tmp_path)).open(info())
    assert files(tmp_path) == ["secret.parquet"]


def test_commit_file_names_the_task(tmp_path: Path) -> None:
    sink = ParquetFiles(str(tmp_path), schema=SCHEMA)
    sink.open(info())
    sink.write(batch(0, [row(0)]))
    sink.flush({AT: 1})
    (path,) = (tmp_path / "_tidewheel" / "shop" / "orders-0").glob("*.json")
    assert json.loads(path.read_text())["task"] == "1_0"
