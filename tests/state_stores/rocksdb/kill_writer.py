"""The process that `test_kill.py` kills: for every line on stdin it forks a writer and prints the writer's pid.

Forking from a process that has loaded everything, but never opened a database, costs milliseconds instead of a start
of Python each. A writer continues from the stored position: commit p puts the row p into every store, and p as the
position of each store.
"""

import os
import sys
from pathlib import Path

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

STORES = ("a", "b", "c")

#: Small, so that RocksDB flushes by itself many times in the short life of a writer.
OPTIONS = RocksDBOptions(write_buffer_bytes=256 * 1024, family_write_buffer_bytes=64 * 1024)


def row(number: int) -> bytes:
    """Return the key that commit `number` puts into every store."""
    return b"%08d" % number


def write(path: Path) -> None:
    """Commit until killed."""
    database = TaskDatabase.open(path, STORES, OPTIONS, SharedResources.create(OPTIONS))
    number = int(database.position("a") or b"0")
    while True:
        number += 1
        # Stores of different size, so that each of them is the one that fills its buffer now and then; a commit of
        # several writes every hundred.
        filling = 20_000 if number % 100 == 0 else 60
        changes = {
            store: [
                (b"filling-%d" % (index * 37 % 5000), b"x" * 60)
                for index in range(filling if (number // 50) % len(STORES) == place else 1)
            ]
            + [(row(number), b"%d" % number), (b"latest", b"%d" % number)]
            for place, store in enumerate(STORES)
        }
        database.write(changes, dict.fromkeys(STORES, b"%d" % number))


def main() -> None:
    """Fork a writer for every line."""
    path = Path(sys.argv[1])
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                write(path)
            finally:
                os._exit(1)
        print(pid, flush=True)  # noqa: T201 - the answer to the test
        os.waitpid(pid, 0)
        print("gone", flush=True)  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
