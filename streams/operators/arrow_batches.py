"""`map_batch`: replaces the values of a batch by those of an Arrow table, pandas or polars frame."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any, Final, Literal, cast

import msgspec

from tidewheel.streams.errors import TopologyError
from tidewheel.streams.operators.stateless import MapValuesBatch
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.processing.engine.steps import Steps

Frame = Literal["arrow", "pandas", "polars"]

KEY: Final = "_key"
TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
#: Columns of the record, besides those of its value.
OF_RECORD: Final = (KEY, TIMESTAMP, HEADERS)
#: Column of values that have no fields.
VALUE: Final = "value"

#: Types that Arrow reads itself; others become plain values first.
_KEPT: Final = (bytes, bytearray, date, datetime, time, timedelta, Decimal)

#: Types whose values all have the same Arrow type.
_SIMPLE: Final = frozenset({int, float, str, bool, bytes, date, type(None)})

_KINDS: Final[Mapping[str, str]] = {
    "arrow": "a pyarrow Table",
    "pandas": "a pandas DataFrame",
    "polars": "a polars DataFrame",
}


class Tables(msgspec.Struct, frozen=True):
    """Conversion between the records of a batch and a table.

    Attributes:
        frame: Kind of the tables.
        schema: Fields of the values; None: those that each group of a batch has.
    """

    frame: Frame
    schema: Any = None

    def groups_of(self, batch: RecordBatch) -> list[list[int]]:
        """Return the indices of records that may share a table, by group.

        Alone, each record's table would have the same columns and types, so no result depends on a
        record's neighbours. Records without a value are in no group: theirs stays None.
        """
        groups: dict[Any, list[int]] = {}
        for index, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            if value is not None:
                shape = None if self.schema is not None else _shape(_plain(value))
                groups.setdefault((_shape(_plain(key)), shape), []).append(index)
        return list(groups.values())

    def table_of(self, batch: RecordBatch) -> Any:
        """Return the batch as a table; raise for a value that fits no column."""
        pa = arrow()
        return pa.table({**self._of_values(pa, batch.values), **_of_records(pa, batch)})

    def frame_of(self, table: Any) -> Any:
        """Return a table as the kind that the function takes."""
        if self.frame == "polars":
            return import_module("polars").from_arrow(table)
        if (
            self.frame == "pandas"
        ):  # not numpy's types: an integer column with a None would be float
            return table.to_pandas(types_mapper=import_module("pandas").ArrowDtype)
        return table

    def _of_values(self, pa: Any, values: Sequence[Any]) -> dict[str, Any]:
        rows = list(map(_plain, values))
        has_fields = any(isinstance(row, Mapping) for row in rows)
        if self.schema is not None and (has_fields or self.schema.names != [VALUE]):
            _check_names(self.schema.names)
            return {
                field.name: _array(pa, field.name, _column(rows, field.name), field.type)
                for field in self.schema
            }
        if not has_fields:
            kind = None if self.schema is None else self.schema.field(0).type
            return {VALUE: _array(pa, VALUE, rows, kind)}
        names = dict.fromkeys(name for row in rows if row is not None for name in _fields(row))
        _check_names(names)
        return {name: _array(pa, name, _column(rows, name), None) for name in names}

    def values_of(self, result: Any, given: Any, batch: RecordBatch, function: str) -> list[Any]:
        """Return the values in a function's result; raise if it does not fit its argument."""
        table = self._table(result, function)
        names = table.column_names
        if len(set(names)) < len(names):
            raise ValueError(f"{function} returned a column name twice: {', '.join(names)}")
        if table.num_rows != len(batch):
            raise ValueError(
                f"{function} returned {table.num_rows} rows for {len(batch)} ({_place(batch)}); return one for "
                "each, in the same order"
            )
        fields = [name for name in names if name not in OF_RECORD]
        if not fields:
            raise ValueError(
                f"{function} returned no column of the value for {_place(batch)}; return its fields, or the column "
                f"{VALUE!r} for values without fields"
            )
        _check_unchanged(table, given, batch, function)
        if fields == [VALUE]:
            return list(table.column(VALUE).to_pylist())
        return list(table.select(fields).to_pylist())

    def _table(self, result: Any, function: str) -> Any:
        pa = arrow()
        if isinstance(result, pa.Table):
            return result
        kind = type(result)
        if kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame":
            return pa.Table.from_pandas(result, preserve_index=False)
        if isinstance(result, pa.RecordBatch):
            return pa.table(result)
        if hasattr(result, "__arrow_c_stream__"):
            with suppress(pa.ArrowInvalid):  # a column alone, such as a Series
                return pa.table(result)
        raise TypeError(
            f"{function} returned no table but {kind.__name__}; return {_KINDS[self.frame]} with a row for each record"
        )


