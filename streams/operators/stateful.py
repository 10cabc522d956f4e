"""Base classes of operators with a store: serialised keys, updates and the record cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.headers_buffer import HeadersBuffer
from tidewheel.state_stores.buffers.record_cache import RecordCache
from tidewheel.state_stores.buffers.ttl_buffer import TtlBuffer
from tidewheel.state_stores.stores.key_value_store import TimestampedKeyValueStore
from tidewheel.state_stores.stores.versioned_store import NOT_PUT, VersionedKeyValueStore
from tidewheel.streams.operators.versioned_rows import VersionedRows
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, OperatorSupplier
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none

#: (key, value, serialised key, timestamp) -> (new value, its timestamp).
Update = Callable[[Any, Any, bytes, int], tuple[Any, int]]


class TableOperator(Operator):
    #: Set if a child node needs old values in each change.
    sends_old_values = False


@dataclass(frozen=True, slots=True)
class OldValuesSupplier(OperatorSupplier):
    def __call__(self) -> Operator:
        operator = OperatorSupplier.__call__(self)
        assert isinstance(operator, TableOperator), "only tables have old values"
        operator.sends_old_values = True
        return operator


class MaterializedOperator(TableOperator):
    """An operator that stores a table and forwards its changes.

    With a cache it forwards the last change per key at each flush, else every change. A change's
    old value is the value forwarded before it.
    """

    needs_whole_task = ""

    buffer: CommitBuffer

    #: True to forward nothing if a row was absent and stays absent; needs old values.
    skips_absent = False

    def __init__(self, store_name: str) -> None:
        self._store_name = store_name
        #: The store's record cache; None if it has none or this operator may not use it.
        self.cache: RecordCache | None = None
        self._cached_headers: dict[bytes, Headers] = {}
        #: False for later operators of a cogroup: the first flushes the cache that they share.
        self._flushes = True
        #: Same object as `buffer` if the store is versioned.
        self._versions: VersionedRows | None = None
        #: Value of each cached row when last forwarded.
        self.cached_old_values: dict[bytes, Any] = {}

    def init(self, context: NodeContext) -> None:
        super().init(context)
        store: TimestampedKeyValueStore[Any, Any] = context.store(self._store_name)
        self.buffer = store.buffer
        if isinstance(store, VersionedKeyValueStore):
            self._versions = VersionedRows(store)
            self.buffer = cast("CommitBuffer", self._versions)
        self._flushes = store.cache is None
        self.cache = store.open_cache() if self.uses_cache() else None
        if self.cache is not None:
            self.cached_old_values, self._cached_headers = self.cache.old_values, self.cache.headers
            self.cache.keeps_old_values = self.sends_old_values

    def uses_cache(self) -> bool:
        return True

    def with_key_bytes(self, batch: RecordBatch) -> tuple[RecordBatch, list[bytes]]:
        """Return the records whose key serialises, and the serialised keys; no key may be None.

        The others go to the processing exception handler.
        """
        serde = self.buffer.spec.key_serde
        if batch.key_bytes is not None and batch.key_serde == serde:
            return batch, cast("list[bytes]", batch.key_bytes)
        try:
            return batch, cast("list[bytes]", serde.serialize_batch(self.buffer.topic, batch.keys))
        except FAILURES:
            return self._serialize_singly(batch)

    def _serialize_singly(self, batch: RecordBatch) -> tuple[RecordBatch, list[bytes]]:
        indices: list[int] = []
        key_bytes: list[bytes] = []
        for index, key in enumerate(batch.keys):
            try:
                data = self.buffer.spec.key_serde.serialize(self.buffer.topic, key)
                assert data is not None, (
                    f"the key serde of store {self._store_name} made None of a key"
                )
            except FAILURES as error:
                self.context.failed(batch, index, error)
            else:
                indices.append(index)
                key_bytes.append(data)
        return batch.take(indices), key_bytes

    def update_each(
        self, batch: RecordBatch, key_bytes: Sequence[bytes], update: Update
    ) -> RecordBatch | None:
        """Apply `update` record by record; return the changes to forward now."""
        buffer, cache, sends_old = self.buffer, self.cache, self.sends_old_values
        update = self._with_context(batch, update)
        buffer.fetch(key_bytes)
        values: list[Any] = []
        timestamps: list[int] = []
        old_values: list[Any] = []
        latest: list[bool] = []
        left_out: set[int] = set()
        rows = zip(batch.keys, batch.values, key_bytes, batch.timestamps, strict=True)
        for index, (key, value, data, timestamp) in enumerate(rows):
            old = None
            try:
                result, result_timestamp = update(key, value, data, timestamp)
                if sends_old:
                    old = buffer.get(data)
                    if self.skips_absent and old is None and result is None:
                        left_out.add(index)
                        continue
                existed = cache is not None and buffer.exists(data)
                valid_to = self._put(
                    data,
                    result,
                    # As in Kafka Streams, a cached deletion gets the record's own time.
                    result_timestamp if cache is None or result is not None else timestamp,
                )
            except FAILURES as error:
                self.context.failed(batch, index, error)
                left_out.add(index)
                continue
            if valid_to == NOT_PUT:
                left_out.add(index)
                self.context.expired(
                    f"older than the history of store {self._store_name}", batch, index
                )
                self.report_late(
                    batch, index, f"is older than the history of store {self._store_name}"
                )
            elif cache is not None:
                self.cache_change(batch, index, data, existed=existed, old=old)
            else:
                values.append(result)
                timestamps.append(result_timestamp)
                old_values.append(old)
                latest.append(valid_to is None)
        if cache is not None:
            return None
        if left_out:
            batch = batch.select([index not in left_out for index in range(len(batch))])
        output = self.changes(batch, values, timestamps, old_values if sends_old else None)
        output.latest = None if all(latest) else latest
        return output

    def _with_context(self, batch: RecordBatch, update: Update) -> Update:
        """Wrap `update` for stores that need the record's time (TTL) or headers."""
        buffer = self.buffer
        if isinstance(buffer, HeadersBuffer):
            return buffer.with_record_headers(batch.headers, update)
        if not isinstance(buffer, TtlBuffer):
            return update

        def timed(key: Any, value: Any, data: bytes, timestamp: int) -> tuple[Any, int]:
            buffer.observe(timestamp)
            return update(key, value, data, timestamp)

        return timed

    def report_late(self, batch: RecordBatch, index: int, why: str) -> None:
        letter = self.context.late_letter
        if letter is not None:
            letter(batch, index, f"timestamp {batch.timestamps[index]} {why}")

    def _put(self, data: bytes, value: Any, timestamp: int) -> int | None:
        """Store a row; in a versioned table, return the next version's time (ms), None if newest.

        `NOT_PUT`: the row is older than the history retention and was ignored.
        """
        if self._versions is not None:
            return self._versions.put(data, value, timestamp)
        self.buffer.put(data, value, timestamp)
        return None

    def changes(
        self,
        batch: RecordBatch,
        values: list[Any],
        timestamps: list[int],
        old_values: list[Any] | None = None,
    ) -> RecordBatch:
        output = batch.with_values(values, old_values)
        output.timestamps = timestamps
        output.latest = None  # Without versions every row is the newest.
        return output

    def cache_change(
        self, batch: RecordBatch, index: int, data: bytes, *, existed: bool, old: Any = None
    ) -> None:
        assert self.cache is not None
        if self.sends_old_values:
            self.cached_old_values.setdefault(data, old)
        self.cache.changed(batch.keys[index], data, existed=existed)
        self.record_change_headers(batch, (index,), (data,))

    def record_change_headers(
        self, batch: RecordBatch, indices: Sequence[int], key_bytes: Sequence[bytes]
    ) -> None:
        if batch.headers is None and not self._cached_headers:
            return
        for index, data in zip(indices, key_bytes, strict=True):
            headers = batch.headers_of(index)
            if headers:
                self._cached_headers[data] = headers
            else:
                self._cached_headers.pop(data, None)

    def flush(self, limit: int | None = None) -> RecordBatch | None:
        if self.cache is None or not self._flushes or not len(self.cache):
            return None
        key_bytes, keys, new = self.cache.pop(limit, in_order=self.flushes_in_order)
        values = self.buffer.get_many(key_bytes)
        forwarded, serde = self.forwarded_key_bytes(key_bytes)
        batch = RecordBatch(
            keys,
            values,
            list(map(self.buffer.timestamps.__getitem__, key_bytes)),
            self._pop_headers(key_bytes),
            range(len(keys)),
            None,
            old_values=[self.cached_old_values.pop(data) for data in key_bytes]
            if self.sends_old_values
            else None,
            key_bytes=forwarded,
            key_serde=serde,
        )
        if has_none(values):
            # Created and deleted between two flushes: never forwarded.
            batch = batch.select(
                [
                    value is not None or data not in new
                    for value, data in zip(values, key_bytes, strict=True)
                ]
            )
        return batch

    def forwarded_key_bytes(self, data: Sequence[bytes]) -> tuple[list[bytes | None] | None, Any]:
        """Return serialised keys with their serde; (None, None) if children can't reuse them."""
        serde = self.buffer.spec.key_serde
        return (list(data), serde) if serde.canonical else (None, None)

    def _pop_headers(self, key_bytes: Sequence[bytes]) -> list[Headers] | None:
        if not self._cached_headers:
            return None
        return [self._cached_headers.pop(data, ()) for data in key_bytes]

    def may_flush(self) -> bool:
        return self.cache is not None and self._flushes

    def cache_size(self) -> tuple[int, int]:
        """Return the cached (keys, bytes)."""
        if self.cache is None or not self._flushes:
            return (0, 0)
        old_bytes = int(len(self.cached_old_values) * self.buffer.mean_value_bytes)
        return (len(self.cache), self.cache.size_bytes + old_bytes)

    def mark_committed(self) -> None:
        if self.cache is not None:
            self.cache.mark_committed()

    def without_nulls(self, batch: RecordBatch, *, values: bool) -> RecordBatch:
        """Drop and count records without a key or, with `values`, without a value."""
        keep: list[bool] | None = None
        if has_none(batch.keys):
            keep = [key is not None for key in batch.keys]
        if values and has_none(batch.values):
            keep = [
                value is not None and (keep is None or keep[index])
                for index, value in enumerate(batch.values)
            ]
        if keep is None:
            return batch
        remaining = batch.select(keep)
        reason = "null key or value" if values else "null key"
        self.context.dropped(len(batch) - len(remaining), reason, batch, keep.index(False))
        return remaining


def previous_values(
    before: dict[bytes, Any], key_bytes: Sequence[bytes], values: Sequence[Any]
) -> list[Any]:
    """Return the value that each update replaced; `before` has the values before the batch.

    >>> previous_values({b"a": 1, b"b": None}, [b"a", b"b", b"a"], [2, 3, 4])
    [1, None, 2]
    """
    old_values: list[Any] = []
    for data, value in zip(key_bytes, values, strict=True):
        old_values.append(before[data])
        before[data] = value
    return old_values
