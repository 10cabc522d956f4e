"""Model test: commit buffer and database together read as one dictionary."""

import datetime as dt
import decimal
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidewheel import Serdes, SerializationError
from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer, write_rows
from tidewheel.state_stores.errors import StoreCorruptedError, StoredRowError
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.envelope import unwrap_value, wrap_value
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.serdes import Serde

JSON: Serde[Any] = Serdes.json()
TOPIC = "app-store-changelog"

KEYS = st.sampled_from([b"", b"a", b"a\x00", b"ab", b"b", b"c" * 300, b"\xff", b"\xff\xff"])
PLAIN = st.integers(-5, 5) | st.sampled_from([True, 0.5, "", "text", "é" * 200, "long" * 100])
MUTABLE = st.lists(st.integers(0, 3), max_size=3) | st.dictionaries(
    st.sampled_from("xy"), st.integers(0, 3)
)
VALUES = PLAIN | MUTABLE
TIMES = st.integers(0, 1_000)
BOUNDS = st.none() | KEYS


def spec_of(value_serde: Serde[Any]) -> StoreSpec:
    return StoreSpec(
        name="store",
        kind=StoreKind.TIMESTAMPED_KEY_VALUE,
        key_serde=Serdes.bytes(),
        value_serde=value_serde,
    )


def buffer_of(
    value_serde: Serde[Any],
    database: InMemoryDatabase | None = None,
    read_cache_bytes: int = 1 << 20,
) -> CommitBuffer:
    return CommitBuffer(
        spec_of(value_serde),
        database or InMemoryDatabase(["store"]),
        topic=TOPIC,
        read_cache_bytes=read_cache_bytes,
    )


def encoded(value: Any) -> bytes:
    data = JSON.serialize(TOPIC, value)
    assert data is not None
    return data


