"""RocksDB and the in-memory database against a dictionary, over random histories with reopening."""

import shutil
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

pytestmark = pytest.mark.slow

STORES = ["a", "b"]
stores = st.sampled_from(STORES)
keys = st.binary(max_size=3) | st.sampled_from([b"k%d" % number for number in range(10)])
changes = st.dictionaries(
    stores, st.lists(st.tuples(keys, st.none() | st.binary(max_size=20)), max_size=120)
)
bounds = st.none() | keys
# Small buffers: reads hit files and memory.
OPTIONS = RocksDBOptions(
    write_buffer_bytes=64 * 1024, family_write_buffer_bytes=64 * 1024, block_cache_bytes=64 * 1024
)


class DatabaseModel(RuleBasedStateMachine):
    options = OPTIONS

    @initialize()
    def open(self) -> None:
        self.path = Path(tempfile.mkdtemp()) / "0_0"
        self.resources = SharedResources.create(self.options)
        self.rocksdb = TaskDatabase.open(self.path, STORES, self.options, self.resources)
        self.memory = InMemoryDatabase(STORES)
        self.model: dict[str, dict[bytes, bytes]] = {store: {} for store in STORES}
        self.positions: dict[str, bytes] = {}
        self.begun: list[tuple[list[tuple[bytes, bytes]], list[object]]] = []

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.rocksdb.close()
            shutil.rmtree(self.path.parent)

    def range_of(
        self, store: str, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        return [
            (key, value)
            for key, value in sorted(self.model[store].items(), reverse=reverse)
            if (lower is None or key >= lower) and (upper is None or key < upper)
        ]

    @rule(written=changes, positions=st.dictionaries(stores, st.binary(min_size=1, max_size=4)))
    def write(
        self,
        written: dict[str, list[tuple[bytes, bytes | None]]],
        positions: dict[str, bytes],
    ) -> None:
        self.rocksdb.write(written, positions)
        self.memory.write(written, positions)
        for store, rows in written.items():
            for key, value in rows:
                if value is None:
                    self.model[store].pop(key, None)
                else:
                    self.model[store][key] = value
        self.positions.update(positions)

    @rule(store=stores, asked=st.lists(keys, max_size=20))
    def get(self, store: str, asked: list[bytes]) -> None:
        expected = [self.model[store].get(key) for key in asked]
        assert self.rocksdb.get_many(store, asked) == expected
        assert self.memory.get_many(store, asked) == expected

    @rule(store=stores, lower=bounds, upper=bounds, reverse=st.booleans())
    def scan(self, store: str, lower: bytes | None, upper: bytes | None, *, reverse: bool) -> None:
        expected = self.range_of(store, lower, upper, reverse=reverse)
        assert list(self.rocksdb.iterate(store, lower, upper, reverse=reverse)) == expected
        assert list(self.memory.iterate(store, lower, upper, reverse=reverse)) == expected

    @rule(store=stores, lower=bounds, upper=bounds, reverse=st.booleans(), read=st.integers(0, 3))
    def begin_scan(
        self, store: str, lower: bytes | None, upper: bytes | None, read: int, *, reverse: bool
    ) -> None:
        expected = self.range_of(store, lower, upper, reverse=reverse)
        scans: list[object] = []
        for database in (self.rocksdb, self.memory):
            scan = database.iterate(store, lower, upper, reverse=reverse)
            assert list(islice(scan, read)) == expected[:read]
            scans.append(scan)
        self.begun.append((expected[read:], scans))

    @precondition(lambda self: self.begun)
    @rule()
    def finish_scan(self) -> None:
        expected, scans = self.begun.pop()
        for scan in scans:
            assert list(scan) == expected  # type: ignore[call-overload] # both are iterators

    @rule(store=stores, lower=keys, upper=keys)
    def delete_range(self, store: str, lower: bytes, upper: bytes) -> None:
        if lower >= upper:
            return
        for database in (self.rocksdb, self.memory):
            database.write({}, {}, delete_ranges={store: (lower, upper)})
        for key in [key for key in self.model[store] if lower <= key < upper]:
            del self.model[store][key]

    @rule(store=stores)
    def clear(self, store: str) -> None:
        for database in (self.rocksdb, self.memory):
            database.clear(store)
        self.model[store].clear()

    @rule()
    def reopen(self) -> None:
        self.begun.clear()
        self.rocksdb.close()
        self.rocksdb = TaskDatabase.open(self.path, STORES, self.options, self.resources)

    @rule()
    def restore_from_checkpoint(self) -> None:
        self.begun.clear()
        copy = self.path.with_name("copy")
        self.rocksdb.checkpoint(copy)
        self.rocksdb.close()
        TaskDatabase.destroy(self.path)
        copy.rename(self.path)
        self.rocksdb = TaskDatabase.open(self.path, STORES, self.options, self.resources)

    @invariant()
    def positions_agree(self) -> None:
        for store in STORES:
            assert self.rocksdb.position(store) == self.positions.get(store)
            assert self.memory.position(store) == self.positions.get(store)


class FilteredModel(DatabaseModel):
    """Memtables large enough for a filter; many keys are read from memory."""

    options = RocksDBOptions(block_cache_bytes=64 * 1024)


_SETTINGS = settings(
    max_examples=10,
    stateful_step_count=25,
)
TestDatabaseModel = DatabaseModel.TestCase
TestDatabaseModel.settings = _SETTINGS
TestFilteredModel = FilteredModel.TestCase
TestFilteredModel.settings = _SETTINGS
