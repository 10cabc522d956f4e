"""Frames on their way to a store: encoded where their rows are, shuffled once, sorted, and gone through twice.

The second importer of PySpark, beside `spark_job`. What rows mean is the caller's: here they are (place, payload), where a
place begins with the number of the partition it goes to, and sorts what arrives there.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark import RDD, StorageLevel, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DatetimeType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from tidewheel.state_stores.bulk_restore.spark_job import Counted, Refused, collected, reason_of
from tidewheel.state_stores.errors import StreamsError

Item = TypeVar("Item")
Result = TypeVar("Result")

#: (partition, what it is sorted by there), and the rest of the row.
PlacedRow = tuple[tuple[int, Any], Any]

#: Of these types are values that Python sorts as Spark does.
_SORTABLE: Final = (
    NumericType, StringType, CharType, VarcharType, BinaryType, BooleanType, DatetimeType,
)  # fmt: skip

_SPECULATION: Final = "spark.speculation"


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
    buffer = io.BytesIO()
    _Pickler(buffer).dump(function)  # type: ignore[no-untyped-call] # it has no types
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    """PySpark's pickler, without classes that it would have to copy.

    A copy is another class: a msgspec Struct loses its fields on the way, and a dataclass that a
    serde has used can't be copied at all.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled; raises `StreamsError` for a class no executor can import."""
        if isinstance(obj, type) and (
            obj.__module__ == "__main__" or "<locals>" in obj.__qualname__
        ):
            raise StreamsError(
                f"class {obj.__qualname__} is defined in a notebook, in the script that runs or in a function, and Spark's executors "
                "can't import it; move it to a module (a .py file), and import it from there"
            )
        return super().reducer_override(obj)  # type: ignore[no-untyped-call] # it has no types


def runs_twice(session: SparkSession) -> bool:
    """Return whether Spark may start a task a second time while the first one still runs well."""
    return session.sparkContext.getConf().get(_SPECULATION, "false") == "true"


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
        selected = frame.select(*quoted)
    except (PySparkException, Py4JError) as error:
        raise StreamsError(f"Spark can't use the frame: {reason_of(error)}") from error
    rows = selected.rdd.mapPartitions(
        partial(_encoded, Carried(encode), counter.add, moments_of(selected.schema))
    )
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
    moments: Callable[[Any], Any] | None,
    rows: Iterable[Any],
) -> Iterator[PlacedRow]:
    plain: Iterable[Mapping[str, Any]] = (row.asDict(recursive=True) for row in rows)
    return encode(plain if moments is None else map(moments, plain), count)


def moments_of(kind: DataType) -> Callable[[Any], Any] | None:
    """Return a function that gives the moments in a value their zone, UTC; None where it has none.

    PySpark hands TIMESTAMP values over as naive times in the zone of the executor's machine.
    TIMESTAMP_NTZ values, which have no zone, stay as they are.
    """
    match kind:
        case TimestampType():
            return _utc
        case StructType():
            fields = {field.name: moments_of(field.dataType) for field in kind.fields}
            inside = {name: function for name, function in fields.items() if function is not None}
            return partial(_in_struct, inside) if inside else None
        case ArrayType():
            element = moments_of(kind.elementType)
            return partial(_in_array, element) if element is not None else None
        case MapType():
            key, value = moments_of(kind.keyType), moments_of(kind.valueType)
            return partial(_in_map, key, value) if key is not None or value is not None else None
        case _:
            return None


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)


def _in_struct(
    fields: Mapping[str, Callable[[Any], Any]], row: dict[str, Any] | None
) -> dict[str, Any] | None:
    if row is None:
        return None
    return row | {name: function(row[name]) for name, function in fields.items()}


def _in_array(element: Callable[[Any], Any], values: list[Any] | None) -> list[Any] | None:
    return None if values is None else [element(value) for value in values]


def _in_map(
    key: Callable[[Any], Any] | None,
    value: Callable[[Any], Any] | None,
    items: dict[Any, Any] | None,
) -> dict[Any, Any] | None:
    if items is None:
        return None
    return {
        (name if key is None else key(name)): (item if value is None else value(item))
        for name, item in items.items()
    }


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
