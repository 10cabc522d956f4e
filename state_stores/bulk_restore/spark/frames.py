"""Spark frames for stores: encoded on executors, shuffled once, sorted, and read twice.

Rows are (place, payload). A place begins with the target partition and defines the sort order.
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

from tidewheel.state_stores.bulk_restore.spark.job import (
    Counted,
    ExecutorError,
    collected,
    reason_of,
)
from tidewheel.state_stores.errors import StreamsError

Item = TypeVar("Item")
Result = TypeVar("Result")

PlacedRow = tuple[tuple[int, Any], Any]

#: Types whose values Python sorts like Spark.
_SORTABLE: Final = (
    NumericType, StringType, CharType, VarcharType, BinaryType, BooleanType, DatetimeType,
)  # fmt: skip

_SPECULATION: Final = "spark.speculation"


class PortableFunction(Generic[Result]):
    """Wrapper of a function whose modules executors on this machine can import.

    Executors don't have the driver's `sys.path`. On a cluster, ship the program with --py-files.
    """

    def __init__(self, function: Callable[..., Result]) -> None:
        self._paths = tuple(sys.path)
        try:
            self._carried = _dumped(function)
        except StreamsError:
            raise
        except Exception as error:
            raise StreamsError(
                f"the program's serdes or functions can't be sent to Spark's executors ({type(error).__name__}: {error}); create "
                "their contents where they are used, not where they are created"
            ) from error

    def __call__(self, *arguments: Any) -> Result:
        present = set(sys.path)
        sys.path += [path for path in self._paths if path not in present and Path(path).exists()]
        try:
            function = cast("Callable[..., Result]", cloudpickle.loads(self._carried))
        except ModuleNotFoundError as error:
            raise StreamsError(
                f"an executor does not find {error.name!r}, a module of the program's serdes or functions; ship it "
                "with spark-submit --py-files, or install it there"
            ) from error
        return function(*arguments)


def _dumped(function: Callable[..., Any]) -> bytes:
    """Pickle a function; PySpark's own serializer prints a traceback on errors."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(function)  # type: ignore[no-untyped-call] # it has no types
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    """PySpark's pickler, without classes that would be pickled by value.

    They raise StreamsError: an executor's copy is another class, and a Struct loses its fields.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and (
            obj.__module__ == "__main__" or "<locals>" in obj.__qualname__
        ):
            raise StreamsError(
                f"class {obj.__qualname__} is defined in a notebook, in the script that runs or in a function, and Spark's executors "
                "can't import it; move it to a module (a .py file), and import it from there"
            )
        return super().reducer_override(obj)  # type: ignore[no-untyped-call] # it has no types


def runs_twice(session: SparkSession) -> bool:
    return session.sparkContext.getConf().get(_SPECULATION, "false") == "true"


def column_names(frame: DataFrame) -> list[str]:
    return list(frame.columns)


def check_sortable(frame: DataFrame, column: str) -> None:
    kind = frame.schema[column].dataType
    if not isinstance(kind, _SORTABLE):
        raise StreamsError(
            f"column {column} is of type {kind.simpleString()}, which can't be sorted; name a column of numbers, text, bytes, "
            "booleans or times, as in --select 'CAST(changed.at AS TIMESTAMP) AS at'"
        )


@dataclass(frozen=True, slots=True)
class Placed:
    rows: "RDD[PlacedRow]"
    arrived: Callable[[], int]


@contextlib.contextmanager
def placed_rows(
    frame: DataFrame,
    columns: Sequence[str],
    encode: Callable[[Iterable[Mapping[str, Any]], Counted], Iterator[PlacedRow]],
    partitions: int,
    *,
    rows_of: Callable[[Item, Counted], Iterable[PlacedRow]] | None = None,
    items: Sequence[Item] = (),
    is_read_twice: bool = True,
) -> Generator[Placed]:
    """Yield a frame's rows in a sorted Spark partition per target partition, on executors' disks.

    `encode` runs on executors; so does `rows_of`, which yields further rows for each of `items`.
    """
    context = frame.sparkSession.sparkContext
    counter = context.accumulator(0)
    quoted = [f"`{name.replace('`', '``')}`" for name in columns]
    try:
        selected = frame.select(*quoted)
    except (PySparkException, Py4JError) as error:
        raise StreamsError(f"Spark can't use the frame: {reason_of(error)}") from error
    rows = selected.rdd.mapPartitions(
        partial(_encoded, PortableFunction(encode), counter.add, utc_converter(selected.schema))
    )
    if rows_of is not None and items:
        others = context.parallelize(items, len(items))
        rows = rows.union(
            others.flatMap(partial(_counted_rows, PortableFunction(rows_of), counter.add))
        )
    placed = rows.repartitionAndSortWithinPartitions(partitions, _partition_of)
    if not is_read_twice:
        yield Placed(placed, lambda: counter.value)
        return
    # Recomputing the frame could give other rows.
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


def utc_converter(kind: DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts a value's timestamps to UTC; None if it has none.

    PySpark passes TIMESTAMP values as naive times in the zone of the executor's machine.
    """
    match kind:
        case TimestampType():
            return _utc
        case StructType():
            fields = {field.name: utc_converter(field.dataType) for field in kind.fields}
            inside = {name: function for name, function in fields.items() if function is not None}
            return partial(_in_struct, inside) if inside else None
        case ArrayType():
            element = utc_converter(kind.elementType)
            return partial(_in_array, element) if element is not None else None
        case MapType():
            key, value = utc_converter(kind.keyType), utc_converter(kind.valueType)
            return partial(_in_map, key, value) if key is not None or value is not None else None
        case _:
            return None


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


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


def _counted_rows(
    rows_of: Callable[[Item, Counted], Iterable[PlacedRow]], count: Counted, item: Item
) -> Iterable[PlacedRow]:
    return rows_of(item, count)


def placed_items(
    session: SparkSession,
    read: Callable[[Item], Iterable[PlacedRow]],
    items: Sequence[Item],
    partitions: int,
) -> Placed:
    """Return the rows that executors read from items, in a sorted Spark partition per partition."""
    context = session.sparkContext
    if not items:
        return Placed(context.parallelize([], partitions), lambda: 0)
    rows = context.parallelize(items, len(items)).flatMap(PortableFunction(read))
    placed = rows.repartitionAndSortWithinPartitions(partitions, _partition_of)
    return Placed(placed, lambda: 0)


def _partition_of(place: tuple[int, Any]) -> int:
    return place[0]


def run_on_places(
    placed: Placed,
    function: Callable[[int, Iterator[PlacedRow], Counted], Result],
    *,
    description: str,
    on_progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """Return the function's results in partition order; each partition is a Spark task.

    Spark does not retry after `StreamsError`. Errors show `what`, so it must hold no secret.
    """
    counter = placed.rows.context.accumulator(0)
    tasks = placed.rows.mapPartitionsWithIndex(
        partial(_on_place, PortableFunction(function), counter.add)
    )
    return collected(tasks, lambda: counter.value, description=description, on_progress=on_progress)


def _on_place(
    function: Callable[[int, Iterator[PlacedRow], Counted], Result],
    count: Counted,
    partition: int,
    rows: Iterator[PlacedRow],
) -> Iterator[Result | ExecutorError]:
    try:
        result = function(partition, rows, count)
    except StreamsError as error:
        yield ExecutorError(str(error))
        return
    # Spark ends a Python process that has not seen its input's end, and starts one for the next task.
    for _ in rows:
        pass
    yield result