class BufferMachine(RuleBasedStateMachine):
    """Every operation, compared with dictionaries of visible and of committed rows."""

    @initialize(read_cache_bytes=st.sampled_from([0, 600, 3_000, 1 << 20]))
    def open(self, read_cache_bytes: int) -> None:
        self.database = InMemoryDatabase(["store"])
        self.buffer = buffer_of(JSON, self.database, read_cache_bytes)
        self.seen: dict[bytes, tuple[bytes, int]] = {}
        self.committed: dict[bytes, tuple[bytes, int]] = {}
        #: Timestamps of changes since the last commit, including deletes.
        self.changed: dict[bytes, int] = {}

    @rule(key=KEYS, value=st.none() | VALUES, timestamp=TIMES)
    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        self.buffer.put(key, value, timestamp)
        if value is None:
            self.seen.pop(key, None)
        else:
            self.seen[key] = (encoded(value), timestamp)
        self.changed[key] = timestamp
        if isinstance(value, list):
            value.append("changed after put")
        elif isinstance(value, dict):
            value["changed"] = "after put"

    @rule(
        rows=st.lists(st.tuples(KEYS, st.none() | PLAIN, TIMES), min_size=1)
        | st.lists(st.tuples(KEYS, VALUES, TIMES), min_size=1)
    )
    def put_all(self, rows: list[tuple[bytes, Any, int]]) -> None:
        """A batch is all or nothing; a rejected one is put row by row."""
        before = {**self.buffer.timestamps}
        if self.buffer.put_all(*map(list, zip(*rows, strict=True))):
            for key, value, timestamp in rows:
                self.changed[key] = timestamp
                self.seen.pop(key, None)
                if value is not None:
                    self.seen[key] = (encoded(value), timestamp)
            return
        assert self.buffer.timestamps == before
        for row in rows:
            self.put(*row)

    @rule(rows=st.lists(st.tuples(KEYS, VALUES, TIMES)))
    def put_all_with_a_failing_value(self, rows: list[tuple[bytes, Any, int]]) -> None:
        rows = [*rows, (b"b", object(), 1)]
        with pytest.raises(SerializationError):
            self.buffer.put_all(*map(list, zip(*rows, strict=True)))

    @rule(
        key=KEYS,
        value=st.sampled_from([object(), {1: object()}, "\udc80", [decimal]]),
        timestamp=TIMES,
    )
    def put_failing_value(self, key: bytes, value: Any, timestamp: int) -> None:
        with pytest.raises(SerializationError):
            self.buffer.put(key, value, timestamp)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        value = self.buffer.get(key)
        expected = self.seen.get(key)
        if expected is None:
            assert value is None
            assert self.buffer.timestamp(key) == self.changed.get(key, self.buffer.timestamp(key))
            return
        assert encoded(value) == expected[0]
        assert self.buffer.timestamp(key) == expected[1]
        if isinstance(value, list):
            value.append("changed after get")
        elif isinstance(value, dict):
            value["changed"] = "after get"

    @rule(key=KEYS)
    def exists(self, key: bytes) -> None:
        assert self.buffer.exists(key) == (key in self.seen)

    @rule(keys=st.lists(KEYS))
    def absent(self, keys: list[bytes]) -> None:
        assert list(self.buffer.absent(keys)) == [key for key in keys if key not in self.seen]
        assert all(map(self.buffer._knows, keys))

    @rule(keys=st.lists(KEYS))
    def get_many(self, keys: list[bytes]) -> None:
        values = self.buffer.get_many(keys)
        expected = [self.seen[key][0] if key in self.seen else None for key in keys]
        assert [None if value is None else encoded(value) for value in values] == expected

    @rule(
        keys=st.lists(KEYS),
        numbers=st.lists(st.integers(0, 9), min_size=8, max_size=8),
        timestamp=TIMES,
    )
    def change_directly(self, keys: list[bytes], numbers: list[int], timestamp: int) -> None:
        self.buffer.fetch(keys)
        plain = [key for key in keys if key in self.buffer.values]
        for key, number in zip(plain, numbers, strict=False):
            self.buffer.values[key] = number
            self.buffer.timestamps[key] = timestamp
            self.seen[key] = (encoded(number), timestamp)
            self.changed[key] = timestamp
        self.buffer.mark_changed(plain[: len(numbers)], timestamp)

    @rule(lower=BOUNDS, upper=BOUNDS, reverse=st.booleans(), write_between=st.booleans())
    def iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool, write_between: bool
    ) -> None:
        rows = self.buffer.iterate(lower, upper, reverse=reverse)
        expected = [
            (key, *row)
            for key, row in sorted(self.seen.items(), reverse=reverse)
            if (lower is None or key >= lower) and (upper is None or key < upper)
        ]
        if write_between:
            self.put(b"b", 7, 1)
        assert [(key, encoded(value), timestamp) for key, value, timestamp in rows] == expected

    def _drained(self) -> Any:
        drained = self.buffer.drain()
        got = dict(
            zip(drained.keys, zip(drained.values, drained.timestamps, strict=True), strict=True)
        )
        assert len(got) == len(drained.keys)
        assert got == {
            key: (self.seen[key][0] if key in self.seen else None, timestamp)
            for key, timestamp in self.changed.items()
        }
        return drained

    @rule()
    def commit(self) -> None:
        drained = self._drained()
        self.database.write({"store": drained.stored}, {})
        self.buffer.applied()
        self.committed = dict(self.seen)
        self.changed = {}

    @rule()
    def fail_to_commit(self) -> None:
        self._drained()

    @rule()
    def discard(self) -> None:
        self.buffer.discard()
        self.seen = dict(self.committed)
        self.changed = {}

    @invariant()
    def counts_its_bytes(self) -> None:
        if not hasattr(self, "buffer"):
            return
        assert set(self.buffer.dirty) == set(self.changed)
        assert self.buffer.newest_ms >= max(self.buffer.timestamps.values(), default=-1)
        assert self.buffer._raw_bytes == sum(map(len, self.buffer._raw.values()))
        bytes_held = self.buffer.uncommitted_bytes
        assert bytes_held == 0 if not self.changed else bytes_held >= sum(map(len, self.changed))

    @invariant()
    def has_the_committed_rows_on_disk(self) -> None:
        if hasattr(self, "database"):
            rows = {
                key: unwrap_value(data) for key, data in self.database.iterate("store", None, None)
            }
            assert rows == self.committed


TestBufferMachine = pytest.mark.slow(BufferMachine.TestCase)
TestBufferMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
)


class CountingSerde(Serde[Any]):
    def __init__(self) -> None:
        super().__init__(name="counting")
        self.serialized = self.deserialized = 0

    def surely_serializes(self, value: Any, /) -> bool:
        return type(value) is int

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        self.serialized += 1
        return JSON.serialize(topic, value)

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        self.deserialized += 1
        return JSON.deserialize(topic, data)


def test_a_hot_key_is_serialised_once_per_commit() -> None:
    serde = CountingSerde()
    buffer = buffer_of(serde)
    for number in range(100):
        assert buffer.get(b"k") == (number - 1 if number else None)
        buffer.put(b"k", number, number)
    assert buffer.drain().values == [b"99"]
    assert (serde.serialized, serde.deserialized) == (1, 0)


class CountingDatabase(InMemoryDatabase):
    def __init__(self) -> None:
        super().__init__(["store"])
        self.asked: list[list[bytes]] = []

    def get_many(self, family: str, keys: Any) -> list[bytes | None]:
        self.asked.append(list(keys))
        return super().get_many(family, keys)


