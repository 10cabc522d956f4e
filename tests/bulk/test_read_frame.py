"""Files as they are loaded: what their writers meant, or an error; never something else in silence."""

import csv
import logging
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from state_stores.bulk_restore.spark_frames import check_sortable, read_frame
from state_stores.bulk_restore.spark_job import SparkSession, collected
from streams.errors import StreamsError


def test_csv_is_read_as_other_programs_write_it(spark: SparkSession, tmp_path: Path) -> None:
    """Quotes, commas and ends of lines inside of texts."""
    rows = [
        {"id": "p1", "name": 'a "quoted" tea, hot', "price": 3.5},
        {"id": "p2", "name": "two\nlines, 7, eight", "price": 4.0},
        {"id": "p3", "name": "a \\ in it\\", "price": 1.0},
    ]
    path = tmp_path / "products.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    found = read_frame(spark, str(path)).collect()
    assert [row.asDict() for row in found] == rows


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short.csv", "id,name,price\np1,tea,3.5\np2,coffee\n"),
        ("long.csv", "id,name,price\np1,tea,3.5\np2,green, tea,4.5\n"),
        ("broken.json", '{"id":"a","name":"b"}\n{"id":"b","name":\n'),
    ],
)
def test_a_row_that_is_not_whole_is_an_error(
    spark: SparkSession, tmp_path: Path, name: str, text: str
) -> None:
    """It tells of it, also if few columns are asked for; nothing is made up for what is missing."""
    path = tmp_path / name
    path.write_text(text)

    def read() -> None:
        frame = read_frame(spark, str(path), select=["id AS key", "name"])
        collected(frame.rdd.map(str), lambda: 0, what="reading")

    with pytest.raises(StreamsError, match=r"(?i)malformed"):
        read()


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.texts.append(record.getMessage())


def test_a_wrong_column_is_told_once(spark: SparkSession, tmp_path: Path) -> None:
    """By our error alone: PySpark would log it as well, with kilobytes of Java. What others log of theirs stays."""
    path = tmp_path / "products.csv"
    path.write_text("id,name\np1,tea\n")
    kept = Kept()
    loggers = [
        PySparkLogger.getLogger(f"{each}QueryContextLogger") for each in ("DataFrame", "SQL")
    ]
    for logger in loggers:
        logger.addHandler(kept)
    try:
        with pytest.raises(StreamsError, match=r"UNRESOLVED_COLUMN.*nmae"):
            read_frame(spark, str(path), select=["id AS key", "nmae"])
        assert kept.texts == []
        with pytest.raises(AnalysisException):
            spark.range(1).selectExpr("idd")
        assert kept.texts != []
    finally:
        for logger in loggers:
            logger.removeHandler(kept)


def test_no_secret_of_a_url_is_told(spark: SparkSession) -> None:
    """Neither by us nor in what Spark says."""
    source = "nowhere://me:hunter2@host/products.csv?sig=hunter3"
    with pytest.raises(StreamsError, match=r"^nowhere://host/products\.csv: Spark") as raised:
        read_frame(spark, source)
    assert "hunter" not in str(raised.value)
    read = "nowhere://me:hunter2@host/products.csv"
    with pytest.raises(StreamsError, match=r"^nowhere://host/products\.csv: Spark") as raised:
        read_frame(spark, read, file_format="parquet")
    assert "hunter" not in str(raised.value)


def test_what_a_source_lacks_is_told_and_not_only_that_something_was_called(
    spark: SparkSession,
) -> None:
    """pip's PySpark has no class for S3; Java's words for that stand in the middle of its message."""
    with pytest.raises(StreamsError, match="S3AFileSystem not found"):
        read_frame(spark, "s3a://bucket/products.parquet")


def test_rows_are_ordered_by_plain_values_only(spark: SparkSession) -> None:
    """Python can't sort dicts, which structures and maps are there."""
    frame = spark.range(1).selectExpr(
        "id", "map('a', id) AS by_name", "struct(id) AS inside", "CAST(id AS DOUBLE) AS price",
        "current_timestamp() AS at", "CAST('x' AS STRING) AS text",
    )  # fmt: skip
    for name in ("id", "price", "at", "text"):
        check_sortable(frame, name)
    for name, kind in (("by_name", "map<string,bigint>"), ("inside", "struct<id:bigint>")):
        with pytest.raises(StreamsError, match=f"column {name} is of type {kind}"):
            check_sortable(frame, name)
