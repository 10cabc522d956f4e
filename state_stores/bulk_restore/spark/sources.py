"""Files and tables as Spark frames; values are read unchanged or rejected.

CSV key columns are text, other types are inferred. A column stays text unless all its texts are
canonical forms of values: `007`, `+5` and `12:30` are not.
"""

import contextlib
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import orjson
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DoubleType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.state_stores.bulk_restore.spark.job import reason_of
from tidewheel.state_stores.bulk_restore.urls import redacted_url
from tidewheel.state_stores.errors import StreamsError

_CONTEXT_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

_CSV: Final = "csv"
_JSON: Final = "json"
_FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": _CSV,
    ".tsv": _CSV,
    ".json": _JSON,
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".orc": "orc",
}
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".deflate", ".snappy", ".lz4")
#: File extension; a path without one is a folder.
_NAME_END: Final = re.compile(r"\.[a-z0-9]{1,7}$")

#: Incomplete rows are errors. Spark's default fills gaps with nulls and drops the rest.
_STRICT: Final = {"mode": "FAILFAST"}
#: CSV by RFC 4180. All columns are read, and all files need the first one's header.
_CSV_OPTIONS: Final = {
    "header": "true",
    "escape": '"',
    "multiLine": "true",
    "columnPruning": "false",
    "enforceSchema": "false",
    # Quoted empty fields are empty texts, not nulls: no file contains the `nullValue` text.
    "nullValue": "\ufdd0",
    "emptyValue": "",
    **_STRICT,
}
_UTF_8: Final = frozenset({"utf-8", "utf8"})
_REPLACEMENT: Final = "\ufffd"

#: Patterns of texts that a conversion to the type and back keeps; `\z` because `$` also matches
#: before a final line feed.
_INTEGER: Final = r"\A(?:0|-?[1-9][0-9]*)\z"
#: At most 15 significant digits, which a double keeps.
_DECIMAL: Final = (
    r"\A(?!-?[0.]*[1-9](?:[.]?[0-9]){15})(?:0|-?[1-9][0-9]*|-?(?:0|[1-9][0-9]*)[.][0-9]{1,30})\z"
    r"|\A(?:NaN|-?Infinity)\z"
)
#: Styles in which each decimal has one text: no trailing zeros (`1`, `1.5`), or always a fraction
#: (`1.0`, `1.5`). A column that mixes them stays text.
_DECIMAL_STYLES: Final = (
    r"\A(?:[^.]*|.*[.][0-9]*[1-9])\z",
    r"\A(?:.*[.][0-9]*[1-9]|.*[.]0|.*[a-z])\z",
)
_FRACTION: Final = r"[.]([0-9]*)\z"
_BOOLEAN_STYLES: Final = (r"\A(?:true|false)\z", r"\A(?:True|False)\z", r"\A(?:TRUE|FALSE)\z")
_DATE: Final = r"\A(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_TIMESTAMP: Final = (
    r"\A(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.][0-9]{1,6})?"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})?\z"
)
_SECONDS_END: Final = 19

_ALIAS: Final = re.compile(
    r"^(?P<made>.*?)(?:\s+as)?\s+`?(?P<name>\w+)`?\s*$", re.IGNORECASE | re.DOTALL
)
_WORD: Final = re.compile(r"`[^`]+`|\w+")
_KEY: Final = "key"

_NANOSECONDS: Final = "TIMESTAMP(NANOS"
_NANOSECONDS_STEP: Final = (
    "Spark has no nanoseconds: write the file with microseconds (pandas: "
    'to_parquet(…, coerce_timestamps="us")), or read it with a session of your own'
)
_DOCUMENT_STEP: Final = (
    "each line must be one JSON object; --multi-line reads a document that spans lines"
)


