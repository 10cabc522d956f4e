"""Views of tables: what an operator looks rows up in, without keeping a copy.

A table with a store is read from it; a filter or a mapper without one computes its rows from its parent's, as Kafka
Streams' KTableValueGetter does. A view is a recipe, part of the topology; `init` binds it to one node of one task.
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

#: The timestamp of a row that is not there.
NO_TIMESTAMP = -1

#: Values and timestamps of rows: None and -1 where there is none.
Rows = tuple[list[Any], list[int]]

#: Takes the index and the error of each key whose look-up failed.
Failed = dict[int, Exception]


class BoundView(ABC):
    """A view of one task's part of a table."""

    @property
    @abstractmethod
    def versioned(self) -> bool:
        """Return whether rows can be looked up as of a timestamp."""

    @abstractmethod
    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        """Return the newest rows of many keys.

        Args:
            keys: The keys; None has no row.
            key_bytes: Their serialised form by the serde of the table's store, if it is known.
            failed: Takes the errors of look-ups that fail (a serde, a user's function), whose rows then count as
                absent. Without it the first one is raised.
        """

    @abstractmethod
    def get_as_of(
        self, keys: Sequence[Any], timestamps: Sequence[int], *, failed: Failed | None = None
    ) -> Rows:
        """Return the rows of many keys as they were at one timestamp each; only where `versioned`."""


class TableView(ABC):
    """How to look up rows of a table; made at build time, bound by `init` to a node of a task."""

    @abstractmethod
    def init(self, context: NodeContext) -> BoundView:
        """Return the view of the task a node runs in; the node is connected to the view's stores."""


def look_up(
    operator: Operator,
    view: BoundView,
    batch: RecordBatch,
    key_bytes: Sequence[bytes | None] | None = None,
) -> tuple[RecordBatch, list[Any], list[int]]:
    """Look up the row of each record's key.

    A record whose look-up fails goes to the processing handler and is left out. Returns the records, and for each the
    row's value and timestamp (None and -1 where there is none).
    """
    failed: Failed = {}
    values, timestamps = view.get_many(batch.keys, key_bytes, failed=failed)
    if not failed:
        return batch, values, timestamps
    for index in sorted(failed):
        operator.context.failed(batch, index, failed[index])
    kept = [index for index in range(len(batch)) if index not in failed]
    return batch.take(kept), [values[i] for i in kept], [timestamps[i] for i in kept]


def _note(failed: Failed | None, index: int, error: Exception) -> None:
    if failed is None:
        raise error
    failed.setdefault(index, error)


# -- views of stores ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreView(TableView):
    """The rows of a store."""

    store_name: str

    def init(self, context: NodeContext) -> BoundView:
        """Return the view of the task's store."""
        store: Any = context.store(self.store_name)
        if store.buffer.spec.kind.value == "versioned":
            return _VersionedRows(store)
        return _StoreRows(store)


class _StoredRows(BoundView):
    """Rows of a store, by the serialised form of their keys."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._buffer = store.buffer
        self._serde = store.buffer.spec.key_serde
        kind = store.buffer.spec.kind.value
        #: The keys of windowed tables are `Windowed`, and the store's serde is that of the keys inside.
        self._is_windowed = "window" in kind
        self._is_session = kind == "session"

    def _stored_keys(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None,
        failed: Failed | None,
    ) -> Sequence[bytes | None]:
        """Return the keys as the store has them; None for a key that is None or does not serialise."""
        if key_bytes is not None and not (self._is_windowed or self._is_session):
            return key_bytes
        if not (self._is_windowed or self._is_session or has_none(keys)):
            try:
                every: list[bytes | None] = self._serde.serialize_batch(self._buffer.topic, keys)
            except FAILURES:  # whatever a serde raises, the key behind it is found one by one
                pass
            else:
                return every
        stored: list[bytes | None] = []
        for index, key in enumerate(keys):
            data: bytes | None = None
            try:
                data = None if key is None else self._stored_key(key)
            except FAILURES as error:  # whatever a serde raises; the caller decides
                _note(failed, index, error)
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
        found = buffer.get_many(present)
        if len(present) == len(stored):
            values = found
        else:
            rows = dict(zip(present, found, strict=True))
            values = [None if data is None else rows[data] for data in stored]
        if not has_none(values):
            return values, list(map(buffer.timestamp, present))
        # A row that was deleted since the last commit has a timestamp in the buffer, but it is not there.
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
            found = None if data is None else self._store.get_bytes(data, moment)
            values.append(None if found is None else found[0])
            timestamps.append(NO_TIMESTAMP if found is None else found[1])
        return values, timestamps


def not_versioned(table: str) -> TypeError:
    """Return the error for who asks for older rows than a table keeps."""
    return TypeError(
        f"{table} keeps only the newest rows; look them up with get_many, or make the table versioned"
    )


# -- computed views ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilterView(TableView):
    """The rows of a table for which a predicate holds (or does not)."""

    parent: TableView
    predicate: UserFunction
    negate: bool

    def init(self, context: NodeContext) -> BoundView:
        """Return the view over the task's view of the parent."""
        return _ComputedRows(self.parent.init(context), row_filter(self.predicate, self.negate))


@dataclass(frozen=True, slots=True)
class MapValuesView(TableView):
    """The rows of a table, mapped."""

    parent: TableView
    function: UserFunction

    def init(self, context: NodeContext) -> BoundView:
        """Return the view over the task's view of the parent."""
        return _ComputedRows(self.parent.init(context), row_mapper(self.function))


#: (key, value that is not None) -> value of the row it becomes, or None for no row.
RowFunction = Callable[[Any, Any], Any]


def row_filter(predicate: UserFunction, negate: bool) -> RowFunction:
    """Return what a filter makes of a row: the row's value, or None if it is rejected."""
    call, takes_key, wanted = deciding(predicate).call, predicate.takes_key, not negate

    def filtered(key: Any, value: Any) -> Any:
        holds = call(key, value) if takes_key else call(value)
        return value if holds is wanted else None

    return filtered


def row_mapper(function: UserFunction) -> RowFunction:
    """Return what a mapper makes of a row."""
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
                except FAILURES as error:  # user code; the caller decides
                    _note(failed, index, error)
            values.append(result)
            timestamps.append(NO_TIMESTAMP if result is None else timestamp)
        return values, timestamps
