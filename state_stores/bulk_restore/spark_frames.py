"""Frames on their way to a store: encoded where their rows are, shuffled once, sorted, and gone through twice.

The second importer of PySpark, beside `spark_job`. What rows mean is the caller's: here they are (place, payload), where a
place begins with the number of the partition it goes to, and sorts what arrives there.
"""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark import RDD, StorageLevel, cloudpickle
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    CharType,
    DatetimeType,
    NumericType,
    StringType,
    VarcharType,
)

from state_stores.bulk_restore.spark_job import Counted, Refused, collected, reason_of
from state_stores.bulk_restore.urls import shown_url
from state_stores.errors import StreamsError

Item = TypeVar("Item")
Result = TypeVar("Result")

#: (partition, what it is sorted by there), and the rest of the row.
PlacedRow = tuple[tuple[int, Any], Any]

#: Of these types are values that Python sorts as Spark does.
_SORTABLE: Final = (
    NumericType, StringType, CharType, VarcharType, BinaryType, BooleanType, DatetimeType,
)  # fmt: skip

_SPECULATION: Final = "spark.speculation"

#: Where PySpark logs errors of expressions, beside raising them.
_CONTEXT_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

#: How sources are told by the ends of their names.
_FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".orc": "orc",
}


#: Rows that are not whole are an error. By default Spark fills what is missing with nulls, and leaves out what is too much.
_STRICT: Final = {"mode": "FAILFAST"}
#: CSV as RFC 4180 says it, and as others write it: a quote in a quoted text is doubled, and there may be ends of lines in it. All
#: columns are looked at, also where few are asked for.
_CSV: Final = {
    "header": "true",
    "inferSchema": "true",
    "escape": '"',
    "multiLine": "true",
    "columnPruning": "false",
    **_STRICT,
}
_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"csv": _CSV, "json": _STRICT}


class Carried(Generic[Result]):
    """A function that finds its modules where it arrives: on executors of this machine, wherever the driver found them.

    A program given by its path is imported from there, and executors would not know that. On a cluster paths that do not
    exist are left out: ship the program with --py-files.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self._paths = tuple(sys.path)
        try:
            self._carried = _dumped(function)
        except StreamsError:
            raise
        except Exception as error:
            raise StreamsError(
                f"the program's serdes or functions can't be sent to Spark's executors ({type(error).__name__}: {error}); make "
                "what they hold where it is used, not where they are made"
            ) from error

    def __call__(self, *arguments: Any) -> Result:
        """Call it.

        Raises:
            StreamsError: A module of it is not found here.
        """
        known = set(sys.path)
        sys.path += [path for path in self._paths if path not in known and Path(path).exists()]
        try:
            function = cast("Callable[..., Result]", cloudpickle.loads(self._carried))
        except ModuleNotFoundError as error:
            raise StreamsError(
                f"an executor does not find {error.name!r}, which the program's serdes or functions come from; ship it "
                "with spark-submit --py-files, or install it there"
            ) from error
        return function(*arguments)


def _dumped(function: Callable[..., Any]) -> bytes:
    """Return a function as PySpark carries it; its own serialiser prints a traceback of what goes wrong."""
    data: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call] # it has no types
    return data


def runs_twice(session: SparkSession) -> bool:
    """Return whether Spark may start a task a second time while the first one still runs well."""
    return session.sparkContext.getConf().get(_SPECULATION, "false") == "true"


def read_frame(
    session: SparkSession,
    source: str,
    *,
    file_format: str | None = None,
    select: Sequence[str] = (),
) -> DataFrame:
    """Return a frame of files or of a table.

    Args:
        session: Reads it.
        source: A path or URL that Spark can read, or the name of a table. The format is told by the end of the name.
        file_format: parquet, csv, json, orc, or any format the session knows (delta, ...).
        select: SQL expressions, the columns of the frame; none: all as they are.

    Raises:
        StreamsError: Spark can't read it, or an expression is wrong.
    """
    name = source.rstrip("/").lower()
    found = file_format or next(
        (each for end, each in _FORMATS.items() if name.endswith(end)), None
    )
    try:
        with _contexts_not_logged():
            return _frame_of(session, source, found, select)
    except (PySparkException, Py4JError) as error:
        shown = shown_url(source) if "://" in source else source
        raise StreamsError(f"{shown}: Spark can't read it: {reason_of(error)}") from error


def _frame_of(
    session: SparkSession, source: str, file_format: str | None, select: Sequence[str]
) -> DataFrame:
    if file_format is None:
        is_path = "/" in source
        frame = session.read.load(source) if is_path else session.read.table(source)
    else:
        reader = session.read.format(file_format)
        for option, value in _OPTIONS.get(file_format, {}).items():
            reader = reader.option(option, value)
        frame = reader.load(source)
    return frame.selectExpr(*select) if select else frame


@contextlib.contextmanager
def _contexts_not_logged() -> Generator[None]:
    """Keep PySpark from logging an error with all of its Java beside raising it: it is told in one line."""
    loggers = [PySparkLogger.getLogger(name) for name in _CONTEXT_LOGGERS]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, was_disabled in zip(loggers, before, strict=True):
            each.disabled = was_disabled


def column_names(frame: DataFrame) -> list[str]:
    """Return the names of a frame's columns."""
    return list(frame.columns)


