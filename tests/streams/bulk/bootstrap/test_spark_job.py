"""The executors' work on rows, without Spark."""

from typing import Any

from tests.streams.bulk.bootstrap.test_rows import NOW_MS, SPECS
from tidewheel.streams.bulk.bootstrap.rows import RowEncoder, columns_of
from tidewheel.streams.bulk.bootstrap.spark_job import check_place, place_rows

SPEC = SPECS["key-value"]


def placed(rows: list[dict[str, Any]]) -> list[Any]:
    encoder = RowEncoder(
        spec=SPEC,
        topic="shop-counts-changelog",
        partitions=1,
        columns=columns_of(("key", "value"), SPEC),
        default_timestamp_ms=NOW_MS,
    )
    return sorted(place_rows(encoder, rows, lambda _: None), key=lambda row: row[0])


def test_the_first_partition_reports_a_row_that_can_not_be_encoded() -> None:
    rows = placed(
        [{"key": "a", "value": 1}, {"key": "b", "value": "text"}, {"key": "c", "value": 2}]
    )
    assert len(rows) == 2
    told: list[int] = []
    found = check_place(SPEC, False, 0, rows, told.append)
    assert "the row of key 'b' does not fit" in found.problem
    assert (found.rows, told) == (1, [2])


def test_rows_without_a_value_are_counted_in_all_partitions() -> None:
    some: list[dict[str, Any]] = [{"key": "a", "value": 1}, {"key": "b", "value": None}]
    rows = sorted(placed(some) + placed([{"key": "c", "value": None}] * 2), key=lambda row: row[0])
    found = check_place(SPEC, False, 0, rows, lambda _: None)
    assert (found.rows, found.left_out, found.problem) == (1, 3, "")


def test_a_duplicate_key_is_a_problem_of_its_partition() -> None:
    rows = placed([{"key": "a", "value": 1}, {"key": "a", "value": 2}])
    assert "same key" in check_place(SPEC, False, 0, rows, lambda _: None).problem
    assert check_place(SPEC, True, 0, rows, lambda _: None).rows == 1
