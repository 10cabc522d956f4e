"""Rows with a TTL expire in stream time; commits delete them, in the changelog too."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.state_stores.stores.store_bench import StoreBench, begins, spec_of
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp

TTL = 10
keys = st.sampled_from(["a", "b", "c"])
times = st.integers(0, 40)


class TtlMachine(RuleBasedStateMachine):
    rocksdb = False

    @initialize(read_cache_bytes=st.sampled_from([0, 1 << 20]))
    def open(self, read_cache_bytes: int) -> None:
        spec = spec_of(StoreKind.TIMESTAMPED_KEY_VALUE, ttl_ms=TTL)
        self.bench = StoreBench(spec, rocksdb=self.rocksdb, read_cache_bytes=read_cache_bytes)
        self.rows: dict[str, tuple[int, int]] = {}
        self.observed = -1
        self.kept = ({**self.rows}, -1)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    def alive(self) -> dict[str, ValueAndTimestamp[int]]:
        return {
            key: ValueAndTimestamp(value, timestamp)
            for key, (value, timestamp) in self.rows.items()
            if timestamp + TTL > self.observed
        }

    @rule(key=keys, value=st.none() | st.integers(0, 9), timestamp=times, late=st.integers(0, 15))
    def put(self, key: str, value: int | None, timestamp: int, late: int) -> None:
        self.bench.now = timestamp
        if value is None:
            self.bench.store.put(key, None)
            self.rows.pop(key, None)
        else:
            row = (value, max(timestamp - late, 0))
            self.bench.store.put(key, ValueAndTimestamp(*row))
            self.rows[key] = row
        self.observed = max(self.observed, self.rows.get(key, (0, timestamp))[1])

    @rule(now=times)
    def advance_time(self, now: int) -> None:
        """A read advances the store's time."""
        self.bench.now = now
        self.observed = max(self.observed, now)
        assert self.bench.store.get("a") == self.alive().get("a")

    @rule()
    def commit(self) -> None:
        changed = bool(self.bench.store.buffer.dirty)
        self.bench.commit()
        self.kept = ({**self.rows}, self.observed)
        if changed:
            # Queries see the rows and the time of the commit.
            assert dict(self.bench.committed.all()) == self.alive()

    @rule(how=begins)
    def reopen_or_restore(self, how: tuple[str, list[int]]) -> None:
        self.bench.reopen_or_restore(how)
        self.rows, self.observed = {**self.kept[0]}, self.kept[1]
        self.bench.store.restore_times((self.observed,))

    @invariant()
    def equal(self) -> None:
        store, buffer = self.bench.store, self.bench.store.buffer
        assert {key.decode(): row[1:] for key, row in self.seen()} == {
            key: (row.value, row.timestamp) for key, row in self.alive().items()
        }
        for key in ("a", "b"):
            data, alive = key.encode(), self.alive().get(key)
            assert buffer.get(data) == (None if alive is None else alive.value)
            assert buffer.exists(data) == (alive is not None)
            if alive is not None:
                assert buffer.timestamp(data) == alive.timestamp
        assert store.times() == (self.observed,)

    def seen(self) -> list[tuple[bytes, Any]]:
        return [(row[0], row) for row in self.bench.store.buffer.iterate(None, None)]


TestInMemory = pytest.mark.slow(TtlMachine.TestCase)
TestInMemory.settings = settings(max_examples=40, stateful_step_count=30)


class RocksDBTtlMachine(TtlMachine):
    rocksdb = True


TestRocksDB = pytest.mark.slow(RocksDBTtlMachine.TestCase)
TestRocksDB.settings = settings(max_examples=8, stateful_step_count=30)


def bench_of(ttl_ms: int = TTL) -> StoreBench:
    return StoreBench(spec_of(StoreKind.KEY_VALUE, ttl_ms=ttl_ms), rocksdb=False)


def put(bench: StoreBench, key: str, value: int, now: int) -> None:
    """Put a value as the processor of a record does."""
    bench.now = now
    bench.store.put(key, value)


