"""Key-value stores as users see them: get, put, ranges; over a commit buffer.

Keys and values are the user's types. Ranges are in the order of the serialised keys, both ends inclusive, as in Kafka
Streams; None leaves an end open. Writes are visible to this task at once, to everybody else after the commit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from operator import is_not
from typing import Any, Generic, TypeVar, cast

from state_stores.commit_buffer import CommitBuffer
from state_stores.envelope import unseal
from state_stores.errors import InvalidStateStoreError
from state_stores.key_schema import after, prefix_end
from state_stores.ports import Database, SerdePort
from state_stores.spec import StoreKind, StoreSpec

K = TypeVar("K")
V = TypeVar("V")

_is_not_none = partial(is_not, None)


@dataclass(frozen=True, slots=True)
class ValueAndTimestamp(Generic[V]):
    """A value and the timestamp (ms since the epoch) of the record that set it.

    >>> ValueAndTimestamp(3, 1_000).value
    3
    """

    value: V
    timestamp: int


class ReadOnlyKeyValueStore(Generic[K, V]):
    """Reads of a key-value store; `KeyValueStore` adds the writes.

    >>> def top(store: ReadOnlyKeyValueStore[str, int]) -> list[str]:
    ...     return [key for key, value in store.range("a", "m") if value > 10]
    """

    def __init__(self, spec: StoreSpec, topic: str) -> None:
        self.name = spec.name
        self._topic = topic
        self._key_serde: SerdePort = spec.key_serde

    # What the two kinds of backing (buffer, committed database) give.

    def _get(self, key: bytes) -> V | None:
        raise NotImplementedError

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, V]]:
        raise NotImplementedError

    def approximate_num_entries(self) -> int:
        """Return about how many keys the store holds."""
        raise NotImplementedError

    def _key_bytes(self, key: K) -> bytes:
        data = None if key is None else self._key_serde.serialize(self._topic, key)
        if data is None:
            raise ValueError(f"store {self.name}: a key must not be None")
        return data

    def _bound(self, key: K | None) -> bytes | None:
        return None if key is None else self._key_bytes(key)

    def _scan(self, lo: K | None, hi: K | None, *, reverse: bool) -> Iterator[tuple[K, V]]:
        upper = self._bound(hi)
        rows = self._iterate(
            self._bound(lo), None if upper is None else after(upper), reverse=reverse
        )
        decode = self._key_serde.deserialize
        return ((decode(self._topic, key), value) for key, value in rows)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        return self._get(self._key_bytes(key))

    def range(self, lo: K | None, hi: K | None) -> Iterator[tuple[K, V]]:
        """Yield (key, value) from `lo` to `hi`, both inclusive, in the order of the serialised keys."""
        return self._scan(lo, hi, reverse=False)

    def reverse_range(self, lo: K | None, hi: K | None) -> Iterator[tuple[K, V]]:
        """Yield the same as `range`, backwards."""
        return self._scan(lo, hi, reverse=True)

    def all(self) -> Iterator[tuple[K, V]]:
        """Yield every (key, value) in the order of the serialised keys."""
        return self._scan(None, None, reverse=False)

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Yield every (key, value), backwards."""
        return self._scan(None, None, reverse=True)

    def prefix_scan(
        self, prefix: Any, prefix_serde: SerdePort | None = None
    ) -> Iterator[tuple[K, V]]:
        """Yield (key, value) of keys whose bytes start with those of `prefix` (by `prefix_serde`, or the key serde)."""
        serde = prefix_serde or self._key_serde
        data = None if prefix is None else serde.serialize(self._topic, prefix)
        if data is None:
            raise ValueError(f"store {self.name}: a prefix must not be None")
        rows = self._iterate(data, prefix_end(data), reverse=False)
        return ((self._key_serde.deserialize(self._topic, key), value) for key, value in rows)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self.approximate_num_entries()

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.all())


