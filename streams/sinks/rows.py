"""Rows of files and Iceberg tables: mappings by column, and Arrow tables of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any, Final, cast

import msgspec
from pydantic import BaseModel

from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.processing.api.sink import RefusedRow, RowsRefused, SinkBatch

#: (key, value) -> columns of the row
ToRow = Callable[[Any, Any], Mapping[str, Any]]

#: Columns of `position_columns`, with their Arrow types.
POSITION_COLUMNS: Final = {
    "_topic": "string",
    "_partition": "int64",
    "_offset": "int64",
    "_timestamp": "int64",
}


def default_row(key: Any, value: Any) -> Mapping[str, Any]:
    """Return a mapping, or the fields of an object; else the columns `key` and `value`.

    >>> default_row("a", {"total": 1}), default_row("a", 7)
    ({'total': 1}, {'key': 'a', 'value': 7})
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return {"key": key, "value": value}


class ArrowRows:
    """Rows of one partition, with the batches that they are from."""

    def __init__(self, to_row: ToRow, position_columns: bool) -> None:
        self._to_row = to_row
        self._position_columns = position_columns
        self._rows: list[Mapping[str, Any]] = []
        self._places: list[tuple[SinkBatch, int]] = []
        self._refused: list[RefusedRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def has_refused(self) -> bool:
        """Return True if a row could not be made."""
        return bool(self._refused)

    def add(self, batch: SinkBatch) -> None:
        """Add the rows that have a value."""
        for row, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            if value is None:
                continue
            try:
                columns = _mapping(self._to_row(key, value))
            except Exception as error:  # noqa: BLE001 - the user's function
                self._refused.append(RefusedRow(batch, row, error))
                continue
            if self._position_columns:
                columns = {
                    **columns,
                    "_topic": batch.topic,
                    "_partition": batch.partition,
                    "_offset": batch.offsets[row],
                    "_timestamp": batch.timestamps[row],
                }
            self._rows.append(columns)
            self._places.append((batch, row))

    def table(self, pyarrow: Any, schema: Any, target: str, *, selects: bool = True) -> Any:
        """Return the rows as a table; raise `RowsRefused` for those that don't fit the schema.

        Without a schema, the table has all columns of the rows.

        Args:
            selects: Leave out columns that the schema lacks; else such rows are refused.
        """
        refused = (
            self._refused if schema is None else [*self._refused, *self._strange(schema, selects)]
        )
        if refused:
            raise RowsRefused(refused)
        try:
            table = pyarrow.Table.from_pylist(self._complete(schema), schema=schema)
            if schema is not None:
                _check_nulls(pyarrow, table)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            unfit = [] if schema is None else self._unfit(pyarrow, schema)
            if not unfit:
                raise StreamsError(
                    f"{target}: no schema fits the first rows ({error}); give schema=, and a to_row= that returns its columns"
                ) from error
            raise RowsRefused(unfit) from error
        unknown = [field.name for field in table.schema if pyarrow.types.is_null(field.type)]
        if schema is None and unknown:
            raise StreamsError(
                f"{target}: the first rows have no value of {', '.join(unknown)}, so its type is unknown; give schema="
            )
        return table

    def _complete(self, schema: Any) -> list[Mapping[str, Any]]:
        """Return the rows; the first has all columns, since Arrow infers their names from it."""
        if schema is not None or not self._rows:
            return self._rows
        names = dict.fromkeys(chain.from_iterable(self._rows))
        return [{**names, **self._rows[0]}, *self._rows[1:]]

    def _strange(self, schema: Any, selects: bool) -> Iterator[RefusedRow]:
        """Yield rows with columns that the schema lacks, or with no other columns."""
        names = frozenset(schema.names)
        for columns, (batch, row) in zip(self._rows, self._places, strict=True):
            if names >= columns.keys() or (selects and not names.isdisjoint(columns)):
                continue
            unknown = ", ".join(sorted(map(str, columns.keys() - names)))
            text = f"the schema ({', '.join(schema.names)}) has no column {unknown}; correct to_row= or the schema"
            yield RefusedRow(batch, row, ValueError(text))

    def _unfit(self, pyarrow: Any, schema: Any) -> list[RefusedRow]:
        refused: list[RefusedRow] = []
        for columns, (batch, row) in zip(self._rows, self._places, strict=True):
            try:
                _check_nulls(pyarrow, pyarrow.Table.from_pylist([columns], schema=schema))
            except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                refused.append(RefusedRow(batch, row, error))
        return refused


def _mapping(columns: object) -> Mapping[str, Any]:
    if not isinstance(columns, Mapping):
        raise TypeError(f"to_row must return a mapping by column, not {type(columns).__name__}")
    return cast("Mapping[str, Any]", columns)


def _check_nulls(pyarrow: Any, table: Any) -> None:
    for field in table.schema:
        if not field.nullable and table[field.name].null_count:
            raise pyarrow.ArrowInvalid(f"column {field.name} must not be null")


def by_partition(
    batches: Sequence[SinkBatch], to_row: ToRow, *, position_columns: bool
) -> dict[tuple[str, int], ArrowRows]:
    """Return the rows of each topic partition, in order."""
    rows: dict[tuple[str, int], ArrowRows] = {}
    for batch in batches:
        at = (batch.topic, batch.partition)
        rows.setdefault(at, ArrowRows(to_row, position_columns)).add(batch)
    return rows
