"""Queries of rows with their headers (Kafka Streams' KIP-1356)."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidewheel.state_stores.buffers.query_sources import QuerySource
from tidewheel.state_stores.buffers.segmented_buffer import QuerySegments
from tidewheel.state_stores.errors import StoredRowError
from tidewheel.state_stores.layout.envelope import unwrap_with_headers
from tidewheel.state_stores.layout.headers import HeadersSerde
from tidewheel.state_stores.layout.stored_values import key_hash, read_row
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.state_stores.stores.key_value_store import (
    QueryKeyValueStore,
    ValueTimestampHeaders,
)
from tidewheel.state_stores.stores.segmented_store import Segments, list_query_segments
from tidewheel.state_stores.stores.session_store import AggregationWithHeaders, ReadOnlySessionStore
from tidewheel.state_stores.stores.window_store import ReadOnlyWindowStore

K = TypeVar("K")
V = TypeVar("V")


class QueryKeyValueStoreWithHeaders(QueryKeyValueStore[K, ValueTimestampHeaders[V]]):
    def _decode(self, key: bytes, data: bytes, ended_at: int) -> ValueTimestampHeaders[V] | None:
        payload, timestamp = unwrap_with_headers(data)
        if timestamp <= ended_at:
            return None
        try:
            value = HeadersSerde(self._spec.value_serde).deserialize(self._topic, payload)
        except StoredRowError as error:
            raise error.of_key(key_hash(key)) from error.__cause__
        return ValueTimestampHeaders(value.value, timestamp, value.headers)


class ReadOnlyWindowStoreWithHeaders(ReadOnlyWindowStore[K, ValueTimestampHeaders[V]]):
    def _query_value(self, value: Any, timestamp: int) -> ValueTimestampHeaders[V]:
        return ValueTimestampHeaders(value.value, timestamp, value.headers)


class ReadOnlySessionStoreWithHeaders(ReadOnlySessionStore[K, AggregationWithHeaders[V]]):
    def _query_value(self, value: Any, timestamp: int) -> AggregationWithHeaders[V]:  # noqa: ARG002 - the signature of any store
        return AggregationWithHeaders(value.value, value.headers)


class _SegmentsWithHeaders(QuerySegments):
    def _decode(self, disk_key: bytes, data: bytes) -> tuple[Any, int]:
        payload, timestamp = unwrap_with_headers(data)
        decode = HeadersSerde(self._spec.value_serde).deserialize
        key = self.layout.key_of(disk_key)
        return read_row(self._spec.name, decode, self._topic, payload, key), timestamp


def segments_with_headers(
    spec: StoreSpec, topic: str, sources: Callable[[], Sequence[QuerySource]]
) -> Callable[[], Sequence[Segments]]:
    return list_query_segments(spec, topic, sources, _SegmentsWithHeaders)
