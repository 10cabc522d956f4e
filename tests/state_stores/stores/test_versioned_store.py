"""Model test: a versioned store is a dictionary of timestamps per key within the history."""

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.state_stores.stores.store_bench import StoreBench, begins, spec_of
from tidewheel import Serdes, SerializationError
from tidewheel.state_stores.layout.versions import TOMBSTONE, VersionSerde
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.versioned_store import VersionedRecord

HISTORY = 20

keys = st.sampled_from(["", "a", "a" + "\u07ff" * 3, "ab", "b"])
times = st.integers(0, 60)
Found = tuple[int | None, int, int | None]


class Model:
    """Model of a versioned store: per key, values (None: deleted) by timestamp."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, int | None]] = {}
        self.observed = -1

    def copy(self) -> "Model":
        made = Model()
        made.versions = {key: {**versions} for key, versions in self.versions.items()}
        made.observed = self.observed
        return made

    @property
    def horizon(self) -> int:
        return self.observed - HISTORY

    def all_of(self, key: str) -> list[Found]:
        stamps = sorted(self.versions.get(key, {}))
        following = [*stamps, None][1:]
        rows = [
            (self.versions[key][stamp], stamp, after)
            for stamp, after in zip(stamps, following, strict=True)
        ]
        return rows[::-1]

    def as_of(self, key: str, as_of: int) -> Found | None:
        """Return the version valid at a readable time."""
        for value, stamp, valid_to in self.all_of(key):
            if stamp <= as_of:
                readable = as_of >= self.horizon or valid_to is None
                return (value, stamp, valid_to) if value is not None and readable else None
        return None

    def history(self, key: str, begin: int, end: int) -> list[Found]:
        return [
            (value, stamp, valid_to)
            for value, stamp, valid_to in self.all_of(key)
            if value is not None
            and stamp <= end
            and (valid_to is None or (valid_to > begin and valid_to > self.horizon <= end))
        ]


class VersionedMachine(RuleBasedStateMachine):
    rocksdb = False

    @initialize(read_cache_bytes=st.sampled_from([0, 1 << 20]))
    def open(self, read_cache_bytes: int) -> None:
        spec = spec_of(StoreKind.VERSIONED, history_retention_ms=HISTORY)
        self.bench = StoreBench(spec, rocksdb=self.rocksdb, read_cache_bytes=read_cache_bytes)
        self.model = Model()
        self.kept = Model()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    @rule(key=keys, value=st.none() | st.integers(0, 9), timestamp=times)
    def put(self, key: str, value: int | None, timestamp: int) -> None:
        model = self.model
        result = self.bench.store.put(key, value, timestamp)
        if timestamp < model.horizon:
            assert result == -2
            return
        model.versions.setdefault(key, {})[timestamp] = value
        model.observed = max(model.observed, timestamp)
        assert result == min((t for t in model.versions[key] if t > timestamp), default=None)

    @rule(key=keys, timestamp=times)
    def delete(self, key: str, timestamp: int) -> None:
        model = self.model
        expected = None if timestamp < model.horizon else model.as_of(key, timestamp)
        found = self.bench.store.delete(key, timestamp)
        assert found == (None if expected is None else VersionedRecord(*expected))
        if timestamp >= model.horizon:
            model.versions.setdefault(key, {})[timestamp] = None
            model.observed = max(model.observed, timestamp)

    @rule(key=keys, begin=times, end=times)
    def history(self, key: str, begin: int, end: int) -> None:
        found = list(self.bench.store.history(key, begin, end))
        assert found == [VersionedRecord(*row) for row in self.model.history(key, begin, end)]

    @rule(stream_time=times)
    def observe(self, stream_time: int) -> None:
        self.bench.store.observe(stream_time)
        self.model.observed = max(self.model.observed, stream_time)

    @rule()
    def commit(self) -> None:
        changed = bool(self.bench.store.buffer.dirty)
        self.bench.commit()
        self.kept = self.model.copy()
        if changed:
            self.compare(self.bench.committed)

    @rule(how=begins)
    def reopen_or_restore(self, how: tuple[str, list[int]]) -> None:
        self.bench.reopen_or_restore(how)
        self.model = self.kept.copy()
        self.bench.store.restore_times((self.model.observed,))

    def compare(self, store: Any) -> None:
        for key in self.model.versions:
            for as_of in (0, 5, 20, self.model.horizon, self.model.horizon + 1, 60):
                expected = self.model.as_of(key, as_of)
                found = store.get(key, as_of)
                assert found == (None if expected is None else VersionedRecord(*expected))
            latest = self.model.all_of(key)[0]
            assert store.get(key) == (None if latest[0] is None else VersionedRecord(*latest))
            whole = [VersionedRecord(*row) for row in self.model.history(key, 0, 1 << 62)]
            assert list(store.history(key)) == whole

    @invariant()
    def equal(self) -> None:
        self.compare(self.bench.store)
        assert self.bench.store.observed_stream_time_ms == self.model.observed


TestInMemory = pytest.mark.slow(VersionedMachine.TestCase)
TestInMemory.settings = settings(max_examples=40, stateful_step_count=40)


class RocksDBVersionedMachine(VersionedMachine):
    rocksdb = True


TestRocksDB = pytest.mark.slow(RocksDBVersionedMachine.TestCase)
TestRocksDB.settings = settings(max_examples=8, stateful_step_count=40)


def bench_of(**changes: Any) -> StoreBench:
    spec = spec_of(StoreKind.VERSIONED, **{"history_retention_ms": HISTORY, **changes})
    return StoreBench(spec, rocksdb=False)


def test_the_changelog_has_the_bare_key_and_the_versions_timestamp() -> None:
    """As in Kafka Streams: versions are separate records, a deletion is a tombstone."""
    bench = bench_of()
    bench.store.put("k", 2, 20)
    bench.store.put("k", 1, 10)
    bench.store.delete("k", 30)
    bench.commit()
    assert bench.changelog == [
        (b"k", (1).to_bytes(8), 10),
        (b"k", (2).to_bytes(8), 20),
        (b"k", None, 30),
    ]


def test_the_latest_version_is_logged_again_behind_a_late_one() -> None:
    bench = bench_of()
    bench.store.put("k", 2, 20)
    bench.commit()
    bench.store.put("k", 1, 10)
    bench.commit()
    assert [timestamp for _, _, timestamp in bench.changelog] == [20, 10, 20]


def test_expired_versions_and_old_deletions_leave_the_disk() -> None:
    bench = bench_of(history_retention_ms=100)
    stamps = random.Random(7)
    for now in range(0, 20_000, 10):
        key = f"k{stamps.randrange(10)}"
        if stamps.random() < 0.3:
            bench.store.delete(key, now)
        else:
            bench.store.put(key, 1, now)
        if now % 50 == 0:
            bench.commit()
    # Ten keys with a version every 10 ms and a history of 100 ms: about 20 live rows.
    assert len(bench.disk_rows()) < 80


def test_a_deleted_key_leaves_no_rows() -> None:
    bench = bench_of()
    bench.store.put("k", 1, 10)
    bench.store.delete("k", 11)
    bench.commit()
    for now in range(100, 105):
        bench.store.put("other", 1, now)
        bench.commit()
    assert {key[:-8] for key, _ in bench.disk_rows()} == {b"other"}
    assert bench.store.get("k") is None


def test_a_deletion_stays_until_all_older_versions_are_deleted() -> None:
    bench = bench_of()
    for timestamp in range(1, 9):
        bench.store.put("k", timestamp, timestamp)
    bench.store.delete("k", 9)
    bench.commit()
    for now in range(100, 104):
        bench.store.put("z", 1, now)
        bench.commit()
        bench.store.buffer.discard()  # drop cached versions
        assert bench.store.get("k") is None
        assert list(bench.store.history("k")) == []


def test_versions_put_before_an_old_deletion_stay_deleted() -> None:
    bench = bench_of()
    bench.store.put("k", 1, 10)
    bench.store.delete("k", 30)
    bench.commit()
    bench.store.put("k", 2, 25)
    bench.store.put("other", 1, 60)
    bench.commit()
    assert bench.store.get("k") is None
    bench.restart()
    assert bench.store.get("k") is None


def test_a_refused_value_changes_nothing() -> None:
    bench = bench_of()
    bench.store.put("k", 1, 10)
    with pytest.raises(SerializationError, match="got str"):
        bench.store.put("k", "text", 20)
    assert bench.store.get("k") == VersionedRecord(1, 10, None)
    assert bench.store.observed_stream_time_ms == 10


@pytest.mark.parametrize("timestamp", [-1, None, 1.0, True])
def test_an_invalid_timestamp_is_rejected(timestamp: Any) -> None:
    for change in (bench_of().store.delete, lambda key, at: bench_of().store.put(key, 1, at)):
        with pytest.raises(ValueError, match=r"store store: timestamp .* is no timestamp"):
            change("k", timestamp)


def test_deletions_have_their_own_encoding() -> None:
    serde = VersionSerde(Serdes.bytes())
    for value in (b"", b"\x00", b"\x01"):
        assert serde.deserialize("t", serde.serialize("t", value)) == value
    assert serde.deserialize("t", serde.serialize("t", TOMBSTONE)) is TOMBSTONE
    both = [TOMBSTONE, b"v"]
    written: Any = serde.serialize_batch("t", both)
    assert serde.deserialize_batch("t", written) == both
    assert repr(TOMBSTONE) == "<deleted>"
    assert not serde.surely_serializes(TOMBSTONE)
    assert not serde.canonical
