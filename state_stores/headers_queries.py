"""Queries of committed rows with their headers, of stores that keep them (Kafka Streams' KIP-1356)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from state_stores.envelope import unseal_with_headers
from state_stores.errors import StoredRowError
from state_stores.headers import HeadersSerde
from state_stores.key_value_store import CommittedKeyValueStore, ValueTimestampHeaders
from state_stores.ports import Database
from state_stores.segmented_buffer import CommittedSegments, SegmentRow
from state_stores.segmented_store import Segments, committed_sources
from state_stores.session_store import AggregationWithHeaders, ReadOnlySessionStore
from state_stores.spec import StoreSpec
from state_stores.stored_values import key_hash, read_row
from state_stores.window_store import ReadOnlyWindowStore

K = TypeVar("K")
V = TypeVar("V")


class CommittedKeyValueStoreWithHeaders(CommittedKeyValueStore[K, ValueTimestampHeaders[V]]):
    """A committed key-value store whose values are `ValueTimestampHeaders`."""

    def _decode(self, key: bytes, data: bytes, ended_at: int) -> ValueTimestampHeaders[V] | None:
        payload, timestamp = unseal_with_headers(data)
        if timestamp <= ended_at:
            return None
        try:
            found = HeadersSerde(self._spec.value_serde).deserialize(self._topic, payload)
        except StoredRowError as error:
            raise error.of_key(key_hash(key)) from error.__cause__
        return ValueTimestampHeaders(found.value, timestamp, found.headers)


class ReadOnlyWindowStoreWithHeaders(ReadOnlyWindowStore[K, ValueTimestampHeaders[V]]):
    """A committed window store whose values are `ValueTimestampHeaders`."""

    def _shown(self, value: Any, timestamp: int) -> ValueTimestampHeaders[V]:
        return ValueTimestampHeaders(value.value, timestamp, value.headers)


class ReadOnlySessionStoreWithHeaders(ReadOnlySessionStore[K, AggregationWithHeaders[V]]):
    """A committed session store whose values are `AggregationWithHeaders`."""

    def _shown(self, value: Any, timestamp: int) -> AggregationWithHeaders[V]:  # noqa: ARG002 - the signature of any store
        return AggregationWithHeaders(value.value, value.headers)


class _SegmentsWithHeaders(CommittedSegments):
    """Committed rows with a `WithHeaders` in the place of the value."""

    def _rows(self, lower: bytes, upper: bytes, *, reverse: bool) -> Iterator[SegmentRow]:
        decode = HeadersSerde(self._spec.value_serde).deserialize
        for disk_key, data in self._database.iterate(
            self._spec.name, lower, upper, reverse=reverse
        ):
            payload, timestamp = unseal_with_headers(data)
            key = self.layout.key_of(disk_key)
            yield disk_key, read_row(self._spec.name, decode, self._topic, payload, key), timestamp


def segments_with_headers(
    spec: StoreSpec, topic: str, databases: Callable[[], list[Database]]
) -> Callable[[], Sequence[Segments]]:
    """Return a function that gives the committed rows, with headers, of the tasks that are open."""
    return committed_sources(spec, topic, databases, _SegmentsWithHeaders)
