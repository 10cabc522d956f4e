"""Counts, reductions and aggregations of a grouped stream.

Rules: Kafka Streams' KStreamAggregate and KStreamReduce. A null key or value is dropped. A result
has the larger timestamp of the old result and the record.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from operator import le
from typing import Any, Final

from tidewheel.streams.operators.stateful import MaterializedOperator, previous_values
from tidewheel.streams.serdes import Serdes
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

_INT64: Final = Serdes.int64()


class StreamAggregate(MaterializedOperator):
    times_null_values = False

    def __init__(
        self,
        store_name: str,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
    ) -> None:
        super().__init__(store_name)
        self._initializer = initializer
        self._aggregator = aggregator

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=True)
        batch, key_bytes = self.with_key_bytes(batch)
        return self.update_each(batch, key_bytes, self._update) if len(batch) else None

    def _update(self, key: Any, value: Any, data: bytes, timestamp: int) -> tuple[Any, int]:
        aggregate = self.buffer.get(data)
        if aggregate is None:
            return self._aggregator(key, value, self._initializer()), timestamp
        return self._aggregator(key, value, aggregate), max(self.buffer.timestamp(data), timestamp)


class StreamReduce(MaterializedOperator):
    times_null_values = False

    def __init__(self, store_name: str, reducer: Callable[[Any, Any], Any]) -> None:
        super().__init__(store_name)
        self._reducer = reducer

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=True)
        batch, key_bytes = self.with_key_bytes(batch)
        return self.update_each(batch, key_bytes, self._update) if len(batch) else None

    def _update(self, _key: Any, value: Any, data: bytes, timestamp: int) -> tuple[Any, int]:
        old = self.buffer.get(data)
        if old is None:
            return value, timestamp
        return self._reducer(old, value), max(self.buffer.timestamp(data), timestamp)


class CountsInPlace(MaterializedOperator):
    def counts_in_place(self, data: Sequence[bytes]) -> bool:
        """Return True if the buffer has these keys' counts as ints, not only as stored bytes."""
        buffer = self.buffer
        if buffer.spec.value_serde is not _INT64 or not buffer.are_decoded(()):
            return False
        if buffer.all_decoded:
            return True
        buffer.fetch(data)
        return buffer.are_decoded(data)

    def count_in_place(self, batch: RecordBatch, data: list[bytes]) -> RecordBatch | None:
        if self.cache is not None:
            self._count_cached(batch, data)
            return None
        return self._count_each(batch, data)

    def _count_cached(self, batch: RecordBatch, key_bytes: list[bytes]) -> None:
        assert self.cache is not None
        fresh = self.cache.changed_many(batch.keys, key_bytes)
        counts, timestamps = self.buffer.values, self.buffer.timestamps
        if self.sends_old_values:
            unheld = set(key_bytes).difference(self.cached_old_values)
            self.cached_old_values.update((data, counts[data]) for data in unheld)
        self.record_change_headers(batch, range(len(batch)), key_bytes)
        if self._in_order(batch):
            timestamps.update(zip(key_bytes, batch.timestamps, strict=True))
            for data in key_bytes:
                counts[data] = (counts[data] or 0) + 1
        else:
            for data, timestamp in zip(key_bytes, batch.timestamps, strict=True):
                count = counts[data]
                if count is None:
                    counts[data] = 1
                    timestamps[data] = timestamp
                else:
                    counts[data] = count + 1
                    if timestamp > timestamps[data]:  # noqa: PLR1730 - `max` is slower
                        timestamps[data] = timestamp
        self.buffer.mark_changed(key_bytes, max(batch.timestamps), fresh)

    def _count_each(self, batch: RecordBatch, key_bytes: list[bytes]) -> RecordBatch:
        counts, timestamps = self.buffer.values, self.buffer.timestamps
        before: dict[bytes, Any] | None = None
        if self.sends_old_values:
            self.buffer.fetch(key_bytes)
            before = {data: counts[data] for data in key_bytes}
        results: list[int] = []
        result_timestamps = batch.timestamps
        if self._in_order(batch):
            try:
                _count_on(counts, key_bytes, results)
            except KeyError:
                done = len(results)
                timestamps.update(zip(key_bytes[:done], batch.timestamps, strict=False))
                self.buffer.fetch(key_bytes)
                if batch.timestamps[0] >= self.buffer.newest_ms:
                    _count_on(counts, key_bytes[done:], results)
                else:
                    result_timestamps = batch.timestamps[:done]
            timestamps.update(zip(key_bytes, result_timestamps, strict=False))
        else:
            self.buffer.fetch(key_bytes)
            result_timestamps = []
        if len(results) < len(key_bytes):
            done = len(results)
            for data, timestamp in zip(key_bytes[done:], batch.timestamps[done:], strict=True):
                count = counts[data]
                latest = timestamp
                if count is None:
                    count = 0
                elif timestamps[data] > timestamp:
                    latest = timestamps[data]
                count += 1
                counts[data] = count
                timestamps[data] = latest
                results.append(count)
                result_timestamps.append(latest)
        self.buffer.mark_changed(key_bytes, max(batch.timestamps))
        old_counts = None if before is None else previous_values(before, key_bytes, results)
        return self.changes(batch, results, result_timestamps, old_counts)

    def _in_order(self, batch: RecordBatch) -> bool:
        """Return True if no record can be older than its key's result: a check without look-ups."""
        stamps = batch.timestamps
        return stamps[0] >= self.buffer.newest_ms and all(map(le, stamps, islice(stamps, 1, None)))


def _count_on(counts: dict[bytes, Any], key_bytes: Sequence[bytes], results: list[int]) -> None:
    """Count keys until one is missing in the buffer; then raise `KeyError`."""
    add = results.append
    for data in key_bytes:
        count = counts[data] = (counts[data] or 0) + 1
        add(count)


class StreamCount(CountsInPlace):
    times_null_values = False

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=True)
        batch, key_bytes = self.with_key_bytes(batch)
        if not len(batch):
            return None
        if self.counts_in_place(key_bytes):
            return self.count_in_place(batch, key_bytes)
        return self.update_each(batch, key_bytes, self._update)

    def _update(self, _key: Any, _value: Any, data: bytes, timestamp: int) -> tuple[Any, int]:
        old = self.buffer.get(data)
        return (
            (1, timestamp)
            if old is None
            else (old + 1, max(self.buffer.timestamp(data), timestamp))
        )
