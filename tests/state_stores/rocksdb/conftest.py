from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

OpenDatabase = Callable[..., TaskDatabase]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0_0"


@pytest.fixture
def open_database(path: Path) -> Iterator[OpenDatabase]:
    """Open the test's database with any options; close it at the end."""
    opened: list[TaskDatabase] = []

    def open_(
        families: Sequence[str] = ("counts", "sums"), options: RocksDBOptions | None = None
    ) -> TaskDatabase:
        options = options or RocksDBOptions()
        database = TaskDatabase.open(path, families, options, SharedResources.create(options))
        opened.append(database)
        return database

    yield open_
    for database in opened:
        try:
            database.close()
        except StateStoreError:
            continue  # the test has damaged it
