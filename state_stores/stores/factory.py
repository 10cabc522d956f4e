"""Factory of stores from their spec."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.buffers.headers_buffer import HeadersBuffer, SegmentedHeadersBuffer
from tidewheel.state_stores.buffers.lru_buffer import LruBuffer
from tidewheel.state_stores.buffers.query_sources import QuerySource, committed
from tidewheel.state_stores.buffers.segmented_buffer import SegmentedBuffer
from tidewheel.state_stores.buffers.ttl_buffer import TtlBuffer
from tidewheel.state_stores.buffers.versioned_buffer import VersionedBuffer
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.layout.stored_values import StoredValues
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.custom_store_host import CustomStore
from tidewheel.state_stores.stores.headers_queries import (
    QueryKeyValueStoreWithHeaders,
    ReadOnlySessionStoreWithHeaders,
    ReadOnlyWindowStoreWithHeaders,
    segments_with_headers,
)
from tidewheel.state_stores.stores.key_value_store import (
    KeyValueStore,
    QueryKeyValueStore,
    ReadOnlyKeyValueStore,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
)
from tidewheel.state_stores.stores.segmented_store import list_query_segments
from tidewheel.state_stores.stores.session_store import (
    ReadOnlySessionStore,
    SessionStore,
    SessionStoreWithHeaders,
)
from tidewheel.state_stores.stores.versioned_store import (
    ReadOnlyVersionedKeyValueStore,
    VersionedKeyValueStore,
    make_versioned_query_store,
)
from tidewheel.state_stores.stores.window_store import (
    ReadOnlyWindowStore,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    WindowStore,
)

Store = (
    KeyValueStore[Any, Any]
    | WindowStore[Any, Any]
    | SessionStore[Any, Any]
    | VersionedKeyValueStore[Any, Any]
    | CustomStore
)

ReadOnlyStore = (
    ReadOnlyKeyValueStore[Any, Any]
    | ReadOnlyWindowStore[Any, Any]
    | ReadOnlySessionStore[Any, Any]
    | ReadOnlyVersionedKeyValueStore[Any, Any]
)


def make_store(
    spec: StoreSpec,
    database: Database,
    *,
    topic: str,
    read_cache_bytes: int,
    now: Callable[[], int],
    is_cached: bool,
    in_range: bool = False,
) -> Store:
    match spec.kind:
        case StoreKind.KEY_VALUE:
            buffer = _key_value_buffer(spec)(
                spec, database, topic=topic, read_cache_bytes=read_cache_bytes
            )
            return KeyValueStore[Any, Any](buffer, now, is_cached=is_cached)
        case StoreKind.TIMESTAMPED_KEY_VALUE:
            buffer = _key_value_buffer(spec)(
                spec, database, topic=topic, read_cache_bytes=read_cache_bytes
            )
            if spec.keeps_headers:
                return TimestampedKeyValueStoreWithHeaders[Any, Any](
                    buffer, now, is_cached=is_cached
                )
            return TimestampedKeyValueStore[Any, Any](buffer, now, is_cached=is_cached)
        case StoreKind.VERSIONED:
            return VersionedKeyValueStore[Any, Any](
                VersionedBuffer(spec, database, topic=topic, read_cache_bytes=read_cache_bytes), now
            )
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW | StoreKind.SESSION:
            segmented = SegmentedHeadersBuffer if spec.keeps_headers else SegmentedBuffer
            rows = segmented(
                spec, database, topic=topic, read_cache_bytes=read_cache_bytes, in_range=in_range
            )
            return _segmented_store(spec)(rows, now, is_cached=is_cached)
        case StoreKind.CUSTOM:
            raise AssertionError(f"store {spec.name} is in no database, but in a CustomStoreHost")


def _segmented_store(spec: StoreSpec) -> type[WindowStore[Any, Any] | SessionStore[Any, Any]]:
    if spec.kind is StoreKind.SESSION:
        return SessionStoreWithHeaders if spec.keeps_headers else SessionStore
    if spec.kind is StoreKind.WINDOW:
        return WindowStore
    return TimestampedWindowStoreWithHeaders if spec.keeps_headers else TimestampedWindowStore


def _key_value_buffer(spec: StoreSpec) -> type[CommitBuffer]:
    if spec.keeps_headers:
        assert spec.max_entries is spec.ttl_ms is None, "a bounded store keeps no headers"
        return HeadersBuffer
    if spec.max_entries is not None:
        assert spec.ttl_ms is None, "a store is bounded in one way"
        return LruBuffer
    return CommitBuffer if spec.ttl_ms is None else TtlBuffer


def make_committed_store(
    spec: StoreSpec,
    topic: str,
    databases: Callable[[], Sequence[Database]],
    *,
    with_headers: bool = False,
) -> ReadOnlyStore:
    return make_query_store(spec, topic, committed(spec, databases), with_headers=with_headers)


def make_query_store(
    spec: StoreSpec,
    topic: str,
    sources: Callable[[], Sequence[QuerySource]],
    *,
    with_headers: bool = False,
) -> ReadOnlyStore:
    """Return a read-only store over several tasks; every query calls `sources` for their rows.

    Raises:
        InvalidStateStoreError: It is a custom store, or lacks the headers asked for.
    """
    spec = replace(spec, value_serde=StoredValues(spec.value_serde, spec.name))
    if with_headers:
        return _with_headers(spec, topic, sources)
    match spec.kind:
        case StoreKind.KEY_VALUE | StoreKind.TIMESTAMPED_KEY_VALUE:
            return QueryKeyValueStore[Any, Any](spec, topic, sources)
        case StoreKind.VERSIONED:
            return make_versioned_query_store(spec, topic, sources)
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW:
            rows = list_query_segments(spec, topic, sources)
            return ReadOnlyWindowStore[Any, Any](spec, topic, rows)
        case StoreKind.SESSION:
            rows = list_query_segments(spec, topic, sources)
            return ReadOnlySessionStore[Any, Any](spec, topic, rows)
        case StoreKind.CUSTOM:
            raise InvalidStateStoreError(
                f"store {spec.name} is a custom one: only the processors of its task can read it, because it shows "
                "uncommitted changes; have a processor forward the rows to a topic, or to a table with a store"
            )


def _with_headers(
    spec: StoreSpec, topic: str, sources: Callable[[], Sequence[QuerySource]]
) -> ReadOnlyStore:
    if not spec.keeps_headers:
        raise InvalidStateStoreError(
            f"store {spec.name} keeps no headers; set dsl_store_format='HEADERS' or Materialized(headers=True) for a table,"
            " use Stores.timestamped_key_value_with_headers and the like for a processor, or query without headers"
        )
    match spec.kind:
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW:
            rows = segments_with_headers(spec, topic, sources)
            return ReadOnlyWindowStoreWithHeaders[Any, Any](spec, topic, rows)
        case StoreKind.SESSION:
            rows = segments_with_headers(spec, topic, sources)
            return ReadOnlySessionStoreWithHeaders[Any, Any](spec, topic, rows)
        case _:
            return QueryKeyValueStoreWithHeaders[Any, Any](spec, topic, sources)
