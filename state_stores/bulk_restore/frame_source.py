"""Names what a bootstrap reads. Without PySpark, so that it can be named before Spark starts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSource:
    """Where a frame is read from.

    Attributes:
        source: A path or URL that Spark can read, or the name of a table.
        file_format: parquet, csv, json, or any format the session knows; None: told by the end of the name.
        select: SQL expressions that make the columns; none: all as they are.
        schema: Types of columns of CSV and JSON, as Spark's DDL: `id STRING, price DOUBLE`. Types of
            the others are inferred; CSV columns that the key is made of are text.
        infer_schema: Infer the types of all CSV columns as Spark does, also those of the key.
        encoding: The charset of CSV and JSON; None: UTF-8. Other bytes are refused.
        multi_line: A JSON file is one document over several lines.
        time_zone: Of times without one, in a session of our own; None: UTC.
    """

    source: str
    file_format: str | None = None
    select: tuple[str, ...] = ()
    schema: str | None = None
    infer_schema: bool = False
    encoding: str | None = None
    multi_line: bool = False
    time_zone: str | None = None
