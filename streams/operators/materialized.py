"""What operators with a store share: serialised keys, updates, and caches that hold results back from downstream."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from state_stores.commit_buffer import CommitBuffer
from state_stores.key_value_store import HeldBack, TimestampedKeyValueStore
from tasks.processing.operator import NodeContext, Operator
from tasks.processing.record import Headers
from tasks.processing.record_batch import RecordBatch, has_none

#: (key, value, the key's serialised form, timestamp) -> (new value, its timestamp); reads what it needs itself.
Update = Callable[[Any, Any, bytes, int], tuple[Any, int]]


class MaterializedOperator(Operator):
    """An operator that keeps a table in a timestamped store and forwards its changes.

    With a cache only the last change per key is forwarded, when the cache is flushed; without one, every change.
    """

    buffer: CommitBuffer

    def __init__(self, store_name: str) -> None:
        self._store_name = store_name
        #: What the cache holds back, or None without a cache.
        self.held: HeldBack | None = None
        self._held_headers: dict[bytes, Headers] = {}

    def init(self, context: NodeContext) -> None:
        """Look up the store."""
        super().init(context)
        store: TimestampedKeyValueStore[Any, Any] = context.store(self._store_name)
        self.buffer = store.buffer
        self.held = store.hold_back()

    def with_key_bytes(self, batch: RecordBatch) -> tuple[RecordBatch, list[bytes]]:
        """Return the records whose key serialises, and those keys; others went to the processing handler.

        No key may be None.
        """
        serde = self.buffer.spec.key_serde
        if batch.key_bytes is not None and batch.key_serde is serde:
            return batch, cast(
                "list[bytes]", batch.key_bytes
            )  # no key is None, so none of its bytes is
        try:
            return batch, cast("list[bytes]", serde.serialize_batch(self.buffer.topic, batch.keys))
        except Exception:  # noqa: BLE001 - whatever a serde raises, the record behind it is found one by one
            return self._serialize_singly(batch)

    def _serialize_singly(self, batch: RecordBatch) -> tuple[RecordBatch, list[bytes]]:
        kept: list[int] = []
        key_bytes: list[bytes] = []
        for index, key in enumerate(batch.keys):
            try:
                data = self.buffer.spec.key_serde.serialize(self.buffer.topic, key)
                assert data is not None, (
                    f"the key serde of store {self._store_name} made None of a key"
                )
            except Exception as error:  # noqa: BLE001 - the processing handler decides
                self.context.failed(batch, index, error)
            else:
                kept.append(index)
                key_bytes.append(data)
        return batch.take(kept), key_bytes

    def update_each(
        self, batch: RecordBatch, key_bytes: Sequence[bytes], update: Update
    ) -> RecordBatch | None:
        """Apply `update` record by record, store the results, and return those to forward now."""
        buffer, held = self.buffer, self.held
        buffer.fetch(key_bytes)
        values: list[Any] = []
        timestamps: list[int] = []
        failed: set[int] = set()
        rows = zip(batch.keys, batch.values, key_bytes, batch.timestamps, strict=True)
        for index, (key, value, data, timestamp) in enumerate(rows):
            try:
                result, result_timestamp = update(key, value, data, timestamp)
                existed = held is not None and buffer.exists(data)
                buffer.put(data, result, result_timestamp)
            except Exception as error:  # noqa: BLE001 - user code or its result's serde: the processing handler decides
                self.context.failed(batch, index, error)
                failed.add(index)
                continue
            if held is not None:
                self.hold(batch, index, data, existed=existed)
            else:
                values.append(result)
                timestamps.append(result_timestamp)
        if held is not None:
            return None
        if failed:
            batch = batch.select([index not in failed for index in range(len(batch))])
        return self.changes(batch, values, timestamps)

    def changes(self, batch: RecordBatch, values: list[Any], timestamps: list[int]) -> RecordBatch:
        """Return the batch with the results of the table in place of its values."""
        output = batch.with_values(values)
        output.timestamps = timestamps
        return output

    def hold(self, batch: RecordBatch, index: int, data: bytes, *, existed: bool) -> None:
        """Hold one change back from downstream."""
        assert self.held is not None
        self.held.changed(batch.keys[index], data, existed=existed)
        self.note_headers(batch, (index,), (data,))

    def note_headers(
        self, batch: RecordBatch, indices: Sequence[int], key_bytes: Sequence[bytes]
    ) -> None:
        """Keep the headers of the latest change of each key, for the flush."""
        if batch.headers is None and not self._held_headers:
            return
        for index, data in zip(indices, key_bytes, strict=True):
            headers = batch.headers_of(index)
            if headers:
                self._held_headers[data] = headers
            else:
                self._held_headers.pop(data, None)

    def flush(self, limit: int | None = None) -> RecordBatch | None:
        """Return the held-back changes: the last value of each key."""
        if self.held is None or not len(self.held):
            return None
        key_bytes, keys, existed = self.held.take(limit)
        values = self.buffer.get_many(key_bytes)
        serde = self.buffer.spec.key_serde
        batch = RecordBatch(
            keys,
            values,
            list(map(self.buffer.timestamps.__getitem__, key_bytes)),
            self._take_headers(key_bytes),
            range(len(keys)),
            None,
            key_bytes=list[bytes | None](key_bytes) if serde.canonical else None,
            key_serde=serde if serde.canonical else None,
        )
        if has_none(values):
            # A row that came and went between two flushes is nothing downstream has seen.
            batch = batch.select(
                [
                    value is not None or data in existed
                    for value, data in zip(values, key_bytes, strict=True)
                ]
            )
        return batch

    def _take_headers(self, key_bytes: Sequence[bytes]) -> list[Headers] | None:
        if not self._held_headers:
            return None
        return [self._held_headers.pop(data, ()) for data in key_bytes]

    def held_back(self) -> tuple[int, int]:
        """Return (keys, bytes) held back from downstream."""
        return (0, 0) if self.held is None else (len(self.held), self.held.size_bytes)

    def without_nulls(self, batch: RecordBatch, *, values: bool) -> RecordBatch:
        """Return the records that have a key (and a value, if asked); the others are dropped and counted."""
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
        kept = batch.select(keep)
        self.context.dropped(len(batch) - len(kept), "null key or value")
        return kept
