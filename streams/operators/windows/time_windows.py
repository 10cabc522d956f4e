"""Counts, reductions and aggregates of fixed windows: tumbling, hopping, calendar.

Rules: Kafka Streams' KStreamWindowAggregate. A null key is dropped. A null value counts.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, compress
from typing import Any, cast

from tidewheel.state_stores.layout.segments import SEGMENT_BYTES
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.operators.aggregate import CountsInPlace
from tidewheel.streams.operators.windows.windowed import (
    NO_TIME,
    Fold,
    WindowChange,
    WindowedOperator,
)
from tidewheel.streams.windows import EmitStrategy, FixedWindows, TimeWindows
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch


class TimeWindowAggregate(WindowedOperator):
    def __init__(
        self,
        store_name: str,
        windows: FixedWindows,
        fold: Fold,
        emit: EmitStrategy,
        windowed_serde: Any = None,
    ) -> None:
        super().__init__(store_name, windows, fold, emit, windowed_serde)
        self._windows = windows
        #: Latest window's start; the store's `observed_stream_time_ms` follows at the next commit.
        self._latest_start = NO_TIME

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        batch, key_bytes = self.with_key_bytes(batch)
        return self._fold_each(batch, key_bytes) if len(batch) else None

    def _fold_each(self, batch: RecordBatch, key_bytes: Sequence[bytes]) -> RecordBatch | None:
        starts = self._open_starts(batch)
        data = [
            [self._store.disk_key(key, start) for start in row]
            for key, row in zip(key_bytes, starts, strict=True)
        ]
        rows = list(chain.from_iterable(data))
        self._mark_new_windows(rows, list(chain.from_iterable(starts)))
        self.buffer.fetch(rows)

        def changes_of(index: int) -> list[WindowChange]:
            return [
                self._change(batch, index, start, at)
                for start, at in zip(starts[index], data[index], strict=True)
            ]

        return self.apply(batch, changes_of)

    def _mark_new_windows(self, data: Sequence[bytes], starts: Sequence[int]) -> None:
        """Mark windows later than any seen one as missing, which saves reading the database.

        A key range skips this: it has not seen the windows that the task wrote before it began.
        """
        latest = max(self._latest_start, self._segments.observed_stream_time_ms)
        if not starts or self._segments.in_range or max(starts) <= latest:
            return
        # Another operator of the cogroup may have written such a window since the last commit.
        cached = self.buffer.timestamps
        fresh = {
            at
            for at, start in zip(data, starts, strict=True)
            if start > latest and at not in cached
        }
        self.buffer.values.update(dict.fromkeys(fresh))
        self.buffer.timestamps.update(dict.fromkeys(fresh, NO_TIME))
        self._latest_start = max(starts)

    def _open_starts(self, batch: RecordBatch) -> list[Sequence[int]]:
        windows, late, first_late = self._windows, 0, 0
        letters = self.context.late_letter is not None
        column: list[Sequence[int]] = []
        turns = zip(batch.timestamps, self.times_of(batch), strict=True)
        for index, (timestamp, time) in enumerate(turns):
            try:
                starts = list(windows.starts_for(timestamp))
            except FAILURES as error:
                self.context.failed(batch, index, error)
                starts = []
            if starts and windows.closes_at(windows.end_of(starts[0])) <= time:
                open_ones = [
                    start for start in starts if windows.closes_at(windows.end_of(start)) > time
                ]
                first_late = first_late if late else index
                late += len(starts) - len(open_ones)
                if letters:
                    self.report_late_windows(batch, index, len(starts) - len(open_ones), time)
                starts = open_ones
            column.append(starts)
        if late:
            self.count_late_windows(late, batch, first_late)
        return column

    def _change(self, batch: RecordBatch, index: int, start: int, data: bytes) -> WindowChange:
        key, timestamp = batch.keys[index], batch.timestamps[index]
        old = self.buffer.get(data)
        if old is not None:
            timestamp = max(timestamp, self.buffer.timestamp(data))
        new = self._fold.added(key, batch.values[index], old)
        window = Windowed(key, start, self._windows.end_of(start))
        return WindowChange(window, data, new, timestamp, self.old_value(data))

    def closed(self, after: int, until: int) -> Iterable[WindowChange]:
        windows = self._windows
        first, last = windows.closed_starts(after - windows.grace_ms, until - windows.grace_ms)
        time_of = self._segments.layout.time_of
        return self.rows_between(
            first, last, lambda data: (start := time_of(data), windows.end_of(start))
        )


class TimeWindowCount(CountsInPlace, TimeWindowAggregate):
    """Count that changes rows directly in the buffer if each record is in one window."""

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        batch, key_bytes = self.with_key_bytes(batch)
        if not len(batch):
            return None
        windows = self._windows
        if (
            self._on_close
            or not isinstance(windows, TimeWindows)
            or windows.size_ms != windows.advance_ms
            or (windows.offset_ms and min(batch.timestamps) < windows.offset_ms)
        ):
            return self._fold_each(batch, key_bytes)
        size, before, offset = windows.size_ms, self._stream_time, windows.offset_ms
        starts = (
            [timestamp - (timestamp - offset) % size for timestamp in batch.timestamps]
            if offset
            else [timestamp - timestamp % size for timestamp in batch.timestamps]
        )
        data = self._disk_keys(key_bytes, starts)
        self._mark_new_windows(data, starts)
        if not self.counts_in_place(data):
            return self._fold_each(batch, key_bytes)
        positions = batch.position_times()
        self._stream_time = max(before, *batch.timestamps) if positions is None else positions[-1]
        if min(starts) + size + windows.grace_ms <= self._stream_time:
            times = self.running_times(batch, before) if positions is None else positions
            closed = size + windows.grace_ms
            open_ones = [start + closed > time for start, time in zip(starts, times, strict=True)]
            if not all(open_ones):
                self.count_late_windows(open_ones.count(False), batch, open_ones.index(False))
                if self.context.late_letter is not None:
                    for index in [at for at, is_open in enumerate(open_ones) if not is_open]:
                        self.report_late_windows(batch, index, 1, times[index])
                batch = batch.select(open_ones)
                starts, data = list(compress(starts, open_ones)), list(compress(data, open_ones))
                if not data:
                    return None
        output = self.count_in_place(batch.with_keys(self._windowed(batch, starts)), data)
        if output is not None:
            output.key_bytes, output.key_serde = self.forwarded_key_bytes(data)
        return output

    def _disk_keys(self, key_bytes: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
        edges: dict[int, tuple[bytes, bytes]] = {}
        for start in set(starts):
            empty = self._store.disk_key(b"", start)
            edges[start] = (empty[:SEGMENT_BYTES], empty[SEGMENT_BYTES:])
        if len(edges) == 1:
            ((before, after),) = edges.values()
            return [before + key + after for key in key_bytes]
        return [
            edges[start][0] + key + edges[start][1]
            for key, start in zip(key_bytes, starts, strict=True)
        ]

    def _windowed(self, batch: RecordBatch, starts: Sequence[int]) -> list[Any]:
        size = cast("TimeWindows", self._windows).size_ms
        return list(map(Windowed, batch.keys, starts, map(size.__add__, starts)))
