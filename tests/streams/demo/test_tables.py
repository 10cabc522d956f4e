"""Reading the archive's tables as rows and as records."""

from pathlib import Path

import orjson
import pytest

from tests.streams.demo.archive import small_archive
from tidewheel.streams.demo.dataset import DatasetError
from tidewheel.streams.demo.tables import TABLES, read_rows, table, to_batches, to_value


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_archive(tmp_path_factory.mktemp("archive") / "small.tar.gz")


def test_plain_and_zipped_tables_are_read_alike(archive: Path) -> None:
    assert [row["dest"] for row in read_rows(archive, "flights")] == ["IAH", "IAH", "MIA", "RDU"]
    assert [row["carrier"] for row in read_rows(archive, "airlines")] == ["UA", "AA"]


def test_a_missing_table_is_named(archive: Path) -> None:
    with pytest.raises(DatasetError, match="no table 'trains'"):
        list(read_rows(archive, "trains"))


def test_records_have_key_json_value_and_time(archive: Path) -> None:
    flights = table("flights")
    (batch,) = to_batches(flights, read_rows(archive, "flights"))
    assert batch.topic == "flights"
    assert batch.keys == [b"N14228", b"N24211", b"N619AA", None]
    assert batch.timestamps[0] == 1_357_034_400_000
    first, *_, last = map(orjson.loads, (value for value in batch.values if value is not None))
    assert (first["carrier"], first["dep_delay"], first["flight"]) == ("UA", 2, 1545)
    assert last["dep_delay"] is None
    assert last["tailnum"] is None


def test_tables_without_times_have_one_timestamp(archive: Path) -> None:
    (batch,) = to_batches(table("airlines"), read_rows(archive, "airlines"))
    assert len(set(batch.timestamps)) == 1
    assert batch.timestamps[0] > 0


def test_long_tables_are_read_in_batches() -> None:
    rows = ({"carrier": str(number), "name": "x"} for number in range(20_001))
    assert [len(batch) for batch in to_batches(table("airlines"), rows)] == [10_000, 10_000, 1]


def test_numbers_are_numbers_and_text_stays_text() -> None:
    row = {"faa": "04G", "lat": "41.13", "alt": "1044", "name": "007"}
    value = orjson.loads(to_value(row, frozenset({"faa", "name"})))
    assert value == {"faa": "04G", "lat": 41.13, "alt": 1044, "name": "007"}


def test_the_tables_are_the_five_of_the_package() -> None:
    assert {each.name: each.rows for each in TABLES} == {
        "flights": 336_776,
        "weather": 26_115,
        "airports": 1_458,
        "planes": 3_322,
        "airlines": 16,
    }