class MapBatch(MapValuesBatch):
    def __init__(self, function: UserFunction, tables: Tables) -> None:
        super().__init__(function)
        self._tables = tables

    def process(self, batch: RecordBatch) -> Output:
        results = _Results(batch)
        for indices, part, table in self._parts(batch):
            try:
                result = self._function.call(self._tables.frame_of(table))
                results.add(indices, self._values_of(result, table, part))
            except FAILURES as error:
                self._failed(part, error)
        return results.batch()

    def steps(self, batch: RecordBatch) -> Steps[Output]:
        awaiting = self._function.awaiting
        assert awaiting is not None, "steps are those of a coroutine function"
        results = _Results(batch)
        for indices, part, table in self._parts(batch):
            try:
                result = yield awaiting.begin(self._tables.frame_of(table))
                results.add(indices, self._values_of(result, table, part))
            except FAILURES as error:
                self._failed(part, error)
        return results.batch()

    def _values_of(self, result: Any, table: Any, part: RecordBatch) -> list[Any]:
        return self._tables.values_of(result, table, part, self._function.shown)

    def _parts(self, batch: RecordBatch) -> Iterator[tuple[list[int], RecordBatch, Any]]:
        """Yield indices, records and table of each group; others go to the processing handler."""
        for group in self._tables.groups_of(batch):
            part = batch if len(group) == len(batch) else batch.take(group)
            table: Any = None
            with suppress(*FAILURES):
                table = self._tables.table_of(part)
            if table is not None:
                yield group, part, table
            elif fitting := list(self._fitting(batch, group)):
                part = batch.take(fitting)
                yield fitting, part, self._tables.table_of(part)

    def _fitting(self, batch: RecordBatch, indices: list[int]) -> Iterator[int]:
        for index in indices:
            single = batch.take([index])
            try:
                self._tables.table_of(single)
            except FAILURES as error:
                self.context.failed(batch, index, _unfit(error, single))
            else:
                yield index


class _Results:
    """New values of a batch, by index."""

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch
        self._values: dict[int, Any] = {
            index: None for index, value in enumerate(batch.values) if value is None
        }

    def add(self, indices: Iterable[int], values: Iterable[Any]) -> None:
        self._values.update(zip(indices, values, strict=True))

    def batch(self) -> RecordBatch | None:
        kept = sorted(self._values)
        if not kept:
            return None
        batch = self._batch if len(kept) == len(self._batch) else self._batch.take(kept)
        return batch.with_values([self._values[index] for index in kept])


def tables_of(frame: object, schema: object, context: str) -> Tables:
    """Return the conversion for these arguments of `map_batch`; import the libraries.

    Raises:
        TopologyError: An argument is wrong, or a library is missing.
    """
    if frame not in ("arrow", "pandas", "polars"):
        raise TopologyError(
            f"{context}: frame={frame!r} is unknown; give 'arrow', 'pandas' or 'polars'"
        )
    name = "pyarrow"
    try:
        arrow()
        if frame != "arrow":
            name = frame
            _ = import_module("pandas") if frame == "pandas" else import_module("polars")
    except ImportError as error:
        install = "'tidewheel[arrow]'" if name == "pyarrow" else name
        raise TopologyError(
            f"{context} needs {name}, which is not installed; run: pip install {install}"
        ) from error
    if schema is not None and not isinstance(schema, arrow().Schema):
        raise TopologyError(
            f"{context}: the schema is of type {type(schema).__name__}; give a pyarrow.Schema of the value's fields"
        )
    try:
        _check_names(() if schema is None else schema.names)
    except ValueError as error:
        raise TopologyError(f"{context}: {error}") from None
    return Tables(frame, schema)