def test_a_batch_is_prefetched_by_one_sorted_read_of_unknown_keys() -> None:
    database = CountingDatabase()
    buffer = buffer_of(JSON, database)
    buffer.fetch([b"c", b"a", b"b", b"a"])
    buffer.fetch([b"d", b"a"])
    buffer.fetch([b"d", b"a"])
    assert database.asked == [[b"a", b"b", b"c"], [b"d"]]


class OneByOne(Serde[str]):
    """Text with a batch form that fails, as a user's may."""

    name = "one by one"

    def deserialize(self, topic: str, data: bytes, /) -> str:
        if data == b"bad":
            raise self.failed("deserialise", topic, "it is bad")
        return data.decode()

    def deserialize_batch(self, topic: str, data: Any, /) -> Any:
        raise RuntimeError("not this way")


class Forgetful(OneByOne):
    """Text with a batch form that loses values."""

    def deserialize_batch(self, topic: str, data: Any, /) -> Any:
        return [bytes(each).decode() for each in data[1:]]


@pytest.mark.parametrize("serde", [OneByOne(), Forgetful()])
def test_values_whose_batch_cannot_be_read_are_read_one_by_one(serde: Serde[str]) -> None:
    database = InMemoryDatabase(["store"])
    rows = [
        (b"a", wrap_value(b"one", 1)),
        (b"b", wrap_value(b"two", 2)),
        (b"c", wrap_value(b"bad", 3)),
    ]
    database.write({"store": rows}, {})
    buffer = buffer_of(serde, database)
    with pytest.raises(StoredRowError, match="it is bad"):
        buffer.get_many([b"a", b"b", b"c"])
    assert not buffer.values
    assert not buffer.timestamps
    assert buffer.get_many([b"b", b"a", b"none"]) == ["two", "one", None]
    assert [buffer.timestamp(key) for key in (b"a", b"b", b"none")] == [1, 2, -1]


@given(st.dictionaries(st.binary(max_size=3), st.tuples(VALUES, TIMES), min_size=1), st.data())
def test_keys_read_together_equal_keys_read_singly(
    rows: dict[bytes, tuple[Any, int]], data: st.DataObject
) -> None:
    database = InMemoryDatabase(["store"])
    stored = [
        (key, wrap_value(encoded(value), time)) for key, (value, time) in sorted(rows.items())
    ]
    database.write({"store": stored}, {})
    buffer = buffer_of(JSON, database, read_cache_bytes=0)
    known = st.sampled_from(sorted(rows)) | st.binary(max_size=3)
    for keys in data.draw(st.lists(st.lists(known, min_size=1), min_size=1, max_size=4)):
        expected = [rows.get(key, (None, -1)) for key in keys]
        # Encoded, because True == 1.
        assert list(map(encoded, buffer.get_many(keys))) == [
            encoded(value) for value, _ in expected
        ]
        assert [buffer.timestamp(key) for key in keys] == [time for _, time in expected]
        assert buffer._raw_bytes == sum(map(len, buffer._raw.values()))
        buffer.applied()  # the next reads find these keys in the previous generation


def test_hot_keys_survive_a_generation_and_cold_keys_are_dropped() -> None:
    database = CountingDatabase()
    buffer = buffer_of(JSON, database, read_cache_bytes=0)
    for commit in range(3):
        for key in (b"cold", b"hot") if commit == 0 else (b"hot",):
            buffer.put(key, commit, commit)
        database.write({"store": buffer.drain().stored}, {})
        buffer.applied()
    database.asked.clear()
    assert buffer.get(b"hot") == 2
    assert database.asked == []
    assert buffer.get(b"cold") == 0
    assert database.asked == [[b"cold"]]


def test_discarding_forgets_every_generation() -> None:
    database = InMemoryDatabase(["store"])
    buffer = buffer_of(JSON, database, read_cache_bytes=1_000)
    for value, keys in ((1, [b"k", b"1", b"2", b"3"]), (2, [b"k"])):
        for key in keys:
            buffer.put(key, value, value)
        database.write({"store": buffer.drain().stored}, {})
        buffer.applied()
    assert buffer._old.timestamps
    buffer.discard()
    assert buffer.get(b"k") == 2


def test_clean_entries_stay_within_the_budget() -> None:
    database = InMemoryDatabase(["store"])
    rows = [(b"%06d" % number, wrap_value(b"1", 0)) for number in range(20_000)]
    database.write({"store": rows}, {})
    buffer = buffer_of(JSON, database, read_cache_bytes=200_000)
    for start in range(0, 20_000, 500):
        buffer.fetch([key for key, _ in rows[start : start + 500]])
        buffer.applied()
    known = len(buffer.values) + len(buffer._old.timestamps)
    assert known * 200 <= 200_000 + 2 * 500 * 200


