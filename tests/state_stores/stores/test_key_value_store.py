"""Key-value stores read as sorted dictionaries; a cache forwards each change once."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidewheel import Serdes, SerializationError
from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.key_value_store import (
    CommittedKeyValueStore,
    KeyValueStore,
    TimestampedKeyValueStore,
    ValueAndTimestamp,
)

NOW = 42
KEYS = st.sampled_from(["", "a", "aa", "ab", "b", "ba", "é", "z"])
TOPIC = "app-store-changelog"


def spec_of(kind: StoreKind = StoreKind.KEY_VALUE) -> StoreSpec:
    return StoreSpec(name="store", kind=kind, key_serde=Serdes.string(), value_serde=Serdes.int64())


def opened(kind: type[Any] = KeyValueStore, *, cached: bool = False) -> Any:
    spec = spec_of(
        StoreKind.TIMESTAMPED_KEY_VALUE if kind is TimestampedKeyValueStore else StoreKind.KEY_VALUE
    )
    buffer = CommitBuffer(spec, InMemoryDatabase(["store"]), topic=TOPIC, read_cache_bytes=1 << 20)
    store = kind(buffer, lambda: NOW, is_cached=cached)
    assert (store.open_cache() is not None) == cached
    return store


def commit(store: KeyValueStore[Any, Any]) -> None:
    store.buffer._database.write({"store": store.buffer.drain().stored}, {})
    store.buffer.applied()


class StoreMachine(RuleBasedStateMachine):
    """Every operation, compared with a dictionary sorted by serialised key."""

    @initialize(cached=st.booleans())
    def open(self, *, cached: bool) -> None:
        self.store: KeyValueStore[str, int] = opened(cached=cached)
        self.model: dict[str, int] = {}

    def rows(self) -> list[tuple[str, int]]:
        return sorted(self.model.items(), key=lambda row: row[0].encode())

    @rule(key=KEYS, value=st.none() | st.integers(-9, 9))
    def put(self, key: str, value: int | None) -> None:
        self.store.put(key, value)
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == self.model.pop(key, None)

    @rule(key=KEYS, value=st.integers(-9, 9))
    def put_if_absent(self, key: str, value: int) -> None:
        assert self.store.put_if_absent(key, value) == self.model.get(key)
        self.model.setdefault(key, value)

    @rule(rows=st.dictionaries(KEYS, st.none() | st.integers(-9, 9)), as_pairs=st.booleans())
    def put_all(self, rows: dict[str, int | None], *, as_pairs: bool) -> None:
        self.store.put_all(list(rows.items()) if as_pairs else rows)
        for key, value in rows.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value

    @rule(key=KEYS, value=st.integers(-9, 9))
    def set_as_a_mapping(self, key: str, value: int) -> None:
        self.store[key] = value
        self.model[key] = value

    @rule(key=KEYS)
    def read_as_a_mapping(self, key: str) -> None:
        assert (key in self.store) == (key in self.model)
        if key in self.model:
            assert self.store[key] == self.model[key]
            del self.store[key]
            del self.model[key]
        else:
            with pytest.raises(KeyError):
                self.store[key]
            with pytest.raises(KeyError):
                del self.store[key]

    @rule(key=KEYS, default=st.integers(-9, 9), give_default=st.booleans())
    def take_out_as_a_mapping(self, key: str, default: int, *, give_default: bool) -> None:
        if give_default:
            assert self.store.get(key, default) == self.model.get(key, default)
            assert self.store.pop(key, default) == self.model.pop(key, default)
        elif key in self.model:
            assert self.store.pop(key) == self.model.pop(key)
        else:
            with pytest.raises(KeyError):
                self.store.pop(key)

    @rule(key=KEYS, value=st.integers(-9, 9), rows=st.dictionaries(KEYS, st.integers(-9, 9)))
    def fill_as_a_mapping(self, key: str, value: int, rows: dict[str, int]) -> None:
        assert self.store.setdefault(key, value) == self.model.setdefault(key, value)
        self.store.update(rows)
        self.model.update(rows)

    @rule(lo=st.none() | KEYS, hi=st.none() | KEYS)
    def ranges(self, lo: str | None, hi: str | None) -> None:
        expected = [
            (key, value)
            for key, value in self.rows()
            if (lo is None or key.encode() >= lo.encode())
            and (hi is None or key.encode() <= hi.encode())
        ]
        assert list(self.store.range(lo, hi)) == expected
        assert list(self.store.reverse_range(lo, hi)) == expected[::-1]

    @rule(prefix=KEYS)
    def prefixes(self, prefix: str) -> None:
        expected = [row for row in self.rows() if row[0].startswith(prefix)]
        assert list(self.store.prefix_scan(prefix)) == expected

    @rule()
    def commit(self) -> None:
        commit(self.store)

    @invariant()
    def holds_all_rows(self) -> None:
        if hasattr(self, "store"):
            assert list(self.store.all()) == self.rows()
            assert list(self.store.reverse_all()) == self.rows()[::-1]
            assert list(self.store.items()) == self.rows()
            assert list(self.store) == list(self.store.keys()) == [key for key, _ in self.rows()]
            assert list(self.store.values()) == [value for _, value in self.rows()]
            assert len(self.store) >= len(self.model)


TestStoreMachine = pytest.mark.slow(StoreMachine.TestCase)
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("kind", [KeyValueStore, TimestampedKeyValueStore])
def test_null_keys_are_refused(kind: type[Any]) -> None:
    store = opened(kind)
    for call in (store.get, store.delete, lambda key: store.put(key, None), store.prefix_scan):
        with pytest.raises(ValueError, match="store store"):
            call(None)


@pytest.mark.parametrize("kind", [KeyValueStore, TimestampedKeyValueStore])
def test_a_key_that_the_serde_refuses_is_not_in_the_store(kind: type[Any]) -> None:
    store = opened(kind)
    assert 7 not in store
    assert None not in store
    assert "a" not in store


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda store: store.get(7), "expected str, got int"),
        (lambda store: store.put(7, 1), "expected str, got int"),
        (lambda store: store.put("a", "text"), "expected int, got str"),
        (lambda store: store.put_all({"a": "text"}), "expected int, got str"),
        (lambda store: store.range(7, None), "expected str, got int"),
        (lambda store: store.prefix_scan(7), "expected str, got int"),
    ],
)
def test_a_rejected_key_or_value_is_reported_with_the_store(call: Any, reason: str) -> None:
    store = opened()
    with pytest.raises(
        SerializationError, match=rf"^store store: .*{reason}.*other serdes"
    ) as told:
        call(store)
    assert "handler" not in str(told.value)
    assert list(store.all()) == []


def test_uncommitted_deletes_are_no_entries() -> None:
    store = opened()
    store.put("a", 1)
    store.put("a", None)
    assert len(store) == 0
    assert not store
    store.put("a", 2)
    store.put("b", 3)
    commit(store)
    assert len(store) == 2
    store.put("a", 4)
    assert len(store) == 2
    assert store.delete("b") == 3
    assert len(store) == 1
    store.delete("a")
    assert not store
    store.buffer.fetch([b"a"])
    store.buffer.values[b"a"] = 5
    store.buffer.mark_changed([b"a"], NOW)
    assert len(store) == 1
    commit(store)
    assert len(store) == 1


def test_changelog_records_have_the_time_of_the_record_being_processed() -> None:
    store: KeyValueStore[str, int] = opened()
    store.put("a", 1)
    store.put("b", None)
    drained = store.buffer.drain()
    assert (drained.keys, drained.timestamps) == ([b"a", b"b"], [NOW, NOW])


def test_timestamped_stores_keep_the_given_time() -> None:
    store: TimestampedKeyValueStore[str, int] = opened(TimestampedKeyValueStore)
    store.put("a", ValueAndTimestamp(1, 7))
    store.put("b", ValueAndTimestamp(2, 8))
    store.put("b", None)
    assert store.get("a") == ValueAndTimestamp(1, 7)
    assert store.get("b") is None
    assert list(store.all()) == [("a", ValueAndTimestamp(1, 7))]
    assert store.buffer.drain().timestamps == [7, NOW]
    commit(store)
    store.buffer.discard()
    assert list(store.reverse_all()) == [("a", ValueAndTimestamp(1, 7))]


def test_timestamped_stores_refuse_bare_values() -> None:
    store: Any = opened(TimestampedKeyValueStore)
    with pytest.raises(TypeError, match="store store holds ValueAndTimestamp"):
        store.put("a", 1)
    assert store.get("a") is None


def test_iterators_show_the_store_as_it_was() -> None:
    store: KeyValueStore[str, int] = opened()
    store.put_all({"a": 1, "b": 2, "c": 3})
    commit(store)
    store.put("bb", 4)
    rows: Iterator[tuple[str, int]] = store.all()
    first = next(rows)
    store.put_all({"b": None, "c": 9, "d": 5})
    commit(store)
    assert [first, *rows] == [("a", 1), ("b", 2), ("bb", 4), ("c", 3)]


CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9)), max_size=60)


@given(
    before=st.dictionaries(KEYS, st.integers(0, 9)),
    rounds=st.lists(st.tuples(CHANGES, st.none() | st.integers(0, 9)), max_size=4),
)
def test_cached_changes_are_a_dictionary_of_keys_with_old_values(
    before: dict[str, int], rounds: list[tuple[list[tuple[str, int | None]], int | None]]
) -> None:
    store: Any = opened(cached=True)
    store.put_all(before)
    store.cache.pop()
    had = set(before)
    recency: dict[str, None] = {}
    forwarded = set(before)
    for changes, limit in rounds:
        for key, value in changes:
            store.put(key, value)
            recency.pop(key, None)
            recency[key] = None
            (had.discard if value is None else had.add)(key)
        assert len(store.cache) == len(recency)
        data, keys, new = store.cache.pop(limit)
        assert keys == list(recency)[:limit]
        assert data == [key.encode() for key in keys]
        assert new == {key.encode() for key in keys if key not in forwarded}
        for key in keys:
            del recency[key]
            (forwarded.add if key in had else forwarded.discard)(key)
        assert len(store.cache) == len(recency)
    assert store.cache.size_bytes >= sum(len(key.encode()) for key in recency)
    store.cache.pop()
    assert (len(store.cache), store.cache.size_bytes) == (0, 0)


@given(st.lists(st.lists(KEYS, max_size=30), max_size=5), st.integers(1, 10))
def test_a_batch_of_changes_is_tracked_like_single_changes(
    batches: list[list[str]], limit: int
) -> None:
    singly: Any = opened(cached=True)
    at_once: Any = opened(cached=True)
    for keys in batches:
        data = [key.encode() for key in keys]
        held = set(at_once.cache._keys)
        fresh = at_once.cache.changed_many(keys, data)
        assert sorted(fresh) == sorted(set(data) - held)
        assert all(key in at_once.buffer.values for key in data)
        for key in keys:
            at_once.buffer.put(key.encode(), 1, 0)
            singly.put(key, 1)
    assert at_once.cache.size_bytes == singly.cache.size_bytes
    assert at_once.cache.pop(limit) == singly.cache.pop(limit)
    assert at_once.cache.pop() == singly.cache.pop()


def test_the_cache_does_not_grow_with_the_number_of_changes() -> None:
    store: Any = opened(cached=True)
    for number in range(20_000):
        store.cache.changed("a", b"a", existed=False)
        store.cache.changed(str(number % 10), b"%d" % (number % 10), existed=False)
    assert sum(map(len, store.cache._changes)) < 5_000
    assert len(store.cache) == 11


def committed(*contents: dict[str, tuple[int, int]], kind: StoreKind = StoreKind.KEY_VALUE) -> Any:
    databases = []
    for rows in contents:
        buffer = CommitBuffer(
            spec_of(kind), InMemoryDatabase(["store"]), topic=TOPIC, read_cache_bytes=0
        )
        for key, (value, timestamp) in rows.items():
            buffer.put(key.encode(), value, timestamp)
        buffer._database.write({"store": buffer.drain().stored}, {})
        databases.append(buffer._database)
    return CommittedKeyValueStore(spec_of(kind), TOPIC, lambda: databases)


def test_queries_read_the_committed_rows_of_all_tasks() -> None:
    store = committed({"a": (1, 5), "c": (3, 6)}, {"b": (2, 7)})
    assert (store.get("a"), store.get("b"), store.get("x")) == (1, 2, None)
    assert list(store.all()) == [("a", 1), ("c", 3), ("b", 2)]
    assert list(store.reverse_range(None, "b")) == [("a", 1), ("b", 2)]
    assert store.approximate_num_entries() == len(store) == 3


def test_queries_of_timestamped_stores_return_value_and_timestamp() -> None:
    store = committed({"a": (1, 5)}, kind=StoreKind.TIMESTAMPED_KEY_VALUE)
    assert store.get("a") == ValueAndTimestamp(1, 5)
    assert list(store.all()) == [("a", ValueAndTimestamp(1, 5))]


def test_queries_without_a_running_task_name_the_next_step() -> None:
    with pytest.raises(InvalidStateStoreError, match="store store has no running task"):
        committed().get("a")
    store = committed({"a": (1, 5)})
    rows = store.all()
    store._databases()[0].close()
    with pytest.raises(InvalidStateStoreError):
        store.get("a")
    with pytest.raises(InvalidStateStoreError):
        list(rows)