def read_frame(
    session: SparkSession, frame_source: FrameSource, *, key_type: str | None = None
) -> DataFrame:
    """Return a frame of files or of a table; a CSV key is converted to the SQL type `key_type`.

    Raises:
        StreamsError: Spark can't read it, an expression is wrong, or the encoding is wrong.
    """
    source = frame_source.source
    source_text = redacted_url(source) if "://" in source else source
    name = source.rstrip("/").lower()
    file_format = frame_source.file_format or _format_of(name, source_text)
    try:
        with _contexts_not_logged():
            frame = _frame_of(session, source, file_format, frame_source, source_text)
            selected = frame.selectExpr(*frame_source.select) if frame_source.select else frame
            return _typed_key(selected, key_type) if file_format == _CSV else selected
    except (PySparkException, Py4JError) as error:
        reason = reason_of(error)
        step = _next_step(str(error), file_format, frame_source)
        raise StreamsError(f"{source_text}: Spark can't read it: {reason}{step}") from error


def _format_of(name: str, source_text: str) -> str | None:
    inner = name
    for end in _COMPRESSED:
        inner = inner.removesuffix(end)
    file_format = next((kind for end, kind in _FORMATS.items() if inner.endswith(end)), None)
    if file_format is None and "/" in name and _NAME_END.search(name.rpartition("/")[2]):
        raise StreamsError(
            f"{source_text}: its file extension is no known format; name the format, as in --format csv "
            "(file_format=): csv, json, parquet, orc, or another one that Spark knows"
        )
    return file_format


def _next_step(text: str, file_format: str | None, frame_source: FrameSource) -> str:
    if _NANOSECONDS in text:
        return f"; {_NANOSECONDS_STEP}"
    if file_format == _JSON and not frame_source.multi_line and "MALFORMED" in text.upper():
        charset = "" if frame_source.encoding is None else f", or it is not {frame_source.encoding}"
        return f"; {_DOCUMENT_STEP}{charset}"
    return ""


def _frame_of(
    session: SparkSession,
    source: str,
    file_format: str | None,
    frame_source: FrameSource,
    source_text: str,
) -> DataFrame:
    if file_format == _CSV:
        return _csv(session, source, frame_source, source_text)
    if file_format == _JSON:
        return _json(session, source, frame_source, source_text)
    _refuse_unused(file_format, frame_source, source_text)
    if file_format is None:
        is_path = "/" in source
        return session.read.load(source) if is_path else session.read.table(source)
    return session.read.format(file_format).load(source)


def _refuse_unused(file_format: str | None, frame_source: FrameSource, source_text: str) -> None:
    csv_options = {
        "--schema": frame_source.schema,
        "--infer-schema": frame_source.infer_schema,
        "--encoding": frame_source.encoding,
        "--multi-line": frame_source.multi_line,
    }
    names = [name for name, value in csv_options.items() if value]
    if names:
        raise StreamsError(
            f"{source_text}: {', '.join(names)} is for CSV and JSON, and this is {file_format or 'a table'}; "
            "remove it, or name the format by --format"
        )


def _csv(
    session: SparkSession, source: str, frame_source: FrameSource, source_text: str
) -> DataFrame:
    options = dict(_CSV_OPTIONS)
    if source.lower().rstrip("/").removesuffix(".gz").endswith(".tsv"):
        options["sep"] = "\t"
    reader = _reader(session, _CSV, options, frame_source)
    _check_bytes(session, source, frame_source, source_text)
    inferred = reader.option("inferSchema", "true").load(source).schema
    texts = reader.option("inferSchema", "false").load(source)
    _check_characters(texts, frame_source, source_text)
    names = texts.columns
    declared = _declared_types(frame_source, names, source_text)
    types = [declared.get(field.name, field) for field in inferred]
    lossy, with_empty = _lossy_columns(texts, types)
    if not frame_source.infer_schema:
        as_text = (_key_columns(frame_source.select, names) | lossy) - declared.keys()
        types = [
            StructField(field.name, StringType()) if field.name in as_text else field
            for field in types
        ]
    empty = [field for field in types if field.name in with_empty and not _is_text(field)]
    read_as_text = {field.name for field in empty}
    schema = StructType(
        [
            StructField(field.name, StringType()) if field.name in read_as_text else field
            for field in types
        ]
    )
    frame = reader.schema(schema).load(source)
    return frame.withColumns({field.name: _converted(field) for field in empty}) if empty else frame


def _is_text(field: StructField) -> bool:
    return isinstance(field.dataType, StringType)


