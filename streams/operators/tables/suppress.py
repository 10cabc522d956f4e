"""`suppress`: buffers a table's changes and emits only the last one of each row.

Rules: Kafka Streams' KTableSuppressProcessor and InMemoryTimeOrderedKeyValueChangeBuffer. A row's
first change sets its place in the order of emission; rows of equal time are ordered by serialised
key.

Three things differ. Rows are stored on disk. A window closes by its aggregation's rule, so there is
only one final result. A change's old value is the value emitted before it, so an aggregation
downstream subtracts the value it added.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.layout.stored_values import read_row
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.definitions.suppressed import BufferConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.operators.stateful import MaterializedOperator, TableOperator
from tidewheel.streams.operators.tables.suppress_buffer import PoppedRow, SuppressBuffer
from tidewheel.streams.operators.tables.table_view import (
    NO_TIMESTAMP,
    BoundView,
    Failed,
    Rows,
    TableView,
    not_versioned,
)
from tidewheel.streams.serdes.buffered import Buffered, BufferedSerde, Context
from tidewheel.streams.windows import Windows
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

_NO_TIME = -1

#: (key, timestamp) of a row's first change -> its time in the order of emission.
TimeOf = Callable[[Any, int], int]


def first_change(_key: Any, timestamp: int) -> int:
    return timestamp


def window_end(key: Any, _timestamp: int) -> int:
    if not isinstance(key, Windowed):
        raise TypeError(
            f"suppress until_window_closes needs keys of type Windowed, not {type(key).__name__}"
        )
    return key.end


def closing_delay_ms(windows: Iterable[Windows]) -> int:
    """Return the longest delay (ms) between a window's end and its closing."""
    return max(window.closes_at(0) for window in windows)


class _Emitted(msgspec.Struct):
    taken: list[PoppedRow] = msgspec.field(default_factory=list[PoppedRow])
    indices: list[int] = msgspec.field(default_factory=list[int])


class Suppress(MaterializedOperator):
    expands = True
    emission = "suppression-emit-total"
    needs_whole_task = "it holds rows back by the time and the number of all keys"

    def __init__(
        self,
        store_name: str,
        time_of: TimeOf,
        limit_ms: int | None,
        config: BufferConfig,
        final: bool,
    ) -> None:
        super().__init__(store_name)
        self._time_of = time_of
        #: Age (ms of stream time) at which a row is emitted; None for never.
        self._limit_ms = limit_ms
        self._config = config
        #: A final result is emitted once: a row deleted before was never emitted, so its tombstone
        #: is not, either.
        self._drops_tombstones = final
        self._observed = _NO_TIME
        #: Created with the first batch, because it counts rows and the store is restored by then.
        self._rows: SuppressBuffer | None = None

    def init(self, context: NodeContext) -> None:
        TableOperator.init(self, context)
        self.buffer = context.store(self._store_name).buffer
        serde = self.buffer.spec.value_serde
        assert isinstance(serde, BufferedSerde)
        self._serde = serde

    def times(self) -> tuple[int, ...]:
        return (self._observed,)

    def restore_times(self, times: tuple[int, ...]) -> None:
        (self._observed,) = times

    def rows_erased(self, store: str) -> None:
        if store == self._store_name:
            self._rows = None

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        batch, key_bytes = self.with_key_bytes(batch)
        if not len(batch):
            return None
        if self._rows is None:
            limited = self._config.byte_limit is not None
            self._rows = SuppressBuffer(
                self.buffer, counts_headers=limited and self._serde.counts_headers
            )
        rows, emitted = self._rows, _Emitted()
        self.buffer.fetch(key_bytes)
        for index, data in enumerate(key_bytes):
            self._observed = max(self._observed, batch.timestamps[index])
            try:
                rows.put(data, self._row(rows.get(data), batch, index))
            except FAILURES as error:
                self.context.failed(batch, index, error)
                continue
            self._emit(rows, index, emitted)
        return self._output(batch, emitted)

    def _row(self, buffered: Buffered | None, batch: RecordBatch, index: int) -> Buffered:
        topic, serde = self.buffer.topic, self._serde
        new = serde.value_bytes(topic, batch.values[index])
        old_value = None if batch.old_values is None else batch.old_values[index]
        if buffered is None:
            time = self._time_of(batch.keys[index], batch.timestamps[index])
            prior = old = serde.value_bytes(topic, old_value)
        else:
            time, prior = buffered.time, buffered.prior
            # Kept only because it counts in the buffer's size, as in Kafka Streams.
            limited = self._config.byte_limit is not None
            old = serde.value_bytes(topic, old_value) if limited else None
        timestamp, headers = batch.timestamps[index], batch.headers_of(index)
        source = batch.metadata_of(index)
        context = (
            Context(timestamp, headers=headers)
            if source is None
            else Context(timestamp, *source, headers)
        )
        return Buffered(time, context, prior, old, new)

    def _emit(self, rows: SuppressBuffer, index: int, emitted: _Emitted) -> None:
        if self._limit_ms is not None:
            due = self._observed - self._limit_ms
            while (time := rows.first_time) is not None and time <= due:
                self._emit_first(rows, index, emitted)
        while self._is_full(rows) and rows.first_time is not None:
            if not self._config.emits_early:
                raise self._too_full(rows)
            self._emit_first(rows, index, emitted)

    def _emit_first(self, rows: SuppressBuffer, index: int, emitted: _Emitted) -> None:
        popped = rows.pop_first()
        if popped.row.new is None and self._drops_tombstones:
            return
        emitted.taken.append(popped)
        emitted.indices.append(index)

    def _is_full(self, rows: SuppressBuffer) -> bool:
        records, size = self._config.record_limit, self._config.byte_limit
        return (records is not None and rows.records > records) or (
            size is not None and rows.size_bytes > size
        )

    def _too_full(self, rows: SuppressBuffer) -> StreamsError:
        limits = {"records": self._config.record_limit, "bytes": self._config.byte_limit}
        buffered = {"records": rows.records, "bytes": rows.size_bytes}
        figures = " and ".join(
            f"{buffered[unit]} of at most {limit} {unit}"
            for unit, limit in limits.items()
            if limit is not None
        )
        return StreamsError(
            f"{self.context.node_name}: suppress holds {figures}, and its buffer shuts down when full; give it "
            "more room (with_max_records, with_max_bytes, BufferConfig.unbounded()), or emit_early_when_full()"
        )

    def _keys_of(self, key_bytes: Sequence[bytes]) -> list[Any]:
        spec, topic = self.buffer.spec, self.buffer.topic
        try:
            return list(spec.key_serde.deserialize_batch(topic, key_bytes))
        except FAILURES:  # One key can't be read; reading one by one raises an error that names it.
            decode = spec.key_serde.deserialize
            return [read_row(spec.name, decode, topic, key, key) for key in key_bytes]

    def _output(self, batch: RecordBatch, emitted: _Emitted) -> RecordBatch | None:
        taken = emitted.taken
        if not taken:
            return None
        spec, topic = self.buffer.spec, self.buffer.topic
        value = partial(self._serde.stored, spec.name)
        output = batch.take(emitted.indices)
        key_bytes = [item.key_bytes for item in taken]
        headers = [item.row.context.headers for item in taken]
        old_values = None
        if self.sends_old_values:
            old_values = [value(topic, item.row.prior, item.key_bytes) for item in taken]
        return RecordBatch(
            self._keys_of(key_bytes),
            [value(topic, item.row.new, item.key_bytes) for item in taken],
            [item.row.context.timestamp for item in taken],
            headers if any(headers) else None,
            output.rows,
            output.source,
            old_values=old_values,
            order=_numbered(output.order, emitted.indices),
            key_bytes=list[bytes | None](key_bytes) if spec.key_serde.canonical else None,
            key_serde=spec.key_serde if spec.key_serde.canonical else None,
        )