def check_sortable(frame: DataFrame, column: str) -> None:
    """Raise `StreamsError` unless the values of a column can be sorted where their rows arrive: plain ones, no structures."""
    kind = frame.schema[column].dataType
    if not isinstance(kind, _SORTABLE):
        raise StreamsError(
            f"column {column} is of type {kind.simpleString()}, by which rows can't be ordered; name one of numbers, text, bytes, "
            "booleans or times, such as by --select 'CAST(changed.at AS TIMESTAMP) AS at'"
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows at their places. `arrived` tells how many are on their way so far; about: a task that ran twice counts twice."""

    rows: "RDD[PlacedRow]"
    arrived: Callable[[], int]


@contextlib.contextmanager
def placed_rows(
    frame: DataFrame,
    columns: Sequence[str],
    encode: Callable[[Iterable[Mapping[str, Any]], Counted], Iterator[PlacedRow]],
    partitions: int,
    *,
    more: Callable[[Item, Counted], Iterable[PlacedRow]],
    items: Sequence[Item],
) -> Generator[Placed]:
    """Yield a frame's rows at their places: a Spark partition for each, sorted there, and kept on executors' disks.

    Args:
        frame: The rows.
        columns: Those of it that are needed.
        encode: Makes placed rows of rows, and is given a function to be told counts of them by; runs on executors, as what it is
            made of is found there.
        partitions: As many places there are.
        more: Yields further placed rows for an item, likewise.
        items: For `more`.
    """
    context = frame.sparkSession.sparkContext
    counter = context.accumulator(0)
    quoted = [f"`{name.replace('`', '``')}`" for name in columns]
    try:
        selected = frame.select(*quoted).rdd
    except (PySparkException, Py4JError) as error:
        raise StreamsError(f"Spark can't use the frame: {reason_of(error)}") from error
    rows = selected.mapPartitions(partial(_encoded, Carried(encode), counter.add))
    if items:
        others = context.parallelize(items, len(items))
        rows = rows.union(others.flatMap(partial(_more, Carried(more), counter.add)))
    placed = rows.repartitionAndSortWithinPartitions(partitions, _partition_of)
    # Gone through twice; the frame may be costly, and another one the second time.
    placed = placed.persist(StorageLevel.DISK_ONLY)
    try:
        yield Placed(placed, lambda: counter.value)
    finally:
        with contextlib.suppress(Py4JError):  # the session has ended
            placed.unpersist()


def _encoded(
    encode: Callable[[Iterable[Mapping[str, Any]], Counted], Iterator[PlacedRow]],
    count: Counted,
    rows: Iterable[Any],
) -> Iterator[PlacedRow]:
    return encode((row.asDict(recursive=True) for row in rows), count)


def _more(
    more: Callable[[Item, Counted], Iterable[PlacedRow]], count: Counted, item: Item
) -> Iterable[PlacedRow]:
    return more(item, count)


def _partition_of(place: tuple[int, Any]) -> int:
    return place[0]


def run_on_places(
    placed: Placed,
    function: Callable[[int, Iterator[PlacedRow], Counted], Result],
    *,
    what: str,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return what a function returns for each partition, in their order; each is a Spark task.

    A `StreamsError` that it raises is raised here and the task is not tried again; after any other exception it is.

    Args:
        placed: See `placed_rows`.
        function: Takes the partition, its rows, and a function to be told counts of records by.
        what: For Spark's own displays and for messages; no secret.
        on_progress: Told now and then, in another thread, how many records were counted so far.
    """
    counter = placed.rows.context.accumulator(0)
    tasks = placed.rows.mapPartitionsWithIndex(partial(_on_place, Carried(function), counter.add))
    return collected(tasks, lambda: counter.value, what=what, on_progress=on_progress)


def _on_place(
    function: Callable[[int, Iterator[PlacedRow], Counted], Result],
    count: Counted,
    partition: int,
    rows: Iterator[PlacedRow],
) -> Iterator[Result | Refused]:
    try:
        yield function(partition, rows, count)
    except StreamsError as error:
        yield Refused(str(error))