class KeyValueStore(ReadOnlyKeyValueStore[K, V]):
    """A key-value store of a task, for its processors.

    `now` gives the timestamp of the record being processed: it becomes that of the changelog record.

    >>> def is_new(store: KeyValueStore[str, int], key: str) -> bool:
    ...     return store.put_if_absent(key, 1) is None
    """

    def __init__(
        self, buffer: CommitBuffer, now: Callable[[], int], *, may_hold_back: bool = False
    ) -> None:
        super().__init__(buffer.spec, buffer.topic)
        self.buffer = buffer
        #: What is held back from downstream; None while nobody asked for that.
        self.held: HeldBack | None = None
        self._may_hold_back = may_hold_back
        self._now = now

    def hold_back(self) -> "HeldBack | None":
        """Note changes from now on for the operator that flushes them downstream; None if this store has no cache."""
        if self._may_hold_back:
            self.held = HeldBack(self.buffer)
        return self.held

    def _get(self, key: bytes) -> V | None:
        value: V | None = self.buffer.get(key)
        return value

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, V]]:
        return (
            (key, value) for key, value, _ in self.buffer.iterate(lower, upper, reverse=reverse)
        )

    def approximate_num_entries(self) -> int:
        """Return about how many keys the store holds, uncommitted ones counted."""
        return self.buffer.approximate_num_entries()

    def _set(self, key: K, value: Any, timestamp: int) -> None:
        data = self._key_bytes(key)
        if self.held is None:
            self.buffer.put(data, value, timestamp)
            return
        existed = self.buffer.exists(data)
        self.buffer.put(data, value, timestamp)
        self.held.changed(key, data, existed=existed)

    def put(self, key: K, value: V | None) -> None:
        """Set a value; None deletes it."""
        self._set(key, value, self._now())

    def delete(self, key: K) -> V | None:
        """Delete a key and return the value it had."""
        value = self.get(key)
        if value is not None:
            self.put(key, None)
        return value

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set a value only if the key has none; return the value it had before."""
        existing = self.get(key)
        if existing is None:
            self.put(key, value)
        return existing

    def put_all(self, entries: Mapping[K, V | None] | Iterable[tuple[K, V | None]]) -> None:
        """Set many values."""
        pairs = (
            cast("Mapping[K, V | None]", entries).items()
            if isinstance(entries, Mapping)
            else entries
        )
        for key, value in pairs:
            self.put(key, value)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if self.delete(key) is None:
            raise KeyError(key)


class TimestampedKeyValueStore(KeyValueStore[K, ValueAndTimestamp[V]]):
    """A key-value store whose values are `ValueAndTimestamp`: the store of every aggregation and table.

    >>> from streams import StreamsBuilder
    >>> from streams.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> _ = builder.table("users", key_serde=str, value_serde=str, store="users")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     store = driver.get_state_store("users")
    ...     store.put("u1", ValueAndTimestamp("ann", 1_000))
    ...     store.get("u1")
    ValueAndTimestamp(value='ann', timestamp=1000)
    """

    def _get(self, key: bytes) -> ValueAndTimestamp[V] | None:
        value = self.buffer.get(key)
        return None if value is None else ValueAndTimestamp(value, self.buffer.timestamp(key))

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, ValueAndTimestamp[V]]]:
        rows = self.buffer.iterate(lower, upper, reverse=reverse)
        return ((key, ValueAndTimestamp(value, timestamp)) for key, value, timestamp in rows)

    def put(self, key: K, value: ValueAndTimestamp[V] | None) -> None:
        """Set a value and its timestamp; None deletes the key."""
        if value is None:
            self._set(key, None, self._now())
        elif isinstance(value, ValueAndTimestamp):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
            self._set(key, value.value, value.timestamp)
        else:
            raise TypeError(
                f"store {self.name} holds ValueAndTimestamp(value, timestamp), not {type(value).__name__}"
            )


class HeldBack:
    """What a cache holds back from downstream: the keys changed since they were forwarded last.

    For each key it is kept whether it had a value when it was forwarded last, because a row that came and went in
    between is not worth a tombstone. A commit takes all keys, in the order of their first change; a full cache takes
    the least recently changed ones, as Kafka Streams' does.
    """

    def __init__(self, buffer: CommitBuffer) -> None:
        self._buffer = buffer
        #: Serialised key -> key, in the order of their first change.
        self._keys: dict[bytes, Any] = {}
        #: Those that had a value before.
        self._existed: set[bytes] = set()
        self._key_bytes = 0
        #: Every change in order, as runs of serialised keys: who was changed least recently is found only when asked.
        self._changes: list[Sequence[bytes]] = []
        self._change_count = 0

    def __len__(self) -> int:
        return len(self._keys)

    def changed(self, key: Any, data: bytes, *, existed: bool) -> None:
        """Note a change of one key; `existed` tells whether it had a value before."""
        if data not in self._keys:
            self._key_bytes += len(data)
            if existed:
                self._existed.add(data)
        self._keys[data] = key
        self._note((data,))

    def changed_many(
        self, keys: Sequence[Any], data: Sequence[bytes], values: Mapping[bytes, Any]
    ) -> None:
        """Note changes of many keys before they are made; `values` has what every one of them has now."""
        fresh = list(set(data).difference(self._keys))
        if fresh:
            self._existed.update(compress(fresh, map(_is_not_none, map(values.__getitem__, fresh))))
            self._key_bytes += sum(map(len, fresh))
        self._keys.update(zip(data, keys, strict=True))
        self._note(data)

    def _note(self, data: Sequence[bytes]) -> None:
        self._changes.append(data)
        self._change_count += len(data)
        if self._change_count > 4 * len(self._keys) + 1_000:
            self._changes = list[Sequence[bytes]]((self._by_last_change(),))
            self._change_count = len(self._changes[0])

    def _by_last_change(self) -> list[bytes]:
        """Return the held keys, the least recently changed one first."""
        latest = dict.fromkeys(chain.from_iterable(map(reversed, reversed(self._changes))))
        return [data for data in reversed(latest) if data in self._keys]

    def take(self, limit: int | None = None) -> tuple[list[bytes], list[Any], set[bytes]]:
        """Remove and return the `limit` least recently changed keys (all of them for None).

        Returns serialised keys, keys, and which of the serialised ones had a value before.
        """
        if limit is None or limit >= len(self._keys):
            taken = list(self._keys), list(self._keys.values()), self._existed
            self._keys, self._existed, self._key_bytes = {}, set(), 0
            self._changes, self._change_count = [], 0
            return taken
        order = self._by_last_change()
        chosen = order[:limit]
        self._changes = list[Sequence[bytes]]((order[limit:],))
        self._change_count = len(order) - limit
        keys = [self._keys.pop(data) for data in chosen]
        self._key_bytes -= sum(map(len, chosen))
        existed = self._existed.intersection(chosen)
        self._existed -= existed
        return chosen, keys, existed

    @property
    def size_bytes(self) -> int:
        """Return the bytes held back: keys, and values by their last known mean size."""
        return self._key_bytes + int(len(self._keys) * self._buffer.mean_value_bytes)


class CommittedKeyValueStore(ReadOnlyKeyValueStore[K, V]):
    """The committed content of a store over the databases of several tasks, for interactive queries.

    `databases` gives the databases that are open now; it is asked anew for every call, so a store whose task moves
    away raises `InvalidStateStoreError` instead of answering from a closed database.
    """

    def __init__(
        self, spec: StoreSpec, topic: str, databases: Callable[[], list[Database]]
    ) -> None:
        super().__init__(spec, topic)
        self._spec = spec
        self._databases = databases

    def _open(self) -> list[Database]:
        databases = self._databases()
        if not databases:
            raise InvalidStateStoreError(
                f"store {self.name} has no running task in this process; "
                "wait until the application is RUNNING, or ask the process that owns the key"
            )
        return databases

    def _decode(self, data: bytes) -> Any:
        payload, timestamp = unseal(data)
        value = self._spec.value_serde.deserialize(self._topic, payload)
        return (
            ValueAndTimestamp(value, timestamp)
            if self._spec.kind is StoreKind.TIMESTAMPED_KEY_VALUE
            else value
        )

    def _get(self, key: bytes) -> V | None:
        for database in self._open():
            (data,) = database.get_many(self.name, [key])
            if data is not None:
                value: V = self._decode(data)
                return value
        return None

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, V]]:
        # Task by task, as Kafka Streams' composite iterator: keys are in order inside a task, not across tasks.
        for database in self._open():
            for key, data in database.iterate(self.name, lower, upper, reverse=reverse):
                yield key, self._decode(data)

    def approximate_num_entries(self) -> int:
        """Return about how many keys the open tasks hold together."""
        return sum(database.approximate_num_entries(self.name) for database in self._open())
