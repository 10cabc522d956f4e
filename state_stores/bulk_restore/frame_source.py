"""Source of a bootstrap; imports no PySpark."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSource:
    """File, URL or table to read as a Spark frame.

    Attributes:
        file_format: Any format of the session; None: by the file extension.
        select: SQL expressions of the columns; empty: all columns unchanged.
        schema: Types of CSV and JSON columns as Spark DDL: `id STRING, price DOUBLE`.
        infer_schema: Infer the types of all CSV columns as Spark does, including the key's.
        encoding: Charset of CSV and JSON; None: UTF-8. Invalid bytes are an error.
        time_zone: Zone of times without one, in a session we create; None: UTC.
    """

    source: str
    file_format: str | None = None
    select: tuple[str, ...] = ()
    schema: str | None = None
    infer_schema: bool = False
    encoding: str | None = None
    multi_line: bool = False
    time_zone: str | None = None
