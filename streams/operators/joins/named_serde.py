"""A serde bound to a topic name: converts columns and reports each item's error."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.operators.tables.table_view import Failed
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none


class NamedSerde:
    def __init__(self, serde: SerdePort, topic: str) -> None:
        self._serde = serde
        self._topic = topic

    def __call__(self, value: Any) -> bytes:
        data = self._serde.serialize(self._topic, value)
        if data is None:
            raise ValueError(f"{self._serde!r} made None of a {type(value).__name__}")
        return data

    def read(self, data: bytes) -> Any:
        return self._serde.deserialize(self._topic, data)

    def write_all(self, values: Sequence[Any], failed: Failed) -> list[bytes | None]:
        """Serialise each value but None; store errors in `failed` by index."""
        every = partial(self._serde.serialize_batch, self._topic)
        return _column(every, self, values, failed)

    def read_all(self, data: Sequence[bytes | None], failed: Failed) -> list[Any]:
        """Deserialise each item but None; store errors in `failed` by index."""
        every = partial(self._serde.deserialize_batch, self._topic)
        return _column(every, self.read, data, failed, may_be_none=True)

    def keys_of(self, batch: RecordBatch) -> Sequence[bytes | None] | None:
        """Return the batch's serialised keys if this serde made them, else None."""
        return batch.key_bytes if batch.key_serde is self._serde else None

    def attach_keys(self, batch: RecordBatch, key_bytes: list[bytes | None]) -> RecordBatch:
        """Store serialised keys in the batch for a sink with the same serde."""
        if self._serde.canonical:
            batch.key_bytes, batch.key_serde = key_bytes, self._serde
        return batch


def _column(
    every: Callable[[list[Any]], list[Any]],
    convert: Callable[[Any], Any],
    items: Sequence[Any],
    failed: Failed,
    *,
    may_be_none: bool = False,
) -> list[Any]:
    """Convert all items in one call; if that fails, one by one."""
    present = [item for item in items if item is not None]
    try:
        converted = every(present)
    except FAILURES:
        converted = None
    if converted is not None and (may_be_none or not has_none(converted)):
        return converted if len(converted) == len(items) else filled_in(items, converted)
    column: list[Any] = [None] * len(items)
    for index, item in enumerate(items):
        if item is not None:
            try:
                column[index] = convert(item)
            except FAILURES as error:
                failed.setdefault(index, error)
    return column


def filled_in(items: Sequence[Any], values: Iterable[Any]) -> list[Any]:
    """Return `values` with a None for each None of `items`.

    >>> filled_in(["a", None, "b"], [1, 2])
    [1, None, 2]
    """
    iterator = iter(values)
    return [None if item is None else next(iterator) for item in items]