def _numbered(order: list[Any] | None, indices: Sequence[int]) -> list[Any] | None:
    """Return the emitted rows' sort keys: that of the triggering record, then a count from 0."""
    if order is None:
        return None
    numbered: list[Any] = []
    position, before = 0, -1
    for index, place in zip(indices, order, strict=True):
        position = position + 1 if index == before else 0
        before = index
        numbered.append((*place, position))
    return numbered


@dataclass(frozen=True, slots=True)
class SuppressedView(TableView):
    """Rows as downstream knows them: for a buffered row, the value emitted before."""

    parent: TableView
    store_name: str

    def init(self, context: NodeContext) -> BoundView:
        return _SuppressedRows(self.parent.init(context), context.store(self.store_name).buffer)


class _SuppressedRows(BoundView):
    def __init__(self, parent: BoundView, rows: CommitBuffer) -> None:
        self._parent = parent
        self._rows = rows

    @property
    def versioned(self) -> bool:
        return False

    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        values, timestamps = self._parent.get_many(keys, key_bytes, failed=failed)
        values, timestamps = list(values), list(timestamps)
        serde, topic = self._rows.spec.value_serde, self._rows.topic
        assert isinstance(serde, BufferedSerde)
        for index, key in enumerate(keys):
            if key is None or (failed is not None and index in failed):
                continue
            try:
                data = self._rows.spec.key_serde.serialize(topic, key)
                buffered: Buffered | None = None if data is None else self._rows.get(data)
                if buffered is not None:
                    values[index] = serde.stored(
                        self._rows.spec.name, topic, buffered.prior, data or b""
                    )
                    timestamps[index] = (
                        NO_TIMESTAMP  # The time of the earlier emission is not stored.
                    )
            except FAILURES as error:
                if failed is None:
                    raise
                failed[index] = error
        return values, timestamps

    def get_as_of(
        self,
        keys: Sequence[Any],  # noqa: ARG002 - the views' common signature
        timestamps: Sequence[int],  # noqa: ARG002 - as above
        *,
        failed: Failed | None = None,  # noqa: ARG002 - as above
    ) -> Rows:
        raise not_versioned(self._rows.spec.name)