def test_an_expired_row_is_deleted_by_a_commit_with_a_tombstone() -> None:
    bench = bench_of()
    put(bench, "a", 1, now=100)
    bench.commit()
    put(bench, "b", 2, now=110)
    bench.commit()
    assert bench.changelog == [
        (b"a", (1).to_bytes(8), 100),
        (b"a", None, 110),
        (b"b", (2).to_bytes(8), 110),
    ]
    assert [key for key, _ in bench.disk_rows()] == [b"b"]


def test_a_row_put_again_does_not_expire_with_the_old_one() -> None:
    bench = bench_of()
    put(bench, "a", 1, now=0)
    bench.commit()
    put(bench, "a", 2, now=60)
    bench.commit()
    assert bench.store.get("a") == 2
    assert [value for _, value, _ in bench.changelog] == [(1).to_bytes(8), (2).to_bytes(8)]


def test_a_late_row_expires_in_time() -> None:
    bench = bench_of(ttl_ms=100)
    put(bench, "a", 1, now=100)
    bench.commit()
    put(bench, "b", 2, now=50)
    bench.commit()
    bench.now = 150
    assert bench.store.get("b") is None
    bench.commit()
    assert [key for key, _ in bench.disk_rows()] == [b"a"]


def test_rows_expire_by_time_without_writes() -> None:
    bench = bench_of()
    put(bench, "a", 1, now=100)
    bench.commit()
    bench.now = 109
    assert bench.store.get("a") == 1
    bench.now = 110
    assert bench.store.get("a") is None
    bench.commit()
    assert bench.disk_rows() == []
    assert bench.changelog[-1] == (b"a", None, 110)


def test_a_commit_checks_rows_only_when_one_may_have_expired() -> None:
    bench = bench_of(ttl_ms=1_000)
    put(bench, "a", 1, now=100)
    bench.commit()
    put(bench, "b", 1, now=200)
    bench.commit()
    scans: list[Any] = []
    iterate = bench.database.iterate

    def recorded(*bounds: Any) -> Any:
        scans.append(bounds)
        return iterate(*bounds)

    bench.database.iterate = recorded  # type: ignore[method-assign, assignment]
    for now in range(200, 1_000, 100):
        put(bench, "c", 1, now=now)
        bench.commit()
    assert scans == []
    put(bench, "c", 1, now=1_100)
    bench.commit()
    assert len(scans) == 1
    assert [key for key, _ in bench.disk_rows()] == [b"b", b"c"]


def test_a_sweep_continues_where_it_stopped() -> None:
    bench = bench_of()
    bench.now = 100
    for number in range(3_500):
        bench.store.put(f"{number:05}", 1)
    bench.commit()
    bench.now = 110
    assert bench.store.get("x") is None
    left = []
    for _ in range(4):
        bench.commit()
        left.append(len(bench.disk_rows()))
    assert left == [2_500, 1_500, 500, 0]


def test_a_changed_ttl_applies_to_existing_rows() -> None:
    bench = bench_of()
    put(bench, "a", 1, now=100)
    bench.commit()
    bench.spec = spec_of(StoreKind.KEY_VALUE, ttl_ms=50)
    bench.restart()
    bench.now = 149
    assert bench.store.get("a") == 1
    bench.now = 150
    assert bench.store.get("a") is None


def test_a_query_hides_expired_rows() -> None:
    bench = bench_of()
    put(bench, "a", 1, now=100)
    put(bench, "b", 2, now=105)
    put(bench, "c", 3, now=110)
    bench.commit()
    # "a" expired within its commit: it is on disk, but not visible.
    assert [key for key, _ in bench.disk_rows()] == [b"a", b"b", b"c"]
    assert bench.committed.get("a") is None
    assert list(bench.committed.all()) == [("b", 2), ("c", 3)]


def test_operators_never_read_its_values_directly() -> None:
    bench = bench_of()
    put(bench, "a", 1, now=100)
    buffer: Any = bench.store.buffer
    assert not buffer.are_decoded([b"a"])
    buffer.observe(110)
    assert buffer.get_many([b"a"]) == [None]
    assert buffer.timestamp(b"a") == -1