def _converted(field: StructField) -> Column:
    """Return a text column as its type, with nulls for empty texts.

    While Spark reads it, a text that is no value of the type raises an error.
    """
    text = sql.nullif(sql.col(_quoted(field.name)), sql.lit(""))
    value = text.try_cast(field.dataType)
    kind = field.dataType.simpleString()
    error = sql.raise_error(sql.lit(f"MALFORMED: a text of column {field.name} is no {kind}"))
    return sql.when(text.isNotNull() & value.isNull(), error.cast(field.dataType)).otherwise(value)


def _typed_key(frame: DataFrame, key_type: str | None) -> DataFrame:
    is_text = _KEY in frame.columns and isinstance(frame.schema[_KEY].dataType, StringType)
    if key_type is None or not is_text:
        return frame
    return frame.withColumn(_KEY, sql.col(_KEY).cast(key_type))


def _json(
    session: SparkSession, source: str, frame_source: FrameSource, source_text: str
) -> DataFrame:
    options = {**_STRICT, "multiLine": str(frame_source.multi_line).lower()}
    if frame_source.encoding is not None and not frame_source.multi_line:
        options["lineSep"] = "\n"  # Spark requires it with an encoding
    reader = _reader(session, _JSON, options, frame_source)
    _check_bytes(session, source, frame_source, source_text)
    if frame_source.multi_line:
        _check_documents(session, source, frame_source, source_text)
    frame = reader.load(source)
    declared = _declared_types(frame_source, frame.columns, source_text)
    if declared:
        types = [declared.get(field.name, field) for field in frame.schema]
        frame = reader.schema(StructType(types)).load(source)
    _check_characters(frame, frame_source, source_text)
    return frame


def _reader(
    session: SparkSession, kind: str, options: Mapping[str, str], frame_source: FrameSource
) -> DataFrameReader:
    reader = session.read.format(kind).options(**options)
    return (
        reader
        if frame_source.encoding is None
        else reader.option("encoding", frame_source.encoding)
    )


def _declared_types(
    frame_source: FrameSource, names: Sequence[str], source_text: str
) -> dict[str, StructField]:
    if frame_source.schema is None:
        return {}
    schema = StructType.fromDDL(frame_source.schema)
    if not isinstance(schema, StructType):
        raise StreamsError(
            f"{source_text}: --schema {frame_source.schema!r} names no columns: 'id STRING, zip INT'"
        )
    declared = {field.name: field for field in schema}
    unknown = sorted(declared.keys() - set(names))
    if unknown:
        raise StreamsError(
            f"{source_text}: --schema names {', '.join(unknown)}, and the columns are {', '.join(names)}"
        )
    return declared


def _key_columns(select: Sequence[str], names: Iterable[str]) -> set[str]:
    """Return the input columns from which `select` computes the key.

    >>> sorted(_key_columns(["concat(shop, id) AS key", "price"], ["id", "shop", "price"]))
    ['id', 'shop']
    >>> sorted(_key_columns([], ["key", "value"]))
    ['key']
    """
    columns = {name.lower(): name for name in names}
    key_columns: set[str] = set()
    for item in select or (_KEY,):
        if item.strip("` ").lower() == _KEY:
            key_columns |= {columns[_KEY]} & set(columns.values()) if _KEY in columns else set()
            continue
        match = _ALIAS.match(item.strip())
        if match is not None and match["name"].lower() == _KEY:
            words = (word.strip("`").lower() for word in _WORD.findall(match["made"]))
            key_columns |= {columns[word] for word in words if word in columns}
    return key_columns


def _lossy_columns(texts: DataFrame, types: Iterable[StructField]) -> tuple[set[str], set[str]]:
    """Return columns that a conversion would change (`007` to 7), and those with empty texts."""
    fields = [field for field in types if not _is_text(field)]
    if not fields:
        return set(), set()
    columns = [sql.col(_quoted(field.name)) for field in fields]
    row = texts.select(
        *(_are_canonical(field, column) for field, column in zip(fields, columns, strict=True)),
        *(sql.bool_or(column == "") for column in columns),
    ).first()
    assert row is not None
    names = [field.name for field in fields]
    canonical, empty = row[: len(names)], row[len(names) :]
    lossy = {
        name for name, is_canonical in zip(names, canonical, strict=True) if is_canonical is False
    }
    return lossy, {name for name, has_empty in zip(names, empty, strict=True) if has_empty}


