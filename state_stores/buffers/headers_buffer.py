"""Commit buffers of stores that keep each row's headers (KIP-1271).

Values are stored behind their headers. `get` returns the bare value; iterated rows have a
`WithHeaders` as value.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import repeat
from typing import Any, TypeVar

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, Drained
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer
from tidewheel.state_stores.layout.envelope import (
    unwrap_batch_with_headers,
    unwrap_with_headers,
    wrap_with_headers,
)
from tidewheel.state_stores.layout.headers import (
    Headers,
    HeadersSerde,
    WithHeaders,
    checked_headers,
    split_headers,
)
from tidewheel.state_stores.layout.stored_values import StoredValues
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

T = TypeVar("T")


class HeadersBuffer(CommitBuffer):
    """Buffer of rows with headers; the next `put` stores `record_headers`."""

    _unwrap = staticmethod(unwrap_with_headers)
    _unwrap_batch = staticmethod(unwrap_batch_with_headers)
    _wrap_batch = staticmethod(wrap_with_headers)

    def __init__(self, spec: StoreSpec, database: Database, **options: Any) -> None:
        super().__init__(spec, database, **options)
        self._serde = HeadersSerde(StoredValues(spec.value_serde, spec.name))
        self.record_headers: Headers = ()
        self._of_deletes: dict[bytes, Headers] = {}

    def get(self, key: bytes) -> Any:
        stored: WithHeaders | None = self.peek(key)
        return None if stored is None else stored.value

    def are_decoded(self, keys: Any) -> bool:  # noqa: ARG002 - the signature of any buffer
        """Return False, so callers don't use `values` directly: they include headers."""
        return False

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        headers = self.record_headers
        super().put(key, None if value is None else WithHeaders(value, headers), timestamp)
        if headers and not self.exists(key):
            self._of_deletes[key] = headers
        else:
            self._of_deletes.pop(key, None)

    def check_value(self, value: Any) -> None:
        super().check_value(None if value is None else WithHeaders(value, ()))

    def put_all(
        self,
        keys: Sequence[bytes],  # noqa: ARG002 - the signature of any buffer
        values: Sequence[Any],  # noqa: ARG002 - as above
        timestamps: Sequence[int],  # noqa: ARG002 - as above
    ) -> bool:
        """Return False to demand single puts: each row has the headers of its own record."""
        return False

    def with_record_headers(
        self, headers: Iterable[Headers] | None, function: Callable[..., T]
    ) -> Callable[..., T]:
        of_each: Iterator[Headers] = repeat(()) if headers is None else iter(headers)

        def with_headers(*arguments: Any) -> T:
            self.record_headers = next(of_each)
            return function(*arguments)

        return with_headers

    def _drained(
        self, keys: list[bytes], values: list[bytes | None], timestamps: list[int]
    ) -> Drained:
        drained = super()._drained(keys, values, timestamps)
        rows = drained.disk_rows
        of_rows: list[Headers] = []
        plain: list[bytes | None] = []
        for key, value in zip(keys, values, strict=True):
            headers, data = (
                (self._of_deletes.get(key, ()), None) if value is None else split_headers(value)
            )
            of_rows.append(headers)
            plain.append(data)
        return replace(
            drained,
            values=plain,
            disk_rows=SortedRows(keys, self._wrap_batch(values, timestamps))
            if rows is None
            else rows,
            row_headers=of_rows if any(of_rows) else None,
        )

    def _clean(self) -> None:
        super()._clean()
        self._of_deletes.clear()


class SegmentedHeadersBuffer(HeadersBuffer, SegmentedBuffer): ...


def set_record_headers(buffer: CommitBuffer, value: Any, kind: type[Any], store: str) -> None:
    """Set the headers of the next put; raise `TypeError` if `value` is not of `kind`."""
    assert isinstance(buffer, HeadersBuffer), "the store keeps headers"
    if value is not None and not isinstance(value, kind):
        parts = ", ".join(field.name for field in fields(kind))
        raise TypeError(f"store {store} holds {kind.__name__}({parts}), not {type(value).__name__}")
    buffer.record_headers = () if value is None else checked_headers(value.headers, store)


def values_of(rows: Iterable[tuple[T, WithHeaders, int]]) -> Iterator[tuple[T, Any, int]]:
    """Yield iterated rows with their bare values.

    >>> list(values_of([("key", WithHeaders(3, ()), 1_000)]))
    [('key', 3, 1000)]
    """
    return ((key, stored.value, timestamp) for key, stored, timestamp in rows)
