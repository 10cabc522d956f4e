"""Tables: a stream read as changes of rows, and filters and mappers on rows.

Rules are those of Kafka Streams' KTableSource, KTableFilter and KTableMapValues: a null key is dropped, a null value
deletes the row, a row that a filter rejects becomes a tombstone downstream.
"""

from typing import Any

from streams.functions import UserFunction
from streams.operators.materialized import MaterializedOperator
from streams.operators.stateless import call_each, deciding
from tasks.processing.operator import NodeContext, Operator, Output
from tasks.processing.record_batch import RecordBatch, has_none


class TableSource(MaterializedOperator):
    """Reads a stream as a table: the last value of a key is its row.

    Without a store (nothing reads the table) the changes pass through.
    """

    def __init__(self, store_name: str | None) -> None:
        super().__init__(store_name or "")

    def init(self, context: NodeContext) -> None:
        """Look up the store, if there is one."""
        if self._store_name:
            super().init(context)
        else:
            Operator.init(self, context)

    def process(self, batch: RecordBatch) -> Output:
        """Return the changes."""
        batch = self.without_nulls(batch, values=False)
        if not len(batch) or not self._store_name:
            return batch
        batch, key_bytes = self.with_key_bytes(batch)
        return self.update_each(batch, key_bytes, _row) if len(batch) else None


def _row(_key: Any, value: Any, _data: bytes, timestamp: int) -> tuple[Any, int]:
    return value, timestamp


class TableFilter(TableSource):
    """Rejects rows: downstream sees a tombstone where the predicate does not hold."""

    def __init__(self, predicate: UserFunction, negate: bool, store_name: str | None) -> None:
        super().__init__(store_name)
        self._predicate = deciding(predicate)
        self._negate = negate

    def process(self, batch: RecordBatch) -> Output:
        """Return the rows, None for those rejected; a deleted row is not asked about."""
        flags, batch = call_for_rows(self, self._predicate, batch)
        wanted = not self._negate
        values = [
            value if value is not None and bool(flag) is wanted else None
            for value, flag in zip(batch.values, flags, strict=True)
        ]
        return super().process(batch.with_values(values)) if len(batch) else None


class TableMapValues(TableSource):
    """Maps rows; a deleted row stays deleted."""

    def __init__(self, function: UserFunction, store_name: str | None) -> None:
        super().__init__(store_name)
        self._function = function

    def process(self, batch: RecordBatch) -> Output:
        """Return the mapped rows."""
        values, batch = call_for_rows(self, self._function, batch)
        return super().process(batch.with_values(values)) if len(batch) else None


def call_for_rows(
    operator: Operator, function: UserFunction, batch: RecordBatch
) -> tuple[list[Any], RecordBatch]:
    """Call a function for every row that is not deleted; None stands for the others."""
    if not has_none(batch.values):
        results, kept = call_each(operator, function, batch)
        return results, batch if kept is None else batch.take(kept)
    present = [index for index, value in enumerate(batch.values) if value is not None]
    column: list[Any] = [None] * len(batch)
    if not present:
        return column, batch
    rows = batch.take(present)
    results, kept = call_each(operator, function, rows)
    succeeded = present if kept is None else [present[index] for index in kept]
    for index, result in zip(succeeded, results, strict=True):
        column[index] = result
    if len(succeeded) == len(present):
        return column, batch
    failed = set(present).difference(succeeded)
    keep = [index not in failed for index in range(len(batch))]
    return [value for value, kept_row in zip(column, keep, strict=True) if kept_row], batch.select(
        keep
    )