def _are_canonical(field: StructField, column: Column) -> Column:
    """Return an aggregate: True if the texts convert to the type and back without a change."""
    text = sql.nullif(column, sql.lit(""))

    def all_are(*patterns: str) -> Column:
        return reduce(Column.__or__, (sql.bool_and(text.rlike(pattern)) for pattern in patterns))

    match field.dataType:
        case DoubleType():
            digits = sql.length(sql.regexp_extract(text, _FRACTION, 1))
            one_scale = sql.min(digits) == sql.max(digits)
            return all_are(_DECIMAL) & (all_are(*_DECIMAL_STYLES) | one_scale)
        case NumericType():
            return all_are(_INTEGER)
        case BooleanType():
            return all_are(*_BOOLEAN_STYLES)
        case DateType():
            return all_are(_DATE)
        case TimestampType() | TimestampNTZType():
            # A local time that its zone skips (summer time) would be read as another time.
            parsed = text.try_cast(field.dataType).cast("string").substr(1, _SECONDS_END)
            written = sql.translate(text.substr(1, _SECONDS_END), "T", " ")
            has_zone = text.rlike(r"[Z+]|-[0-9]{2}:[0-9]{2}\z")
            return all_are(_TIMESTAMP) & sql.bool_and(has_zone | sql.equal_null(parsed, written))
        case _:
            return sql.bool_and(text.isNull())


def _check_bytes(
    session: SparkSession, source: str, frame_source: FrameSource, source_text: str
) -> None:
    if frame_source.encoding is not None and frame_source.encoding.lower() not in _UTF_8:
        return
    lines = session.read.text(source).where("NOT is_valid_utf8(value)")
    if lines.limit(1).count():
        raise StreamsError(
            f"{source_text}: it is not UTF-8; name its charset, as in --encoding ISO-8859-1 (encoding=)"
        )


def _check_characters(frame: DataFrame, frame_source: FrameSource, source_text: str) -> None:
    """Raise StreamsError if Spark replaced bytes that are invalid in the given charset."""
    if frame_source.encoding is None or frame_source.encoding.lower() in _UTF_8:
        return
    texts = [field.name for field in frame.schema if isinstance(field.dataType, StringType)]
    tests: list[Column] = [sql.col(_quoted(name)).contains(_REPLACEMENT) for name in texts]
    if tests and frame.where(reduce(Column.__or__, tests)).limit(1).count():
        raise StreamsError(
            f"{source_text}: it is not {frame_source.encoding}; name its charset by --encoding"
        )


def _check_documents(
    session: SparkSession, source: str, frame_source: FrameSource, source_text: str
) -> None:
    """Raise StreamsError if a file has several documents: Spark reads only the first."""
    if frame_source.encoding is not None and frame_source.encoding.lower() not in _UTF_8:
        return
    texts = session.read.text(source, wholetext=True).rdd
    if not texts.map(_is_document).reduce(_both):
        raise StreamsError(
            f"{source_text}: a file is not one JSON document; leave --multi-line out"
        )


def _is_document(row: Any) -> bool:
    try:
        orjson.loads(row[0])
    except orjson.JSONDecodeError:
        return False
    return True


def _both(one: bool, other: bool) -> bool:
    return one and other


def zoned(frame: DataFrame, columns: Sequence[str | None]) -> DataFrame:
    naive = [
        name
        for name in columns
        if name is not None and isinstance(frame.schema[name].dataType, TimestampNTZType)
    ]
    return frame.withColumns({name: sql.col(_quoted(name)).cast("timestamp") for name in naive})


def session_time_zone(session: SparkSession) -> str:
    return str(session.conf.get("spark.sql.session.timeZone"))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@contextlib.contextmanager
def _contexts_not_logged() -> Generator[None]:
    loggers = [PySparkLogger.getLogger(name) for name in _CONTEXT_LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled
