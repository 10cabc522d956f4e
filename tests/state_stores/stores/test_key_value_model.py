"""Model test: key-value stores are dictionaries after commits, kills and restores."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.state_stores.stores.store_bench import StoreBench, begins, spec_of
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp

#: Keys with common prefixes.
keys = st.sampled_from(["", "a", "a\x00", "ab", "b", "é"])
bounds = st.none() | keys


class KeyValueMachine(RuleBasedStateMachine):
    rocksdb = False

    @initialize(
        kind=st.sampled_from([StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE]),
        read_cache_bytes=st.sampled_from([0, 1 << 20]),
        caching=st.booleans(),
    )
    def open(self, kind: StoreKind, read_cache_bytes: int, *, caching: bool) -> None:
        self.timestamped = kind is StoreKind.TIMESTAMPED_KEY_VALUE
        spec = spec_of(kind, caching=caching)
        self.bench = StoreBench(spec, rocksdb=self.rocksdb, read_cache_bytes=read_cache_bytes)
        self.rows: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    def stored(self, value: int | None, timestamp: int) -> Any:
        return (
            ValueAndTimestamp(value, timestamp) if self.timestamped and value is not None else value
        )

    def expect(self, lo: str | None = None, hi: str | None = None) -> list[tuple[str, Any]]:
        rows = sorted(self.rows.items(), key=lambda row: row[0].encode())
        low = b"" if lo is None else lo.encode()
        return [
            (key, value)
            for key, value in rows
            if low <= key.encode() and (hi is None or key.encode() <= hi.encode())
        ]

    def note(self, key: str, row: Any) -> None:
        self.rows.pop(key, None)
        if row is not None:
            self.rows[key] = row

    @rule(key=keys, value=st.none() | st.integers(-5, 5), now=st.integers(0, 9))
    def put(self, key: str, value: int | None, now: int) -> None:
        self.bench.now = now
        row = self.stored(value, now)
        self.bench.store.put(key, row)
        self.note(key, row)

    @rule(rows=st.dictionaries(keys, st.none() | st.integers(-5, 5)))
    def put_all(self, rows: dict[str, int | None]) -> None:
        changes = {key: self.stored(value, 3) for key, value in rows.items()}
        self.bench.store.put_all(changes)
        for key, row in changes.items():
            self.note(key, row)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        assert self.bench.store.delete(key) == self.rows.pop(key, None)

    @rule(key=keys, value=st.integers(-5, 5))
    def put_if_absent(self, key: str, value: int) -> None:
        row = self.stored(value, 4)
        assert self.bench.store.put_if_absent(key, row) == self.rows.get(key)
        self.rows.setdefault(key, row)

    @rule(lo=bounds, hi=bounds, prefix=keys)
    def scan(self, lo: str | None, hi: str | None, prefix: str) -> None:
        store = self.bench.store
        assert list(store.range(lo, hi)) == self.expect(lo, hi)
        assert list(store.reverse_range(lo, hi)) == self.expect(lo, hi)[::-1]
        begun = [row for row in self.expect() if row[0].startswith(prefix)]
        assert list(store.prefix_scan(prefix)) == begun

    @rule()
    def commit(self) -> None:
        self.bench.commit()
        self.kept = {**self.rows}
        assert list(self.bench.committed.all()) == self.expect()

    @rule(how=begins)
    def reopen_or_restore(self, how: tuple[str, list[int]]) -> None:
        self.bench.reopen_or_restore(how)
        self.rows = {**self.kept}

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "bench"):
            assert list(self.bench.store.all()) == self.expect()
            assert all(self.bench.store.get(key) == self.rows.get(key) for key in ("", "a", "é"))


TestInMemory = pytest.mark.slow(KeyValueMachine.TestCase)
TestInMemory.settings = settings(max_examples=20, stateful_step_count=30)


class RocksDBKeyValueMachine(KeyValueMachine):
    rocksdb = True


TestRocksDB = pytest.mark.slow(RocksDBKeyValueMachine.TestCase)
TestRocksDB.settings = settings(max_examples=12, stateful_step_count=30)


@pytest.mark.slow
def test_rows_lost_by_a_kill_are_replayed() -> None:
    bench = StoreBench(spec_of(StoreKind.KEY_VALUE), rocksdb=True)
    bench.store.put("a", 1)
    bench.commit()
    bench.restart()
    bench.store.put("b", 2)
    bench.commit()
    replayed: list[Any] = []
    write = bench.replay

    def recorded(begin: int, cuts: Any) -> None:
        replayed.append((begin, dict(bench.store.all())))
        write(begin, cuts)

    bench.replay = recorded  # type: ignore[method-assign]
    bench.kill([])
    assert replayed == [(1, {"a": 1})]
    assert dict(bench.store.all()) == {"a": 1, "b": 2}
    bench.close()
