"""Joins of a stream with a global table: each record reads one row of a complete local copy.

Rules: Kafka Streams' KStreamGlobalKTableJoin. Table updates trigger nothing. A null value is
dropped. So is a null selected key, except in a left join, which calls the joiner with None. Results
have the stream record's timestamp and headers. The key selector is called once per record, not for
null values.
"""

from itertools import compress
from typing import Any

from tidewheel.streams.operators.stateless import call_each, collect_each
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none


class GlobalTableJoin(Operator):
    """Join with a global table; it only reads the store, so any thread may run it."""

    needs_whole_task = ""

    def __init__(
        self, store_name: str, key_selector: UserFunction, joiner: UserFunction, left: bool
    ) -> None:
        self._store_name = store_name
        self._key_selector = key_selector
        self._joiner = joiner
        self._left = left

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._view = context.store(self._store_name)

    def process(self, batch: RecordBatch) -> Output:
        if has_none(batch.values):
            batch = self._without(batch, [value is None for value in batch.values], "null value")
        selected, kept_indices = call_each(self, self._key_selector, batch)
        batch = batch if kept_indices is None else batch.take(kept_indices)
        if not self._left and has_none(selected):
            batch = self._without(batch, [key is None for key in selected], "null selected key")
            selected = [key for key in selected if key is not None]
        rows, selected, batch = self._rows(selected, batch)
        if not self._left and has_none(rows):
            has_row = [row is not None for row in rows]
            batch, selected = batch.select(has_row), [*compress(selected, has_row)]
            rows = [*compress(rows, has_row)]
        keys = (batch.keys, selected) if self._joiner.takes_mapped_key else (batch.keys,)
        calls = map(
            self._joiner.call, *(keys if self._joiner.takes_key else ()), batch.values, rows
        )
        results, kept_indices = collect_each(self, self._joiner, calls, batch)
        batch = batch if kept_indices is None else batch.take(kept_indices)
        return batch.with_values(results)

    def _without(self, batch: RecordBatch, left_out: list[bool], reason: str) -> RecordBatch:
        self.context.dropped(
            sum(left_out),
            f"{reason} in a join with a global table",
            batch,
            left_out.index(True),
        )
        return batch.select([not is_left_out for is_left_out in left_out])

    def _rows(
        self, selected: list[Any], batch: RecordBatch
    ) -> tuple[list[Any], list[Any], RecordBatch]:
        """Return the row of each selected key; leave out records whose key does not serialise."""
        key_bytes, kept_indices = self._serialized(selected, batch)
        if len(kept_indices) < len(batch):
            batch, selected = batch.take(kept_indices), [selected[index] for index in kept_indices]
        distinct = sorted({data for data in key_bytes if data is not None})
        values = self._view.plain_values(distinct) if distinct else ()
        values_by_key = dict(zip(distinct, values, strict=True))
        return (
            [None if data is None else values_by_key[data] for data in key_bytes],
            selected,
            batch,
        )

    def _serialized(
        self, selected: list[Any], batch: RecordBatch
    ) -> tuple[list[bytes | None], list[int]]:
        serialize = self._view.key_bytes
        key_bytes: list[bytes | None] = []
        indices: list[int] = []
        for index, key in enumerate(selected):
            try:
                key_bytes.append(None if key is None else serialize(key))
            except FAILURES as error:
                self.context.failed(batch, index, error)
            else:
                indices.append(index)
        return key_bytes, indices
