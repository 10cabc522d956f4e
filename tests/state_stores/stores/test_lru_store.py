"""Model test: an LRU store keeps the most recently used keys, in the changelog too."""

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.state_stores.stores.store_bench import StoreBench, begins, spec_of
from tidewheel.state_stores.spec import StoreKind

MOST = 3
keys = st.sampled_from(["a", "b", "c", "d", "e"])


class LruMachine(RuleBasedStateMachine):
    rocksdb = False

    @initialize(read_cache_bytes=st.sampled_from([0, 1 << 20]))
    def open(self, read_cache_bytes: int) -> None:
        spec = spec_of(StoreKind.KEY_VALUE, max_entries=MOST)
        self.bench = StoreBench(spec, rocksdb=self.rocksdb, read_cache_bytes=read_cache_bytes)
        #: key -> (timestamp, value), least recently used first.
        self.rows: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self.kept = OrderedDict(self.rows)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    @rule(key=keys, value=st.none() | st.integers(0, 9), now=st.integers(0, 5))
    def put(self, key: str, value: int | None, now: int) -> None:
        self.bench.now = now
        self.bench.store.put(key, value)
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = (now, value)
            if len(self.rows) > MOST:
                self.rows.popitem(last=False)

    @rule(key=keys)
    def get(self, key: str) -> None:
        expected = self.rows.get(key)
        assert self.bench.store.get(key) == (None if expected is None else expected[1])
        if expected is not None:
            self.rows.move_to_end(key)

    @rule()
    def commit(self) -> None:
        self.bench.commit()
        self.kept = OrderedDict(self.rows)
        assert list(self.bench.committed.all()) == self.everything()

    @rule(how=begins)
    def reopen_or_restore(self, how: tuple[str, list[int]]) -> None:
        """Reopened stores have their keys in timestamp order."""
        self.bench.reopen_or_restore(how)
        in_order = sorted(self.kept.items(), key=lambda row: (row[1][0], row[0]))
        self.rows = OrderedDict(in_order)

    def everything(self) -> list[tuple[str, int]]:
        return sorted((key, value) for key, (_, value) in self.rows.items())

    @invariant()
    def equal(self) -> None:
        store = self.bench.store
        assert list(store.all()) == self.everything()
        assert len(store) == len(self.rows)


TestInMemory = pytest.mark.slow(LruMachine.TestCase)
TestInMemory.settings = settings(max_examples=40, stateful_step_count=30)


class RocksDBLruMachine(LruMachine):
    rocksdb = True


TestRocksDB = pytest.mark.slow(RocksDBLruMachine.TestCase)
TestRocksDB.settings = settings(max_examples=8, stateful_step_count=30)


def bench_of(most: int) -> StoreBench:
    return StoreBench(spec_of(StoreKind.KEY_VALUE, max_entries=most), rocksdb=False)


def test_a_dropped_key_gets_a_tombstone() -> None:
    bench = bench_of(1)
    bench.store.put("a", 1)
    bench.commit()
    bench.now = 9
    bench.store.put("b", 2)
    bench.commit()
    assert bench.changelog[1:] == [(b"a", None, 9), (b"b", (2).to_bytes(8), 9)]


def test_a_smaller_maximum_deletes_surplus_keys_at_the_next_put() -> None:
    bench = bench_of(4)
    for now, key in enumerate("abcd"):
        bench.now = now
        bench.store.put(key, now)
    bench.commit()
    bench.spec = spec_of(StoreKind.KEY_VALUE, max_entries=2)
    bench.restart()
    assert len(bench.store) == 4
    bench.store.put("e", 9)
    assert dict(bench.store.all()) == {"d": 3, "e": 9}


def test_operators_never_read_its_values_directly() -> None:
    bench = bench_of(2)
    bench.store.put("a", 1)
    buffer: Any = bench.store.buffer
    buffer.fetch([b"a"])
    assert not buffer.are_decoded([b"a"])
    assert buffer.get_many([b"a", b"b"]) == [1, None]
