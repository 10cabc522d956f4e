"""Files are read as their writers meant, or rejected."""

import base64
import contextlib
import csv
import gzip
import logging
import os
import sys
import time
from collections.abc import Generator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.state_stores.bulk_restore.spark.frames import check_sortable, utc_converter
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession, collected, next_step
from tidewheel.state_stores.bulk_restore.spark.sources import read_frame, session_time_zone, zoned
from tidewheel.streams.errors import StreamsError


def test_csv_is_read_as_other_programs_write_it(spark: SparkSession, tmp_path: Path) -> None:
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
    found = read_frame(spark, FrameSource(source=str(path))).collect()
    assert [row.asDict() for row in found] == rows


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short.csv", "id,name,price\np1,tea,3.5\np2,coffee\n"),
        ("long.csv", "id,name,price\np1,tea,3.5\np2,green, tea,4.5\n"),
        ("broken.json", '{"id":"a","name":"b"}\n{"id":"b","name":\n'),
    ],
)
def test_an_incomplete_row_is_an_error(
    spark: SparkSession, tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)

    def read() -> None:
        frame = read_frame(spark, FrameSource(source=str(path), select=("id AS key", "name")))
        collected(frame.rdd.map(str), lambda: 0, description="reading")

    with pytest.raises(StreamsError, match=r"(?i)malformed"):
        read()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_a_wrong_column_is_reported_once(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark would also log it, with kilobytes of Java."""
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
            read_frame(spark, FrameSource(source=str(path), select=("id AS key", "nmae")))
        assert kept.texts == []
        with pytest.raises(AnalysisException):
            spark.range(1).selectExpr("idd")
        assert kept.texts != []
    finally:
        for logger in loggers:
            logger.removeHandler(kept)


def test_no_secret_of_a_url_is_shown(spark: SparkSession) -> None:
    source = "nowhere://me:hunter2@host/products.csv?sig=hunter3"
    with pytest.raises(
        StreamsError, match=r"^nowhere://\*{3}@host/products\.csv(?:\?\*{3})?: Spark"
    ) as raised:
        read_frame(spark, FrameSource(source=source))
    assert "hunter" not in str(raised.value)
    read = "nowhere://me:hunter2@host/products.csv"
    with pytest.raises(
        StreamsError, match=r"^nowhere://\*{3}@host/products\.csv(?:\?\*{3})?: Spark"
    ) as raised:
        read_frame(spark, FrameSource(source=read, file_format="parquet"))
    assert "hunter" not in str(raised.value)


def test_a_missing_part_of_a_source_is_named_in_the_error(
    spark: SparkSession,
) -> None:
    """pip's PySpark has no class for S3."""
    with pytest.raises(StreamsError, match="S3AFileSystem not found"):
        read_frame(spark, FrameSource(source="s3a://bucket/products.parquet"))


def test_rows_are_ordered_by_plain_values_only(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr(
        "id", "map('a', id) AS by_name", "struct(id) AS inside", "CAST(id AS DOUBLE) AS price",
        "current_timestamp() AS at", "CAST('x' AS STRING) AS text",
    )  # fmt: skip
    for name in ("id", "price", "at", "text"):
        check_sortable(frame, name)
    for name, kind in (("by_name", "map<string,bigint>"), ("inside", "struct<id:bigint>")):
        with pytest.raises(StreamsError, match=f"column {name} is of type {kind}"):
            check_sortable(frame, name)


def rows_of(
    spark: SparkSession, path: Path, *, key_type: str | None = None, **how: Any
) -> list[object]:
    return [
        row.asDict()
        for row in read_frame(
            spark, FrameSource(source=str(path), **how), key_type=key_type
        ).collect()
    ]


BARCODES = "id,zip,price,number\n000008012713,01234,3.5,7\n12,99999,4,8\n"


def test_no_digit_of_a_csv_column_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(BARCODES)
    assert rows_of(spark, path, select=("id AS key", "zip", "price", "number")) == [
        {"key": "000008012713", "zip": "01234", "price": 3.5, "number": 7},
        {"key": "12", "zip": "99999", "price": 4.0, "number": 8},
    ]
    assert rows_of(spark, path, select=("concat(number, '-', id) AS `key`", "price"))[1] == {
        "key": "8-12",
        "price": 4.0,
    }

    path.write_text("key,value\n1,9007199254740993\n2,0.5\n")
    assert rows_of(spark, path) == [
        {"key": "1", "value": "9007199254740993"},
        {"key": "2", "value": "0.5"},
    ]


#: Column texts that a conversion would change.
TEXTS = {
    "time": ("12:30", "13:45"), "suffix": ("1d", "2f"), "plus": ("+5", "6"), "space": (" 12", "13"),
    "behind": ("12", "13 "), "line": ("12\n", "13"), "long": ("0.1234567890123456789", "1"),
    "wide": ("1234567890.123456789", "2.5"), "month": ("2026-01", "2026-02"), "minus": ("-0", "1"),
    "zeros": ("007", "1.5"), "power": ("1e3", "2"), "point": (".5", "5."), "hex": ("0x10", "1"),
    "nanoseconds": ("2026-01-01 00:00:00.123456789", "2026-01-01 00:00:00"),
    "minutes": ("2026-01-01 10:20", "2026-01-01 10:30"), "mixed": ("2026-01-01", "2026-01-01 10:20:30"),
    "hours": ("2026-01-01T00:00:00+05", "2026-01-01T00:00:00Z"), "day": ("2026-1-1", "2026-01-02"),
    "version": ("1.9", "1.10"), "scale": ("1.50", "1.5"), "both": ("1", "1.0"),
    "small": (f"0.{'0' * 400}1", "1.5"), "case": ("true", "FALSE"), "empty": ("", "y"),
}  # fmt: skip
#: Canonical texts, and their values.
VALUES = {
    "whole": (("12", "-7"), (12, -7)),
    "large": (("9223372036854775808", "1"), (Decimal(9223372036854775808), Decimal(1))),
    "decimal": (("3.5", "4"), (3.5, 4.0)),
    "digits": (("900719925474.099", "-0.5"), (900719925474.099, -0.5)),
    "written": (("1.0", "2.25"), (1.0, 2.25)),
    "money": (("1.10", "2.50"), (1.1, 2.5)),
    "flag": (("True", "False"), (True, False)),
    "date": (("2026-01-31", "2024-02-29"), (date(2026, 1, 31), date(2024, 2, 29))),
    "gap": (("", "5"), (None, 5)),
    "no_date": (("", "2026-01-31"), (None, date(2026, 1, 31))),
}


def test_only_canonical_texts_of_csv_are_other_values(spark: SparkSession, tmp_path: Path) -> None:
    columns = TEXTS | {name: texts for name, (texts, _) in VALUES.items()}
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    wanted = TEXTS | {name: values for name, (_, values) in VALUES.items()}
    found = rows_of(spark, path)
    assert found == [{name: each[i] for name, each in wanted.items()} for i in range(2)]

    path.write_text("id,at,none\na,2026-03-29 02:30:00,\nb,2026-03-30 02:30:00,y\n")
    with time_zone(spark, "Europe/Berlin"):  # where the first time does not exist
        assert rows_of(spark, path) == [
            {"id": "a", "at": "2026-03-29 02:30:00", "none": None},
            {"id": "b", "at": "2026-03-30 02:30:00", "none": "y"},
        ]
        times = read_frame(
            spark, FrameSource(source=str(path), schema="at TIMESTAMP", select=("at",))
        )
        assert times.dtypes == [("at", "timestamp")]
    path.write_text('id,n\na,""\nb,zz\n')
    frame = read_frame(spark, FrameSource(source=str(path), schema="n INT"))
    with pytest.raises(StreamsError, match="MALFORMED"):
        collected(frame.rdd.map(str), lambda: 0, description="reading")


@contextlib.contextmanager
def time_zone(spark: SparkSession, zone: str) -> Generator[None]:
    before = session_time_zone(spark)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_types_of_csv_columns_can_be_given(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(BARCODES)
    select = ("id AS key", "number")
    assert rows_of(spark, path, select=select, key_type="BIGINT")[0] == {
        "key": 8012713,
        "number": 7,
    }
    assert rows_of(spark, path, select=select, schema="number STRING, id INT")[1] == {
        "key": 12,
        "number": "8",
    }
    assert rows_of(spark, path, select=select, infer_schema=True)[0] == {
        "key": 8012713,
        "number": 7,
    }
    with pytest.raises(StreamsError, match="nmber"):
        rows_of(spark, path, schema="nmber STRING")


def test_files_of_a_folder_must_have_the_same_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    (tmp_path / "x.csv" / "1.csv").write_text("id,a,b\n1,2,3\n1,2,3\n")
    (tmp_path / "x.csv" / "2.csv").write_text("id,b,a\n1,3,2\n")

    def read() -> None:
        frame = read_frame(spark, FrameSource(source=str(tmp_path / "x.csv")))
        collected(frame.rdd.map(str), lambda: 0, description="reading")

    with pytest.raises(StreamsError):
        read()


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_bytes_of_another_charset_are_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    text = "key,value\n1,Müller\n" if name == "a.csv" else '{"key":"1","value":"Müller"}\n'
    path = tmp_path / name
    path.write_text(text, encoding="latin-1")
    with pytest.raises(StreamsError, match="--encoding"):
        rows_of(spark, path)
    wanted = [{"key": "1", "value": "Müller"}]
    assert rows_of(spark, path, encoding="ISO-8859-1") == wanted
    with pytest.raises(StreamsError, match="US-ASCII"):
        rows_of(spark, path, encoding="US-ASCII")
    path.write_text(text, encoding="utf-8-sig")
    assert rows_of(spark, path) == wanted


def test_formats_follow_file_extensions(spark: SparkSession, tmp_path: Path) -> None:
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"key,value\na,1\n"))
    assert rows_of(spark, packed) == [{"key": "a", "value": 1}]
    tabs = tmp_path / "a.tsv"
    tabs.write_text("key\tvalue\na\t1,5\n")
    assert rows_of(spark, tabs) == [{"key": "a", "value": "1,5"}]
    for name in ("a.txt", "a.gz", "a.xlsx"):
        path = tmp_path / name
        path.write_text("key,value\na,1\n")
        with pytest.raises(StreamsError, match="--format"):
            rows_of(spark, path)
    assert rows_of(spark, tmp_path / "a.txt", file_format="csv") == [{"key": "a", "value": 1}]
    with pytest.raises(StreamsError, match="--schema"):
        rows_of(spark, tmp_path, schema="a INT")


def test_a_json_document_over_several_lines(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n{"key":"a",\n"value":1},\n{"key":"b","value":2}\n]\n')
    with pytest.raises(StreamsError, match="--multi-line"):
        rows_of(spark, path)
    assert rows_of(spark, path, multi_line=True) == [
        {"key": "a", "value": 1},
        {"key": "b", "value": 2},
    ]
    path.write_text('{"key":"a"}\n{"key":"b"}\n')
    assert rows_of(spark, path) == [{"key": "a"}, {"key": "b"}]
    with pytest.raises(StreamsError, match="--multi-line"):
        rows_of(spark, path, multi_line=True)


def test_timestamps_keep_their_zone(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT TIMESTAMP'2026-07-01 12:00:00Z' AS at, TIMESTAMP_NTZ'2026-07-01 12:00:00' AS wall, "
        "array(struct(TIMESTAMP'2026-01-01 00:00:00Z' AS t)) AS many, "
        "map('a', TIMESTAMP'2026-11-01 05:30:00.123456Z') AS named, "
        "CAST(NULL AS STRUCT<t: TIMESTAMP>) AS none"
    )
    moments = utc_converter(frame.schema)
    assert moments is not None
    before = os.environ.get("TZ")
    try:
        for zone in ("America/New_York", "Asia/Kolkata", "UTC"):
            os.environ["TZ"] = zone
            time.tzset()
            # Converted in this process's zone, as executors do it in theirs.
            row = frame.first()
            assert row is not None
            assert moments(row.asDict(recursive=True)) == {
                "at": datetime(2026, 7, 1, 12, tzinfo=UTC),
                "wall": datetime(2026, 7, 1, 12),  # noqa: DTZ001 - it has no zone
                "many": [{"t": datetime(2026, 1, 1, tzinfo=UTC)}],
                "named": {"a": datetime(2026, 11, 1, 5, 30, 0, 123456, tzinfo=UTC)},
                "none": None,
            }
    finally:
        os.environ.pop("TZ", None) if before is None else os.environ.update(TZ=before)
        time.tzset()
    assert utc_converter(spark.range(1).schema) is None


def test_times_without_a_zone_are_in_the_zone_of_the_session(spark: SparkSession) -> None:
    frame = spark.sql("SELECT TIMESTAMP_NTZ'2026-07-01 12:00:00' AS at, 1 AS other")
    with time_zone(spark, "Asia/Kolkata"):
        row = zoned(frame, ("at", None, "other")).selectExpr("unix_millis(at) AS ms").first()
    assert row is not None
    assert row.ms == datetime(2026, 7, 1, 6, 30, tzinfo=UTC).timestamp() * 1000


NANOSECONDS = """
UEFSMRUAFRYVFiwVAhUAFQYVBhwAAAACAAAAAgEBAAAAYRUAFRwVHCwVAhUAFQYVBhwAAAACAAAAAgEBAAAAAAAA
ABUEGTw1ABgGc2NoZW1hFQQAFQwlAhgBayUATBwAAAAVBCUCGAF0bIwSHDwAAAAAABYCGRwZLCYAHBUMGSUGABkY
AWsVABYCFjwWPCYISRwVABUAFQIAPBYCGQYZJgACAAAAJgAcFQQZJQYAGRgBdBUAFgIWQhZCJkRJHBUAFQAVAgA8
KQYZJgACAAAAFn4WAiYIFn4AKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAuMRksHAAAHAAAAMAAAABQ
QVIx
"""


def test_nanoseconds_are_rejected_with_the_solution(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(base64.b64decode(NANOSECONDS))
    with pytest.raises(StreamsError, match="microseconds"):
        read_frame(spark, FrameSource(source=str(path)))


def test_executors_with_another_python_are_named() -> None:
    for text in (
        "EOFException occurred while reading the port number from pyspark.daemon's stdout.",
        "ModuleNotFoundError: No module named 'tidewheel'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version",
    ):
        assert sys.executable in next_step(text)
    assert sys.executable not in next_step("OSError: disk full")