def arrow() -> Any:
    return import_module("pyarrow")


def _of_records(pa: Any, batch: RecordBatch) -> dict[str, Any]:
    headers_type = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    columns: dict[str, Any] = {}
    try:
        columns[KEY] = pa.array(list(map(_plain, batch.keys)))
    except FAILURES:  # keys of a type that Arrow does not know, such as windowed ones
        columns[KEY] = pa.array(list(map(str, batch.keys)))
    columns[TIMESTAMP] = pa.array(batch.timestamps, pa.timestamp("ms", tz="UTC"))
    if batch.headers is None:
        columns[HEADERS] = pa.nulls(len(batch), headers_type)
    else:
        rows = [[{"name": name, "value": value} for name, value in each] for each in batch.headers]
        columns[HEADERS] = pa.array(rows, headers_type)
    return columns


def _plain(value: Any) -> Any:
    """Return a record class's object as a dict, and other values as they are."""
    if isinstance(value, msgspec.Struct) or (is_dataclass(value) and not isinstance(value, type)):
        return msgspec.to_builtins(value, builtin_types=_KEPT)
    dump = getattr(value, "model_dump", None)  # a pydantic model
    return dump() if callable(dump) else value


def _shape(value: Any) -> Any:
    """Return a hashable that is equal for values of the same Arrow type."""
    kind = type(value)
    if kind in _SIMPLE:
        return kind
    if isinstance(value, Mapping):
        kinds = tuple(map(type, value.values()))
        is_flat = _SIMPLE.issuperset(kinds)
        return tuple(value), kinds if is_flat else tuple(map(_shape, value.values()))
    if isinstance(value, list | tuple):
        return kind, tuple(dict.fromkeys(map(_shape, cast("Sequence[Any]", value))))
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        return kind, len(digits), exponent
    if isinstance(value, datetime):
        return kind, str(value.tzinfo)
    return kind


def _fields(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise TypeError(
            f"a value of type {type(row).__name__} has no fields, but others of its batch have"
        )
    return row


def _column(rows: Sequence[Any], name: str) -> list[Any]:
    return [None if row is None else _fields(row).get(name) for row in rows]


def _check_names(names: Any) -> None:
    taken = [name for name in names if name in OF_RECORD]
    if taken:
        raise ValueError(
            f"the value's field {taken[0]!r} has the name of a column of the record; rename it with map_values first"
        )


def _check_unchanged(table: Any, given: Any, batch: RecordBatch, function: str) -> None:
    for name, advice in ((KEY, "select_key(f) changes keys"), (TIMESTAMP, "processors change it")):
        if name not in table.column_names:
            continue
        column, before = table.column(name), given.column(name)
        # Frames may change a column's type: then the values decide.
        is_same = column.equals(before) or (
            column.type != before.type and column.to_pylist() == before.to_pylist()
        )
        if not is_same:
            raise ValueError(
                f"{function} returned another column {name!r} for {_place(batch)}, or its rows in another order; "
                f"map_batch replaces values only ({advice})"
            )


def _array(pa: Any, name: str, values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except FAILURES as error:  # its text quotes the value
        found = ", ".join(sorted({type(value).__name__ for value in values if value is not None}))
        wanted = "" if kind is None else f", but the schema has {kind}"
        if kind is None and isinstance(error, OverflowError):
            wanted = ", and a number does not fit int64"
        raise TypeError(f"the column {name!r} has values of type {found}{wanted}") from None


def _unfit(error: Exception, batch: RecordBatch) -> Exception:
    advice = "give map_batch a schema= of their fields, or filter them out before"
    return TypeError(f"the values of {_place(batch)} fit no table, because {error}; {advice}")


def _place(batch: RecordBatch) -> str:
    first, last = batch.metadata_of(0), batch.metadata_of(len(batch) - 1)
    if first is None or last is None:
        return f"{len(batch)} records"
    if len(batch) == 1:
        return f"{first.topic}-{first.partition} offset {first.offset}"
    return f"{first.topic}-{first.partition} offsets {first.offset} to {last.offset}"
