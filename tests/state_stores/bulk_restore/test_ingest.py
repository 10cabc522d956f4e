"""After a kill during ingestion, a store with a position has the content of its position."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state_stores.bulk_restore.ingest_writer import (
    OPTIONS,
    POSITION,
    STEP,
    content_at,
    record,
)
from tests.state_stores.bulk_restore.logs import (
    SPECS,
    STORE,
    Logged,
    columns,
    logs,
    replay,
    replayed,
    visible,
)
from tests.state_stores.bulk_restore.test_equality import Directories, build, directories
from tidewheel.state_stores.bulk_restore.ingest import BulkDatabase, ingest_runs
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.position import Position, store_time_name
from tidewheel.state_stores.layout.restore import StoreTime, fold
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.sorted_files import read_sorted_file
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.spec import StoreSpec

__all__ = ["directories"]

ROUNDS = 15
#: Rounds continue until kills hit between the first and last step, and after the last.
ROUNDS_MAX = 300
OF_EACH = 4


class Killed(BaseException): ...


@dataclass
class Disk:
    rows: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    positions: dict[str, bytes] = field(default_factory=dict[str, bytes])


class MortalDatabase(InMemoryDatabase):
    """Database on a disk whose process is killed at its n-th step.

    Writes are durable only after `make_durable`, ingested files immediately.
    """

    def __init__(self, disk: Disk, *, steps: int) -> None:
        super().__init__([STORE])
        super().write({STORE: list(disk.rows.items())}, disk.positions)
        self._disk = disk
        self._steps = steps

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise Killed

    def write(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        self._step()
        super().write(changes, positions, delete_ranges=delete_ranges)

    def clear(self, family: str) -> None:
        self._step()
        super().clear(family)

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        self._step()
        for file in files:
            rows = list(read_sorted_file(file))
            super().write({family: rows}, {})
            for key, value in rows:
                if value is None:
                    self._disk.rows.pop(key, None)
                else:
                    self._disk.rows[key] = value
            file.unlink()
        self._step()

    def make_durable(self) -> None:
        self._step()
        self._disk.rows = dict(self.iterate(STORE, None, None))
        self._step()
        names = (POSITION, store_time_name(STORE))
        self._disk.positions = {name: self.position(name) or b"" for name in names}
        self._step()


def at(offset: int) -> Position:
    return Position(offset=offset, topic_id=b"t" * 16, written_at_ms=offset)


def ingest(
    database: Any, spec: StoreSpec, built: BuiltRuns, end: int, *, from_nothing: bool
) -> None:
    ingest_runs(
        database,
        spec,
        built.files,
        time=built.time,
        position_name=POSITION,
        position=at(end),
        from_nothing=from_nothing,
    )


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_kill_at_any_step_keeps_the_store_exact(
    spec: StoreSpec, directories: Directories, data: Any
) -> None:
    records: list[Logged] = data.draw(logs(spec))
    end = records[-1].offset + 1 if records else 0
    begin = data.draw(st.integers(0, end))
    middle = data.draw(st.integers(begin, end))
    from_nothing = data.draw(st.booleans())
    # A store at `begin`, of which only an older state may be durable.
    durable = data.draw(st.integers(0, begin))
    disk = Disk()
    first = MortalDatabase(disk, steps=10_000)
    replay(spec, first, [record for record in records if record.offset < durable])
    first.write({}, {POSITION: at(durable).encode()})
    first.make_durable()
    database = MortalDatabase(disk, steps=10_000)
    replay(spec, database, [record for record in records if durable <= record.offset < begin])
    database.write({}, {POSITION: at(begin).encode()})
    assert isinstance(database, BulkDatabase)
    start = 0 if from_nothing else begin
    part = [record for record in records if start <= record.offset < middle]
    built = build(spec, directories(), part, offsets=(start, middle), complete=from_nothing)
    database._steps = data.draw(st.integers(0, 14))
    try:
        ingest(database, spec, built, middle, from_nothing=from_nothing)
    except Killed:
        survivor = MortalDatabase(disk, steps=10_000)
    else:
        survivor = database
        survivor._steps = 10_000
        assert Position.decode(survivor.position(POSITION)) == at(middle)
    found = Position.decode(survivor.position(POSITION))
    if found is None:
        survivor.write({}, {store_time_name(STORE): b""})
        survivor.clear(STORE)
    follow = 0 if found is None else found.offset
    replay(spec, survivor, [record for record in records if record.offset >= follow])
    expected, now = replayed(spec, records)
    assert visible(spec, survivor, now) == visible(spec, expected, now)


def test_an_old_position_never_covers_ingested_rows(directories: Directories) -> None:
    spec = SPECS["key-value"]
    for steps in range(14):
        disk = Disk({b"old": b"row"}, {POSITION: at(7).encode()})
        database = MortalDatabase(disk, steps=steps)
        built = build(spec, directories(), [Logged(0, b"a", b"1", 0)])
        try:
            ingest(database, spec, built, 1, from_nothing=True)
        except Killed:
            position = Position.decode(disk.positions[POSITION])
            assert position in {None, at(1), at(7)}
            if position is not None:
                assert set(disk.rows) == ({b"a"} if position == at(1) else {b"old"})
        else:
            assert disk.positions[POSITION] == at(1).encode()
            return
    raise AssertionError("it was never finished")


def test_ingested_files_are_moved_and_no_files_are_no_error(directories: Directories) -> None:
    spec = SPECS["key-value"]
    built = build(spec, directories(), [Logged(0, b"a", b"1", 0)])
    database = InMemoryDatabase([STORE])
    ingest(database, spec, built, 1, from_nothing=True)
    assert [file.path.exists() for file in built.files] == [False]
    ingest(database, spec, BuiltRuns((), StoreTime()), 5, from_nothing=False)
    assert [key for key, _ in database.iterate(STORE, None, None)] == [b"a"]
    assert Position.decode(database.position(POSITION)) == at(5)


def check(database: TaskDatabase, position: int) -> None:
    """Compare a store with its position: it may be one step ahead, never behind."""
    found = list(database.iterate(STORE, None, None))
    following = [record(offset) for offset in range(position, position + STEP)]
    database.write({STORE: fold(SPECS["key-value"], *columns(following))}, {})
    assert dict(database.iterate(STORE, None, None)) == content_at(position + STEP)
    database.clear(STORE)
    database.write({STORE: found}, {})


def both(seen: Sequence[int | None]) -> bool:
    without = seen.count(None)
    return min(without, len(seen) - without) >= OF_EACH


@pytest.mark.slow
def test_a_killed_process_leaves_no_store_that_differs_from_its_position(tmp_path: Path) -> None:
    chance = random.Random(7)
    path = tmp_path / "0_0"
    seen: list[int | None] = []
    with subprocess.Popen(
        [sys.executable, "-m", "tests.state_stores.bulk_restore.ingest_writer", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        while len(seen) < ROUNDS or not both(seen):
            assert len(seen) < ROUNDS_MAX, seen
            writer.stdin.write("go\n")
            pid = int(writer.stdout.readline())
            worker = psutil.Process(pid)
            # Later rounds last longer, until both kinds of kill have come, on any machine.
            wanted = chance.uniform(0.01, 0.15) * (1 + len(seen) / ROUNDS)
            # CPU time of the worker, because the machine may be busy.
            while sum(worker.cpu_times()[:2]) < wanted:
                time.sleep(0.001)
            os.kill(pid, signal.SIGKILL)
            assert writer.stdout.readline() == "gone\n"
            database = TaskDatabase.open(path, [STORE], OPTIONS, SharedResources.create(OPTIONS))
            position = Position.decode(database.position(POSITION))
            seen.append(None if position is None else position.offset)
            if position is not None:
                check(database, position.offset)
            database.close()
        writer.stdin.close()
        assert writer.wait(timeout=20) == 0
