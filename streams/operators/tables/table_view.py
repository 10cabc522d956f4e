"""Views of tables (Kafka Streams: KTableValueGetter): operators read rows without a copy.

A table without a store computes its rows from its parent's. `init` binds a view to a node of a
task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidewheel.streams.operators.stateless import deciding
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none

NO_TIMESTAMP = -1

#: Values and timestamps of rows; None and -1 for a missing row.
Rows = tuple[list[Any], list[int]]

Failed = dict[int, Exception]


class BoundView(ABC):
    @property
    @abstractmethod
    def versioned(self) -> bool: ...

    @abstractmethod
    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        """Return the newest rows of many keys; the key None has no row.

        Args:
            key_bytes: The keys serialised by the store's serde, if available.
            failed: Receives errors by index; such a row counts as missing. None: they are raised.
        """

    @abstractmethod
    def get_as_of(
        self, keys: Sequence[Any], timestamps: Sequence[int], *, failed: Failed | None = None
    ) -> Rows:
        """Return each key's row as of its timestamp; only if `versioned`."""


class TableView(ABC):
    @abstractmethod
    def init(self, context: NodeContext) -> BoundView:
        """Bind the view; this node must be connected to the view's stores."""


def look_up(
    operator: Operator,
    view: BoundView,
    batch: RecordBatch,
    key_bytes: Sequence[bytes | None] | None = None,
) -> tuple[RecordBatch, list[Any], list[int]]:
    """Return the records with the value and timestamp of each row.

    Failed records go to the processing exception handler.
    """
    failed: Failed = {}
    values, timestamps = view.get_many(batch.keys, key_bytes, failed=failed)
    if not failed:
        return batch, values, timestamps
    for index in sorted(failed):
        operator.context.failed(batch, index, failed[index])
    indices = [index for index in range(len(batch)) if index not in failed]
    return batch.take(indices), [values[i] for i in indices], [timestamps[i] for i in indices]


def _record_error(failed: Failed | None, index: int, error: Exception) -> None:
    if failed is None:
        raise error
    failed.setdefault(index, error)


@dataclass(frozen=True, slots=True)
class StoreView(TableView):
    store_name: str

    def init(self, context: NodeContext) -> BoundView:
        store: Any = context.store(self.store_name)
        if store.buffer.spec.kind.value == "versioned":
            return _VersionedRows(store)
        return _StoreRows(store)


class _StoredRows(BoundView):
    def __init__(self, store: Any) -> None:
        self._store = store
        self._buffer = store.buffer
        self._serde = store.buffer.spec.key_serde
        kind = store.buffer.spec.kind.value
        #: If True, the store's key serde is that of the key without its window.
        self._is_windowed = "window" in kind
        self._is_session = kind == "session"

    def _stored_keys(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None,
        failed: Failed | None,
    ) -> Sequence[bytes | None]:
        """Return the store keys; None for a key that is None or does not serialise."""
        if key_bytes is not None and not (self._is_windowed or self._is_session):
            return key_bytes
        if not (self._is_windowed or self._is_session or has_none(keys)):
            try:
                every: list[bytes | None] = self._serde.serialize_batch(self._buffer.topic, keys)
            except FAILURES:
                pass
            else:
                return every
        stored: list[bytes | None] = []
        for index, key in enumerate(keys):
            data: bytes | None = None
            try:
                data = None if key is None else self._stored_key(key)
            except FAILURES as error:
                _record_error(failed, index, error)
            stored.append(data)
        return stored

    def _stored_key(self, key: Any) -> bytes:
        topic = self._buffer.topic
        data: bytes
        if self._is_windowed:
            data = self._store.disk_key(self._serde.serialize(topic, key.key), key.start)
        elif self._is_session:
            data = self._store.disk_key(self._serde.serialize(topic, key.key), key.start, key.end)
        else:
            data = self._serde.serialize(topic, key)
        return data


