"""Process that `test_ingest.py` kills: it forks a writer per line on stdin and prints its pid.

A writer continues from the stored position, in turn by replay, by runs of some records, and by runs
from the start. Without a position it clears the store first.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tests.state_stores.bulk_restore.logs import SPECS, STORE, Logged, columns, replayed
from tidewheel.state_stores.bulk_restore.ingest import ingest_runs
from tidewheel.state_stores.bulk_restore.runs import RunBuilder
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import fold
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

POSITION = "changelog:app-store-changelog-0"

#: Small buffers: RocksDB flushes often in the short life of a writer.
OPTIONS = RocksDBOptions(write_buffer_bytes=256 * 1024, family_write_buffer_bytes=64 * 1024)

_SPEC = SPECS["key-value"]
STEP = 400


def record(offset: int) -> Logged:
    """Return the record of an offset: few keys; every fifth record is a delete."""
    value = None if offset % 5 == 0 else b"%d" % offset
    return Logged(offset, b"%04d" % (offset * 37 % 997), value, offset)


def content_at(offset: int) -> dict[bytes, bytes]:
    database, _ = replayed(_SPEC, map(record, range(offset)))
    return dict(database.iterate(STORE, None, None))


def _columns(start: int, stop: int) -> tuple[list[Any], list[Any], list[int]]:
    return columns([record(offset) for offset in range(start, stop)])


def _position(offset: int) -> Position:
    return Position(offset=offset, topic_id=b"t" * 16, written_at_ms=0)


def write(root: Path) -> None:
    database = TaskDatabase.open(root / "0_0", [STORE], OPTIONS, SharedResources.create(OPTIONS))
    found = Position.decode(database.position(POSITION))
    if found is None:
        database.clear(STORE)
    end = 0 if found is None else found.offset
    staging = root / "staging"
    staging.mkdir(exist_ok=True)
    turn = os.getpid()
    while True:
        turn += 1
        start, end = end, end + STEP
        if turn % 3 == 0:
            rows = fold(_SPEC, *_columns(start, end))
            database.write({STORE: rows}, {POSITION: _position(end).encode()})
            continue
        from_nothing = turn % 3 == 1
        start = 0 if from_nothing else start
        builder = RunBuilder(
            _SPEC,
            staging,
            partition=0,
            from_offset=start,
            complete_from_zero=from_nothing,
            max_bytes=100_000,
        )
        for first in range(start, end, STEP):
            builder.add(*_columns(first, first + STEP), first + STEP)
        built = builder.finish(end)
        ingest_runs(
            database,
            _SPEC,
            built.files,
            time=built.time,
            position_name=POSITION,
            position=_position(end),
            from_nothing=from_nothing,
        )


def main() -> None:
    root = Path(sys.argv[1])
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                write(root)
            finally:
                os._exit(1)
        print(pid, flush=True)  # noqa: T201 - read by the test
        os.waitpid(pid, 0)
        print("gone", flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main()
