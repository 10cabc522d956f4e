"""Commit buffers of stores that keep each row's headers (KIP-1271): of keys and values, and of windows and sessions.

Values stand in them behind their headers, serialised when they are put. `get` gives the value alone, as any buffer's
does, so operators work as on any store; rows that are iterated have a `WithHeaders` in the place of the value. On disk
and in the changelog a row without headers is what it is in any other store; the changelog has the headers in the Kafka
record, where Kafka Streams reads and writes them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import repeat
from typing import Any, TypeVar

from state_stores.commit_buffer import CommitBuffer, Drained
from state_stores.envelope import (
    seal_with_headers,
    unseal_batch_with_headers,
    unseal_with_headers,
)
from state_stores.headers import (
    Headers,
    HeadersSerde,
    WithHeaders,
    checked_headers,
    split_headers,
)
from state_stores.ports import Database
from state_stores.rows import SortedRows
from state_stores.segmented_buffer import SegmentedBuffer
from state_stores.spec import StoreSpec
from state_stores.stored_values import StoredValues

T = TypeVar("T")


class HeadersBuffer(CommitBuffer):
    """Buffered access to a family whose rows keep headers.

    Attributes:
        record_headers: Headers of the record that is being processed: those of what is put next.
    """

    _unseal = staticmethod(unseal_with_headers)
    _unseal_batch = staticmethod(unseal_batch_with_headers)
    _seal_batch = staticmethod(seal_with_headers)

    def __init__(self, spec: StoreSpec, database: Database, **options: Any) -> None:
        super().__init__(spec, database, **options)
        self._serde = HeadersSerde(StoredValues(spec.value_serde, spec.name))
        self.record_headers: Headers = ()
        #: Headers of the records that deleted a key, for the changelog.
        self._of_deletes: dict[bytes, Headers] = {}

    def get(self, key: bytes) -> Any:
        """Return the value, or None."""
        found: WithHeaders | None = self.peek(key)
        return None if found is None else found.value

    def are_decoded(self, keys: Any) -> bool:  # noqa: ARG002 - the signature of any buffer
        """Return False: values stand here behind their headers, not to be written directly."""
        return False

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Set a value with the headers of the record at hand, or delete it with None."""
        headers = self.record_headers
        super().put(key, None if value is None else WithHeaders(value, headers), timestamp)
        if headers and not self.exists(key):
            self._of_deletes[key] = headers
        else:
            self._of_deletes.pop(key, None)

    def check_value(self, value: Any) -> None:
        """Raise the serde's error if a value does not serialise."""
        super().check_value(None if value is None else WithHeaders(value, ()))

    def put_all(
        self,
        keys: Sequence[bytes],  # noqa: ARG002 - the signature of any buffer
        values: Sequence[Any],  # noqa: ARG002 - as above
        timestamps: Sequence[int],  # noqa: ARG002 - as above
    ) -> bool:
        """Return False: each has the headers of its own record."""
        return False

    def following(
        self, headers: Iterable[Headers] | None, function: Callable[..., T]
    ) -> Callable[..., T]:
        """Return the function that is called once per record, with that record's headers told first (None: of none)."""
        of_each: Iterator[Headers] = repeat(()) if headers is None else iter(headers)

        def told(*arguments: Any) -> T:
            self.record_headers = next(of_each)
            return function(*arguments)

        return told

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
            disk_rows=SortedRows(keys, self._seal_batch(values, timestamps))
            if rows is None
            else rows,
            row_headers=of_rows if any(of_rows) else None,
        )

    def _clean(self) -> None:
        super()._clean()
        self._of_deletes.clear()


class SegmentedHeadersBuffer(HeadersBuffer, SegmentedBuffer):
    """Buffered access to a family of a window or session store whose rows keep headers."""


def tell_headers(buffer: CommitBuffer, value: Any, kind: type[Any], store: str) -> None:
    """Tell the buffer of a store the headers of what is put next: a value of this kind with `headers`, or None, which deletes.

    Raises `TypeError`, which names the store, if it is neither.
    """
    assert isinstance(buffer, HeadersBuffer), "the store keeps headers"
    if value is not None and not isinstance(value, kind):
        parts = ", ".join(each.name for each in fields(kind))
        raise TypeError(f"store {store} holds {kind.__name__}({parts}), not {type(value).__name__}")
    buffer.record_headers = () if value is None else checked_headers(value.headers, store)


def values_of(rows: Iterable[tuple[T, WithHeaders, int]]) -> Iterator[tuple[T, Any, int]]:
    """Yield iterated rows with their values alone.

    >>> list(values_of([("key", WithHeaders(3, ()), 1_000)]))
    [('key', 3, 1000)]
    """
    return ((key, kept.value, timestamp) for key, kept, timestamp in rows)
