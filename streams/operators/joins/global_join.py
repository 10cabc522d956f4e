"""Joins of a stream with a global table: each record looks up one row of a store that holds the whole topic.

Rules are those of Kafka Streams' KStreamGlobalKTableJoin: updates of the table trigger nothing; a null value is dropped,
and so is a null from the key selector, except by a left join, which calls the joiner with None; results have the
timestamp and headers of the stream's record. The key selector is called once for a record, and not for null values.
"""

from itertools import compress
from typing import Any

from tidewheel.streams.operators.stateless import call_each, collect_each
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none


class GlobalTableJoin(Operator):
    """Joins each record with the row that its selected key has now; that store is only read, by any thread."""

    needs_whole_task = ""

    def __init__(
        self, store_name: str, key_selector: UserFunction, joiner: UserFunction, left: bool
    ) -> None:
        self._store_name = store_name
        self._key_selector = key_selector
        self._joiner = joiner
        self._left = left

    def init(self, context: NodeContext) -> None:
        """Look up the global store."""
        super().init(context)
        self._view = context.store(self._store_name)

    def process(self, batch: RecordBatch) -> Output:
        """Return the joined records."""
        if has_none(batch.values):
            batch = self._without(batch, [value is None for value in batch.values], "null value")
        selected, kept = call_each(self, self._key_selector, batch)
        batch = batch if kept is None else batch.take(kept)
        if not self._left and has_none(selected):
            batch = self._without(batch, [key is None for key in selected], "null selected key")
            selected = [key for key in selected if key is not None]
        rows, selected, batch = self._rows(selected, batch)
        if not self._left and has_none(rows):
            found = [row is not None for row in rows]
            batch, selected = batch.select(found), [*compress(selected, found)]
            rows = [*compress(rows, found)]
        keys = (batch.keys, selected) if self._joiner.takes_mapped_key else (batch.keys,)
        calls = map(
            self._joiner.call, *(keys if self._joiner.takes_key else ()), batch.values, rows
        )
        results, kept = collect_each(self, self._joiner.name, calls, batch)
        batch = batch if kept is None else batch.take(kept)
        return batch.with_values(results)

    def _without(self, batch: RecordBatch, left_out: list[bool], reason: str) -> RecordBatch:
        self.context.dropped(
            sum(left_out),
            f"{reason} in a join with a global table",
            batch,
            left_out.index(True),
        )
        return batch.select([not each for each in left_out])

    def _rows(
        self, selected: list[Any], batch: RecordBatch
    ) -> tuple[list[Any], list[Any], RecordBatch]:
        """Return the row of each selected key, None where there is none; equal keys are looked up once.

        Selected keys that do not serialise are left out, with their records.
        """
        key_bytes, kept = self._serialized(selected, batch)
        if len(kept) < len(batch):
            batch, selected = batch.take(kept), [selected[index] for index in kept]
        distinct = sorted({data for data in key_bytes if data is not None})
        values = self._view.plain_values(distinct) if distinct else ()
        found = dict(zip(distinct, values, strict=True))
        return [None if data is None else found[data] for data in key_bytes], selected, batch

    def _serialized(
        self, selected: list[Any], batch: RecordBatch
    ) -> tuple[list[bytes | None], list[int]]:
        """Return the keys as bytes, and which these are; the others go to the processing handler."""
        serialize = self._view.key_bytes
        key_bytes: list[bytes | None] = []
        kept: list[int] = []
        for index, key in enumerate(selected):
            try:
                key_bytes.append(None if key is None else serialize(key))
            except FAILURES as error:  # whatever the serde raises: the processing handler decides
                self.context.failed(batch, index, error)
            else:
                kept.append(index)
        return key_bytes, kept
