"""Process that `test_kill.py` kills: it forks a writer per line on stdin and prints its pid.

A fork takes milliseconds, a start of Python far longer. A writer continues from the stored
position: commit p puts row p into every store, with p as the position.
"""

import os
import sys
from pathlib import Path

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

STORES = ("a", "b", "c")

#: Small buffers: RocksDB flushes often in the short life of a writer.
OPTIONS = RocksDBOptions(write_buffer_bytes=256 * 1024, family_write_buffer_bytes=64 * 1024)


def row(number: int) -> bytes:
    return b"%08d" % number


def write(path: Path) -> None:
    database = TaskDatabase.open(path, STORES, OPTIONS, SharedResources.create(OPTIONS))
    number = int(database.position("a") or b"0")
    while True:
        number += 1
        # Stores of different size fill their memtables at different times; every hundredth commit
        # needs several writes.
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
    path = Path(sys.argv[1])
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                write(path)
            finally:
                os._exit(1)
        print(pid, flush=True)  # noqa: T201 - read by the test
        os.waitpid(pid, 0)
        print("gone", flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
