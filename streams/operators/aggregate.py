"""count, reduce and aggregate over a grouped stream.

Rules are those of Kafka Streams' KStreamAggregate and KStreamReduce: a null key or value is dropped; the result's
timestamp is the larger of the old result's and the record's; a None result deletes the key.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from operator import le
from typing import Any

from tidewheel.streams.operators.stateful import MaterializedOperator, previous_values
from tidewheel.streams.serdes import Serdes
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch


class StreamAggregate(MaterializedOperator):
    """Folds the values of a key into an aggregate."""

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
        """Return the new aggregates."""
        batch = self.without_nulls(batch, values=True)
        batch, key_bytes = self.with_key_bytes(batch)
        return self.update_each(batch, key_bytes, self._update) if len(batch) else None

    def _update(self, key: Any, value: Any, data: bytes, timestamp: int) -> tuple[Any, int]:
        aggregate = self.buffer.get(data)
        if aggregate is None:
            return self._aggregator(key, value, self._initializer()), timestamp
        return self._aggregator(key, value, aggregate), max(self.buffer.timestamp(data), timestamp)


class StreamReduce(MaterializedOperator):
    """Combines the values of a key; the first one is the first result."""

    times_null_values = False

    def __init__(self, store_name: str, reducer: Callable[[Any, Any], Any]) -> None:
        super().__init__(store_name)
        self._reducer = reducer

    def process(self, batch: RecordBatch) -> Output:
        """Return the new results."""
        batch = self.without_nulls(batch, values=True)
        batch, key_bytes = self.with_key_bytes(batch)
        return self.update_each(batch, key_bytes, self._update) if len(batch) else None

    def _update(self, _key: Any, value: Any, data: bytes, timestamp: int) -> tuple[Any, int]:
        old = self.buffer.get(data)
        if old is None:
            return value, timestamp
        return self._reducer(old, value), max(self.buffer.timestamp(data), timestamp)


class CountsInPlace(MaterializedOperator):
    """An operator that counts where the counts stand."""

    def counts_in_place(self, data: Sequence[bytes]) -> bool:
        """Return whether the counts of these store keys may be changed where they stand, as soon as they are known.

        Counts of the usual serde stand decoded in the buffer; only what a processor of the user's put there may not.
        """
        buffer = self.buffer
        if buffer.spec.value_serde is not Serdes.int64() or not buffer.are_decoded(()):
            return False
        if buffer.all_decoded:
            return True
        buffer.fetch(data)
        return buffer.are_decoded(data)

    def count_in_place(self, batch: RecordBatch, data: list[bytes]) -> RecordBatch | None:
        """Count each record of the batch under its store key; return what is to be forwarded now."""
        if self.held is not None:
            self._count_held(batch, data)
            return None
        return self._count_each(batch, data)

    def _count_held(self, batch: RecordBatch, key_bytes: list[bytes]) -> None:
        assert self.held is not None
        fresh = self.held.changed_many(batch.keys, key_bytes)
        counts, timestamps = self.buffer.values, self.buffer.timestamps
        if self.sends_old_values:
            unheld = set(key_bytes).difference(self.held_old)
            self.held_old.update((data, counts[data]) for data in unheld)
        self.note_headers(batch, range(len(batch)), key_bytes)
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
                    if timestamp > timestamps[data]:  # noqa: PLR1730 - the hot loop, as below
                        timestamps[data] = timestamp
        self.buffer.touched(key_bytes, max(batch.timestamps), fresh)

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
            except KeyError:  # it is not known yet
                done = len(results)
                timestamps.update(zip(key_bytes[:done], batch.timestamps, strict=False))
                self.buffer.fetch(key_bytes)
                if (
                    batch.timestamps[0] >= self.buffer.newest_ms
                ):  # what was read is no later, either
                    _count_on(counts, key_bytes[done:], results)
                else:  # it is counted below, with all that follow
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
        self.buffer.touched(key_bytes, max(batch.timestamps))
        old_counts = None if before is None else previous_values(before, key_bytes, results)
        return self.changes(batch, results, result_timestamps, old_counts)

    def _in_order(self, batch: RecordBatch) -> bool:
        """Return whether no record is older than the result it goes into, told without a look at each pair."""
        stamps = batch.timestamps
        return stamps[0] >= self.buffer.newest_ms and all(map(le, stamps, islice(stamps, 1, None)))


def _count_on(counts: dict[bytes, Any], key_bytes: Sequence[bytes], results: list[int]) -> None:
    """Count each key and append its count; raises `KeyError` at the first that is not known, with all before it counted."""
    add = results.append
    for data in key_bytes:
        count = counts[data] = (counts[data] or 0) + 1
        add(count)


class StreamCount(CountsInPlace):
    """Counts the records of a key."""

    times_null_values = False

    def process(self, batch: RecordBatch) -> Output:
        """Return the new counts."""
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