class Shareable(msgspec.Struct):
    """A mutable user type."""

    numbers: list[int]


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (Serdes.json(Shareable), Shareable([1])),
        (Serdes.json(), {"numbers": [1]}),
        (Serdes.msgpack(), [[1]]),
    ],
)
def test_users_cannot_change_a_stored_value_from_outside(serde: Serde[Any], value: Any) -> None:
    buffer = buffer_of(serde)
    buffer.put(b"k", value, 1)
    first = buffer.get(b"k")
    inner = (
        first.numbers
        if isinstance(first, Shareable)
        else next(iter(first.values() if isinstance(first, dict) else first))
    )
    inner.append(2)
    assert buffer.get(b"k") == value
    assert buffer.get(b"k") is not value


def test_a_value_is_read_back_by_its_serde() -> None:
    serde = Serde[Any](lambda topic, value: str(value).encode(), lambda topic, data: data.decode())
    buffer = buffer_of(serde)
    buffer.put(b"k", dt.date(2024, 2, 29), 1)
    assert buffer.get(b"k") == "2024-02-29"


def test_a_serde_that_returns_none_deletes_the_row() -> None:
    buffer = buffer_of(Serde[Any](lambda topic, value: None, lambda topic, data: data))
    buffer.put(b"k", "anything", 5)
    assert buffer.get(b"k") is None
    assert not buffer.exists(b"k")
    drained = buffer.drain()
    assert (drained.values, drained.timestamps) == ([None], [5])


@given(st.lists(st.tuples(KEYS, st.integers(0, 9), TIMES), min_size=1))
def test_a_drain_has_one_entry_per_key_in_key_order(rows: list[tuple[bytes, int, int]]) -> None:
    buffer = buffer_of(Serdes.int64())
    for key, value, timestamp in rows:
        buffer.put(key, value, timestamp)
    drained = buffer.drain()
    assert drained.keys == sorted({key for key, _, _ in rows})
    assert list(drained.stored) == [
        (key, wrap_value(value, timestamp))
        for key, value, timestamp in zip(
            drained.keys, drained.values, drained.timestamps, strict=True
        )
        if value is not None
    ]


def test_large_values_count_with_their_size() -> None:
    buffer = buffer_of(JSON)
    sizes = []
    for number in range(10):
        buffer.put(b"%d" % number, "x" * 10_000, 0)
        sizes.append(buffer.uncommitted_bytes)
    assert sizes[0] >= 10_000
    assert all(later - earlier >= 10_000 for earlier, later in pairwise(sizes))


def test_a_damaged_value_is_a_corrupted_store_not_a_bad_record() -> None:
    database = InMemoryDatabase(["store"])
    database.write({"store": [(b"k", b"\x07damaged")]}, {})
    buffer = buffer_of(JSON, database)
    for read in (buffer.get, buffer.exists):
        with pytest.raises(StoreCorruptedError):
            read(b"k")
    with pytest.raises(StoreCorruptedError):
        list(buffer.iterate(None, None))


INT64 = Serdes.int64()


@given(
    before=st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9), TIMES)),
    rows=st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9), TIMES), min_size=1),
    committed=st.booleans(),
)
def test_rows_put_together_equal_rows_put_singly(
    before: list[tuple[bytes, int | None, int]],
    rows: list[tuple[bytes, int | None, int]],
    committed: bool,
) -> None:
    told: list[Any] = []
    for at_once in (True, False):
        buffer = buffer_of(INT64)
        for row in before:
            buffer.put(*row)
        if committed:
            drained = buffer.drain()
            write_rows(
                InMemoryDatabase(["store"]), {"store": drained.stored}, {}, {"store": drained}
            )
            buffer.applied()
        if at_once:
            assert buffer.put_all(*map(list, zip(*rows, strict=True)))
        else:
            for row in rows:
                buffer.put(*row)
        drained = buffer.drain()
        told.append(
            (
                drained.keys,
                drained.values,
                drained.timestamps,
                buffer.uncommitted_bytes,
                buffer.approximate_num_entries(),
                buffer.newest_ms,
            )
        )
    assert told[0] == told[1]


@pytest.mark.parametrize("timestamp", [True, -2, 1 << 63, 1.5])
def test_rows_with_an_invalid_time_are_rejected(timestamp: Any) -> None:
    buffer = buffer_of(INT64)
    assert not buffer.put_all([b"a", b"b"], [1, 2], [5, timestamp])
    assert not buffer.dirty
