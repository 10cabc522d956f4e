"""Stream-table joins: each record reads the row of its key.

Rules: Kafka Streams' KStreamKTableJoinProcessor. A null value is dropped. So is a null key, except
in a left join (KIP-962). A result has the record's own time. A versioned table gives the row valid
at that time (KIP-914). With a grace period (KIP-923) records wait in a `JoinBuffer` for late rows.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.operators.joins.join_buffer import BufferedRecord, JoinBuffer
from tidewheel.streams.operators.stateless import collect_each
from tidewheel.streams.operators.tables.table_view import BoundView, TableView
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none


class StreamTableJoin(Operator):
    needs_whole_task = ""

    _table: BoundView

    def __init__(
        self, view: TableView, store_names: tuple[str, ...], joiner: UserFunction, left: bool
    ) -> None:
        self._view = view
        self._store_names = store_names
        self._joiner = joiner
        self._left = left
        #: Key serde of the table's store; None if several stores make up a row.
        self._key_serde: SerdePort | None = None

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._table = self._view.init(context)
        if len(self._store_names) == 1:
            buffer = context.store(self._store_names[0]).buffer
            self._key_serde, self._topic = buffer.spec.key_serde, buffer.topic

    def process(self, batch: RecordBatch) -> Output:
        batch = self.joinable(batch)
        return self.joined(batch) if len(batch) else None

    def joinable(self, batch: RecordBatch) -> RecordBatch:
        null_keys = not self._left and has_none(batch.keys)
        if not null_keys and not has_none(batch.values):
            return batch
        flags = [
            value is not None and (self._left or key is not None)
            for key, value in zip(batch.keys, batch.values, strict=True)
        ]
        flagged = batch.select(flags)
        self.context.dropped(
            len(batch) - len(flagged), "null key or value", batch, flags.index(False)
        )
        return flagged

    def joined(self, batch: RecordBatch) -> RecordBatch:
        batch, rows = self._look_up(batch)
        if not self._left and has_none(rows):
            has_row = [row is not None for row in rows]
            batch, rows = batch.select(has_row), [row for row in rows if row is not None]
        joiner = self._joiner
        calls = (
            map(joiner.call, batch.keys, batch.values, rows)
            if joiner.takes_key
            else map(joiner.call, batch.values, rows)
        )
        results, kept_indices = collect_each(self, joiner, calls, batch)
        return (batch if kept_indices is None else batch.take(kept_indices)).with_values(results)

    def _look_up(self, batch: RecordBatch) -> tuple[RecordBatch, list[Any]]:
        failed: dict[int, Exception] = {}
        if self._table.versioned:
            rows, _ = self._table.get_as_of(batch.keys, batch.timestamps, failed=failed)
        else:
            rows, _ = self._table.get_many(batch.keys, self._key_bytes(batch), failed=failed)
        if not failed:
            return batch, rows
        for index in sorted(failed):
            self.context.failed(batch, index, failed[index])
        indices = [index for index in range(len(batch)) if index not in failed]
        return batch.take(indices), [rows[index] for index in indices]

    def _key_bytes(self, batch: RecordBatch) -> Sequence[bytes | None] | None:
        """Return the keys as the table's serde serialises them; None if the view must do it."""
        if self._key_serde is None:
            return None
        if batch.key_bytes is not None and batch.key_serde is self._key_serde:
            return batch.key_bytes
        if has_none(batch.keys):
            return None
        try:
            return self._key_serde.serialize_batch(self._topic, batch.keys)
        except (
            FAILURES
        ):  # One key does not serialise; the table view finds it and reports its record.
            return None


class BufferedStreamTableJoin(StreamTableJoin):
    """Join with a versioned table that buffers stream records until their grace period is over.

    A record that arrives later than that, or without a key, is joined immediately. Results are
    ordered by time, then serialised key.
    """

    expands = True
    needs_whole_task = "its records wait for the time of all keys"

    def __init__(
        self,
        view: TableView,
        store_names: tuple[str, ...],
        joiner: UserFunction,
        left: bool,
        buffer_name: str,
        grace_ms: int,
        *serdes: SerdePort,
    ) -> None:
        super().__init__(view, store_names, joiner, left)
        self._buffer_name = buffer_name
        self._grace_ms = grace_ms
        self._serdes = serdes

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._buffer = JoinBuffer(context.store(self._buffer_name), self._grace_ms, *self._serdes)

    def times(self) -> tuple[int, ...]:
        return self._buffer.times()

    def restore_times(self, times: tuple[int, ...]) -> None:
        self._buffer.restore_times(times)

    def process(self, batch: RecordBatch) -> Output:
        batch = self.joinable(batch)
        if not len(batch):
            return None
        self._buffer.begin(max(batch.timestamps))
        triggers: list[int] = []
        due: list[BufferedRecord] = []
        for index, key in enumerate(batch.keys):
            record = BufferedRecord(
                key, batch.values[index], batch.timestamps[index], batch.headers_of(index)
            )
            released = [record]
            if key is not None:
                try:
                    waits = self._buffer.put(record, batch.metadata_of(index))
                except FAILURES as error:
                    self.context.failed(batch, index, error)
                    continue
                if waits:
                    released = self._buffer.release()
            triggers.extend(repeat(index, len(released)))
            due += released
        self._buffer.end(batch.timestamps[-1])
        return self.joined(_released(batch, triggers, due)) if due else None


def _released(
    batch: RecordBatch, triggers: Sequence[int], due: Sequence[BufferedRecord]
) -> RecordBatch:
    """Return the due records, each in the place of the input record that made it due."""
    output = batch.take(triggers)
    with_headers = any(record.headers for record in due)
    order = output.order
    if order is not None:
        order = [(*position, number) for number, position in enumerate(order)]
    return RecordBatch(
        [record.key for record in due],
        [record.value for record in due],
        [record.timestamp for record in due],
        [record.headers for record in due] if with_headers else None,
        output.rows,
        output.source,
        order=order,
    )