class _StoreRows(_StoredRows):
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
        buffer = self._buffer
        stored = self._stored_keys(keys, key_bytes, failed)
        present = [data for data in stored if data is not None]
        present_values = buffer.get_many(present)
        if len(present) == len(stored):
            values = present_values
        else:
            rows = dict(zip(present, present_values, strict=True))
            values = [None if data is None else rows[data] for data in stored]
        if not has_none(values):
            return values, list(map(buffer.timestamp, present))
        # Not the buffer's timestamp of a missing row: it keeps that of a recently deleted one.
        return values, [
            NO_TIMESTAMP if value is None or data is None else buffer.timestamp(data)
            for value, data in zip(values, stored, strict=True)
        ]

    def get_as_of(
        self,
        keys: Sequence[Any],  # noqa: ARG002 - the views' common signature
        timestamps: Sequence[int],  # noqa: ARG002 - as above
        *,
        failed: Failed | None = None,  # noqa: ARG002 - as above
    ) -> Rows:
        raise not_versioned(self._buffer.spec.name)


class _VersionedRows(_StoredRows):
    @property
    def versioned(self) -> bool:
        return True

    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        stored = self._stored_keys(keys, key_bytes, failed)
        return self._rows(stored, [None] * len(stored))

    def get_as_of(
        self, keys: Sequence[Any], timestamps: Sequence[int], *, failed: Failed | None = None
    ) -> Rows:
        return self._rows(self._stored_keys(keys, None, failed), timestamps)

    def _rows(self, stored: Sequence[bytes | None], as_of: Sequence[int | None]) -> Rows:
        values: list[Any] = []
        timestamps: list[int] = []
        for data, moment in zip(stored, as_of, strict=True):
            version = None if data is None else self._store.get_bytes(data, moment)
            values.append(None if version is None else version[0])
            timestamps.append(NO_TIMESTAMP if version is None else version[1])
        return values, timestamps


def not_versioned(table: str) -> TypeError:
    return TypeError(
        f"{table} keeps only the newest rows; read them with get_many, or make the table versioned"
    )


@dataclass(frozen=True, slots=True)
class FilterView(TableView):
    parent: TableView
    predicate: UserFunction
    negate: bool

    def init(self, context: NodeContext) -> BoundView:
        return _ComputedRows(self.parent.init(context), row_filter(self.predicate, self.negate))


@dataclass(frozen=True, slots=True)
class MapValuesView(TableView):
    parent: TableView
    function: UserFunction

    def init(self, context: NodeContext) -> BoundView:
        return _ComputedRows(self.parent.init(context), row_mapper(self.function))


#: (key, value) -> value of the computed row, or None.
RowFunction = Callable[[Any, Any], Any]


def row_filter(predicate: UserFunction, negate: bool) -> RowFunction:
    call, takes_key, keeps = deciding(predicate).call, predicate.takes_key, not negate

    def filtered(key: Any, value: Any) -> Any:
        holds = call(key, value) if takes_key else call(value)
        return value if holds is keeps else None

    return filtered


def row_mapper(function: UserFunction) -> RowFunction:
    call = function.call
    if function.takes_key:
        return call
    return lambda _key, value: call(value)


class _ComputedRows(BoundView):
    def __init__(self, parent: BoundView, function: RowFunction) -> None:
        self._parent = parent
        self._function = function

    @property
    def versioned(self) -> bool:
        return self._parent.versioned

    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        return self._computed(keys, self._parent.get_many(keys, key_bytes, failed=failed), failed)

    def get_as_of(
        self, keys: Sequence[Any], timestamps: Sequence[int], *, failed: Failed | None = None
    ) -> Rows:
        return self._computed(keys, self._parent.get_as_of(keys, timestamps, failed=failed), failed)

    def _computed(self, keys: Sequence[Any], rows: Rows, failed: Failed | None) -> Rows:
        values: list[Any] = []
        timestamps: list[int] = []
        for index, (key, value, timestamp) in enumerate(zip(keys, *rows, strict=True)):
            result: Any = None
            if value is not None:
                try:
                    result = self._function(key, value)
                except FAILURES as error:
                    _record_error(failed, index, error)
            values.append(result)
            timestamps.append(NO_TIMESTAMP if result is None else timestamp)
        return values, timestamps
