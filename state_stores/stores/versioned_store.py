"""Versioned key-value stores for users (KIP-889): reads as of any time in the history.

Rules are those of Kafka Streams' RocksDBVersionedStore. A version is valid from its timestamp
(inclusive) to that of the next newer one (exclusive). A deletion is a version. Puts older than the
history retention are ignored. A key's latest version never expires.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from tidewheel.state_stores.buffers.query_sources import QuerySource
from tidewheel.state_stores.buffers.versioned_buffer import (
    TIME_MAX,
    QueryVersions,
    Version,
    VersionedBuffer,
)
from tidewheel.state_stores.layout.key_schema import key_bytes
from tidewheel.state_stores.layout.segments import check_bounds, check_time
from tidewheel.state_stores.layout.versions import TOMBSTONE
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.state_stores.stores.task_store import TaskStore
from tidewheel.state_stores.stores.windowed import fully_frozen

K = TypeVar("K")
V = TypeVar("V")

#: Result of `put` for an ignored version, older than the history retention.
NOT_PUT: Final = -2


@fully_frozen
@dataclass(frozen=True, slots=True)
class VersionedRecord(Generic[V]):
    """A version of a key.

    Attributes:
        timestamp: Start of its validity (ms since the epoch), inclusive.
        valid_to: End of its validity, exclusive; None for the latest version.

    >>> VersionedRecord("v", 5, None).valid_to is None
    True
    """

    value: V
    timestamp: int
    valid_to: int | None


class Versions(Protocol):
    @property
    def horizon_ms(self) -> int: ...

    def latest(self, key: bytes) -> Version | None: ...

    def newest_first(
        self, key: bytes, newest: int = ..., oldest: int = ...
    ) -> Iterator[Version]: ...

    def oldest_first(
        self, key: bytes, newest: int = ..., oldest: int = ...
    ) -> Iterator[Version]: ...


def version_as_of(
    versions: Versions, key: bytes, as_of: int | None
) -> tuple[Any, int, int | None] | None:
    latest = versions.latest(key)
    if latest is None:
        return None
    timestamp, value = latest
    if as_of is None or timestamp <= as_of:
        return None if value is TOMBSTONE else (value, timestamp, None)
    if as_of < versions.horizon_ms:
        return None
    version = next(versions.newest_first(key, as_of), None)
    if version is None or version[1] is TOMBSTONE:
        return None
    timestamp, value = version
    return value, timestamp, next(versions.oldest_first(key, oldest=timestamp + 1))[0]


def version_history(
    versions: Versions, key: bytes, from_ms: int, to_ms: int
) -> Iterator[tuple[Any, int, int | None]]:
    """Yield (value, timestamp, valid_to) of versions valid between the times, newest first."""
    valid_to: int | None = None
    horizon = versions.horizon_ms
    for timestamp, value in versions.newest_first(key):
        if valid_to is not None and (valid_to <= horizon or valid_to <= from_ms):
            return
        readable = to_ms >= horizon or valid_to is None
        if timestamp <= to_ms and readable and value is not TOMBSTONE:
            yield value, timestamp, valid_to
        valid_to = timestamp


class ReadOnlyVersionedKeyValueStore(Generic[K, V]):
    """Reads of a versioned store. Times are ms since the epoch.

    Errors are those of `ReadOnlyKeyValueStore`.

    >>> def price_then(store: ReadOnlyVersionedKeyValueStore[str, float], item: str, at_ms: int) -> float | None:
    ...     version = store.get(item, as_of=at_ms)
    ...     return None if version is None else version.value
    """

    def __init__(
        self, spec: StoreSpec, topic: str, sources: Callable[[bytes], Iterable[Versions]]
    ) -> None:
        self.name = spec.name
        self._topic = topic
        self._key_serde: SerdePort = spec.key_serde
        self._sources = sources

    def get(self, key: K, as_of: int | None = None) -> VersionedRecord[V] | None:
        """Return the version of a key valid at `as_of`, or its latest one; None if there is none.

        If `as_of` is before stream time minus history retention, only the latest version can match.
        """
        data = self._key_bytes(key)
        if as_of is not None:
            check_bounds(self.name, as_of, as_of, ("as_of", "as_of"))
        for source in self._sources(data):
            version = version_as_of(source, data, as_of)
            if version is not None:
                return VersionedRecord(*version)
        return None

    def history(
        self, key: K, from_ms: int | None = None, to_ms: int | None = None
    ) -> Iterator[VersionedRecord[V]]:
        """Yield the versions of a key valid at any time from `from_ms` to `to_ms`, newest first.

        Both ends are inclusive; None is unbounded.
        """
        data = self._key_bytes(key)
        begin, end = 0 if from_ms is None else from_ms, TIME_MAX if to_ms is None else to_ms
        check_bounds(self.name, begin, end)
        return (
            VersionedRecord(*version)
            for source in self._sources(data)
            for version in version_history(source, data, begin, end)
        )

    def _key_bytes(self, key: K) -> bytes:
        return key_bytes(self._key_serde, self._topic, key, self.name)


class VersionedKeyValueStore(ReadOnlyVersionedKeyValueStore[K, V], TaskStore[VersionedBuffer]):
    """A versioned store of a task, for its processors.

    >>> from tidewheel import Processor, Stores, Topology
    >>> from tidewheel.testing import TopologyTestDriver
    >>> prices = Stores.versioned("prices", history_retention=1_000, key_serde=str, value_serde=float)
    >>> topology = Topology()
    >>> _ = topology.add_source("in", "orders", key_serde=str, value_serde=str)
    >>> _ = topology.add_processor("price", Processor, ["in"])
    >>> _ = topology.add_state_store(prices, ["price"])
    >>> with TopologyTestDriver(topology) as driver:
    ...     store = driver.get_state_store("prices")
    ...     store.put("tea", 2.5, timestamp=100), store.put("tea", 2.0, timestamp=50)
    ...     store.get("tea", as_of=99)
    ...     [version.value for version in store.history("tea", to_ms=99)]
    ...     store.delete("tea", timestamp=200), store.get("tea"), store.get("tea", as_of=199)
    ...     store.put("tea", 3.0, timestamp=2_000), store.put("tea", 1.0, timestamp=999)
    (None, 100)
    VersionedRecord(value=2.0, timestamp=50, valid_to=100)
    [2.0]
    (VersionedRecord(value=2.5, timestamp=100, valid_to=None), None, VersionedRecord(value=2.5, timestamp=100, valid_to=200))
    (None, -2)
    """

    def __init__(self, buffer: VersionedBuffer, now: Callable[[], int]) -> None:
        super().__init__(buffer.spec, buffer.topic, lambda _: (self.buffer,))
        self._attach(buffer, now, is_cached=False)

    @property
    def observed_stream_time_ms(self) -> int:
        return self.buffer.observed_stream_time_ms

    def observe(self, stream_time_ms: int) -> None:
        self.buffer.observe(stream_time_ms)

    def put(self, key: K, value: V | None, timestamp: int) -> int | None:
        """Set the version of a key that is valid from `timestamp` on; None is a deletion.

        Returns:
            End of its validity; None for the latest version; -2 if it is older than the history and
                was ignored.

        Raises:
            ValueError: The key is None, or the timestamp (ms since the epoch) is below 0.
            SerializationError: A serde rejects the key or the value.
        """
        return self.put_bytes(self._key_bytes(key), value, timestamp)

    def delete(self, key: K, timestamp: int) -> VersionedRecord[V] | None:
        """Delete a key from `timestamp` on, and return the version that was valid then.

        If the timestamp is older than the history, do nothing and return None.
        """
        data = self._key_bytes(key)
        check_time(self.name, timestamp, "timestamp")
        if timestamp < self.buffer.horizon_ms:
            self.expired_puts += 1
            return None
        version = self.get_bytes(data, timestamp)
        self.put_bytes(data, None, timestamp)
        return None if version is None else VersionedRecord(*version)

    def erase(self, key: bytes, tail: int = 0) -> int:
        """Turn all versions of a serialised key into deletions (`TaskStore.erase`)."""
        assert not tail, "the keys of versioned stores are not windowed"
        buffer = self.buffer
        timestamps = [time for time, value in buffer.oldest_first(key) if value is not TOMBSTONE]
        for timestamp in timestamps:
            buffer.put_version(key, None, timestamp)
        return len(timestamps)

    # Used by operators, with serialised keys.

    def put_bytes(self, key: bytes, value: Any, timestamp: int) -> int | None:
        check_time(self.name, timestamp, "timestamp")
        if timestamp < self.buffer.horizon_ms:
            self.expired_puts += 1
            return NOT_PUT
        valid_to = self.buffer.put_version(key, value, timestamp)
        self.buffer.observe(timestamp)
        return valid_to

    def get_bytes(self, key: bytes, as_of: int | None = None) -> tuple[Any, int, int | None] | None:
        return version_as_of(self.buffer, key, as_of)


def make_versioned_query_store(
    spec: StoreSpec, topic: str, sources: Callable[[], Sequence[QuerySource]]
) -> ReadOnlyVersionedKeyValueStore[Any, Any]:
    def of_key(key: bytes) -> Iterator[Versions]:
        return (QueryVersions(spec, topic, source, key) for source in sources())

    return ReadOnlyVersionedKeyValueStore(spec, topic, of_key)
