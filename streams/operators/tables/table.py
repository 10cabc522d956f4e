"""Tables: a stream read as row changes, and filters and mappers of rows.

Rules: Kafka Streams' KTableSource, KTableFilter and KTableMapValues. A null key is dropped; a null
value deletes the row.
"""

from typing import Any

from tidewheel.streams.operators.stateful import MaterializedOperator, previous_values
from tidewheel.streams.operators.stateless import call_each, deciding
from tidewheel.streams.operators.tables.table_view import RowFunction, row_filter, row_mapper
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none


class TableSource(MaterializedOperator):
    """A stream read as a table; without a store the changes pass through."""

    def __init__(self, store_name: str | None) -> None:
        super().__init__(store_name or "")

    def init(self, context: NodeContext) -> None:
        if self._store_name:
            super().init(context)
        else:
            Operator.init(self, context)

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        if not len(batch) or not self._store_name:
            return batch
        batch, key_bytes = self.with_key_bytes(batch)
        if not len(batch):
            return None
        return self._set_all(batch, key_bytes) or self.update_each(batch, key_bytes, _row)

    def _set_all(self, batch: RecordBatch, key_bytes: list[bytes]) -> RecordBatch | None:
        """Set all rows in one call; return None if they must be set one by one."""
        buffer, old_values = self.buffer, None
        if self.cache is not None or self._versions is not None:
            return None
        if self.sends_old_values:
            buffer.fetch(key_bytes)
            if not buffer.are_decoded(key_bytes):
                return None
            old_values = list(map(buffer.values.__getitem__, key_bytes))
            before = dict(zip(key_bytes, old_values, strict=True))
            if len(before) < len(key_bytes):  # A repeated key replaces a row of this batch.
                old_values = previous_values(before, key_bytes, batch.values)
            if self.skips_absent and has_none(batch.values):
                return None
        try:
            done = buffer.put_all(key_bytes, batch.values, batch.timestamps)
        except FAILURES:
            return None
        return self.changes(batch, batch.values, batch.timestamps, old_values) if done else None


def _row(_key: Any, value: Any, _data: bytes, timestamp: int) -> tuple[Any, int]:
    return value, timestamp


class _ComputedTable(TableSource):
    def __init__(self, function: UserFunction, row: RowFunction, store_name: str | None) -> None:
        super().__init__(store_name)
        self._function = function
        self._row = row

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        if self.sends_old_values and not self._store_name:
            return self._both(batch)
        results, batch = call_for_rows(self, self._function, batch)
        return super().process(batch.with_values(self.row_values(batch, results)))

    def row_values(self, batch: RecordBatch, results: list[Any]) -> list[Any]:
        del batch
        return results

    def _both(self, batch: RecordBatch) -> RecordBatch:
        """Compute new and old values record by record; there is no store to read old ones from."""
        values: list[Any] = []
        old_values: list[Any] = []
        keep: list[bool] = []
        assert batch.old_values is not None, "the parent was asked for old values"
        rows = zip(batch.keys, batch.values, batch.old_values, strict=True)
        for index, (key, value, old) in enumerate(rows):
            try:
                new_row = None if value is None else self._row(key, value)
            except FAILURES as error:
                self.context.failed(batch, index, error)
                keep.append(False)
                continue
            old_row, is_known = self._old_row(key, old)
            absent = new_row is None and old_row is None and is_known
            keep.append(not (absent and self.skips_absent))
            if keep[-1]:
                values.append(new_row)
                old_values.append(old_row)
        remaining = batch if all(keep) else batch.select(keep)
        return remaining.with_values(values, old_values)

    def _old_row(self, key: Any, old: Any) -> tuple[Any, bool]:
        """Return the row forwarded for the value `old`, and False if it is unknown.

        If the function fails, it also failed when the value was new, and that change was skipped.
        The exception handler is not called again: it might skip this change.
        """
        if old is None:
            return None, True
        try:
            return self._row(key, old), True
        except FAILURES:
            return None, False


class TableFilter(_ComputedTable):
    """Table filter: forwards a tombstone for each rejected row.

    If the old value is known to be rejected as well, it forwards nothing, except for a versioned
    table.
    """

    def __init__(
        self, predicate: UserFunction, negate: bool, store_name: str | None, versioned: bool = False
    ) -> None:
        super().__init__(deciding(predicate), row_filter(predicate, negate), store_name)
        self._negate = negate
        self.skips_absent = not versioned

    def row_values(self, batch: RecordBatch, results: list[Any]) -> list[Any]:
        keeps = not self._negate
        return [
            value if value is not None and bool(flag) is keeps else None
            for value, flag in zip(batch.values, results, strict=True)
        ]


class TableMapValues(_ComputedTable):
    def __init__(self, function: UserFunction, store_name: str | None) -> None:
        super().__init__(function, row_mapper(function), store_name)


def call_for_rows(
    operator: Operator, function: UserFunction, batch: RecordBatch
) -> tuple[list[Any], RecordBatch]:
    """Call a function for every row; a deleted row has the result None."""
    if not has_none(batch.values):
        results, kept_indices = call_each(operator, function, batch)
        return results, batch if kept_indices is None else batch.take(kept_indices)
    present = [index for index, value in enumerate(batch.values) if value is not None]
    column: list[Any] = [None] * len(batch)
    if not present:
        return column, batch
    rows = batch.take(present)
    results, kept_indices = call_each(operator, function, rows)
    succeeded = present if kept_indices is None else [present[index] for index in kept_indices]
    for index, result in zip(succeeded, results, strict=True):
        column[index] = result
    if len(succeeded) == len(present):
        return column, batch
    failed = set(present).difference(succeeded)
    keep = [index not in failed for index in range(len(batch))]
    return [value for value, kept_row in zip(column, keep, strict=True) if kept_row], batch.select(
        keep
    )
