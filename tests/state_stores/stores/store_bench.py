"""One store over a real database, with its commits, its changelog, restarts and restores."""

import shutil
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tidewheel import Serdes
from tidewheel.state_stores.buffers.commit_buffer import write_rows
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.headers import Headers
from tidewheel.state_stores.layout.restore import fold
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.factory import make_committed_store, make_store

TOPIC = "app-store-changelog"

# Small buffers: reads hit files and memory.
_OPTIONS = RocksDBOptions(
    write_buffer_bytes=64 * 1024, family_write_buffer_bytes=64 * 1024, block_cache_bytes=64 * 1024
)


#: Ways to reopen a store: after a close, after a kill, or by a restore, with the changelog split at
#: these points.
begins = st.tuples(
    st.sampled_from(["restart", "kill", "restore"]), st.lists(st.integers(0, 100), max_size=3)
)


def spec_of(kind: StoreKind, **changes: Any) -> StoreSpec:
    values = {"key_serde": Serdes.string(), "value_serde": Serdes.int64(), **changes}
    return StoreSpec(name="store", kind=kind, **values)


class StoreBench:
    """A store with its changelog and all that can happen to it.

    Attributes:
        store: The task's store.
        now: Current time of its processors.
        changelog: (key, value, timestamp) of every changelog record.
        headers: Headers of every changelog record.
        committed: The store for queries.
    """

    def __init__(self, spec: StoreSpec, *, rocksdb: bool, read_cache_bytes: int = 1 << 20) -> None:
        self.spec = spec
        self.now = 0
        self.changelog: list[tuple[bytes, bytes | None, int]] = []
        self.headers: list[Headers] = []
        self._read_cache_bytes = read_cache_bytes
        self._rocksdb = rocksdb
        self._root = Path(tempfile.mkdtemp()) if rocksdb else None
        self._resources = SharedResources.create(_OPTIONS) if rocksdb else None
        self._lives = 0
        self._open(self._fresh())
        self.committed: Any = make_committed_store(spec, TOPIC, lambda: [self.database])

    def _fresh(self) -> Database:
        self._lives += 1
        return self._database()

    def _database(self) -> Database:
        if self._root is None:
            return InMemoryDatabase(["store"])
        assert self._resources is not None
        path = self._root / str(self._lives)
        return TaskDatabase.open(path, ["store"], _OPTIONS, self._resources)

    def _open(self, database: Database) -> None:
        self.database = database
        self.store: Any = make_store(
            self.spec,
            database,
            topic=TOPIC,
            read_cache_bytes=self._read_cache_bytes,
            now=lambda: self.now,
            is_cached=self.spec.caching,
        )

    def commit(self) -> None:
        buffer = self.store.buffer
        if buffer.has_changes():
            drained = buffer.drain()
            self.changelog += zip(drained.keys, drained.values, drained.timestamps, strict=True)
            self.headers += drained.row_headers or [()] * len(drained.keys)
            position = {"store": len(self.changelog).to_bytes(8)}
            write_rows(self.database, {"store": drained.stored}, position, {"store": drained})
        buffer.applied()

    def restart(self) -> None:
        """Reopen with committed content; in memory, from the changelog."""
        if not self._rocksdb:
            self.restore([])
            return
        self.database.close()
        self._open(self._database())

    def restore(self, cuts: Sequence[int]) -> None:
        self.database.close()
        self._open(self._fresh())
        self.replay(0, cuts)

    def kill(self, cuts: Sequence[int]) -> None:
        """Reopen the files of the open database, as after a kill; then replay what RocksDB lost."""
        if self._root is None:
            self.restore(cuts)
            return
        killed = self._root / str(self._lives)
        self._lives += 1
        shutil.copytree(killed, self._root / str(self._lives))
        self.database.close()
        self._open(self._database())
        self.replay(int.from_bytes(self.database.position("store") or b""), cuts)

    def reopen_or_restore(self, how: tuple[str, Sequence[int]]) -> None:
        """Reopen the store; uncommitted changes are lost."""
        match how:
            case ("restart", _):
                self.restart()
            case ("kill", cuts):
                self.kill(cuts)
            case (_, cuts):
                self.restore(cuts)

    def replay(self, begin: int, cuts: Sequence[int]) -> None:
        end = len(self.changelog)
        inside = sorted(begin + cut % (end - begin + 1) for cut in cuts)
        for start, stop in pairwise([begin, *inside, end]):
            batch = self.changelog[start:stop]
            rows = fold(
                self.spec,
                [key for key, _, _ in batch],
                [value for _, value, _ in batch],
                [timestamp for _, _, timestamp in batch],
                self.headers[start:stop],
            )
            extra = self.store.buffer.restored(rows)
            position = {"store": stop.to_bytes(8)}
            write_rows(self.database, {"store": rows}, position, {"store": extra})

    def disk_rows(self) -> list[tuple[bytes, bytes]]:
        return list(self.database.iterate("store", None, None))

    def close(self) -> None:
        self.database.close()
        if self._root is not None:
            shutil.rmtree(self._root)
