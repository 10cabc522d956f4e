"""Ingesting runs: whatever is killed at whatever moment, a store that has a position is what its position says."""

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

from state_stores.bulk_restore.ingest import BulkDatabase, ingest_runs
from state_stores.bulk_restore.run_files import BuiltRuns
from state_stores.in_memory import InMemoryDatabase
from state_stores.position import Position
from state_stores.restore import StoreTime, fold
from state_stores.rocksdb.shared_resources import SharedResources
from state_stores.rocksdb.sorted_files import read_sorted_file
from state_stores.rocksdb.task_database import TaskDatabase
from state_stores.spec import StoreSpec
from state_stores.timed_buffer import note_name
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

__all__ = ["directories"]

ROUNDS = 15
#: As often more, until it was killed between the first step and the last, and behind the last.
ROUNDS_MAX = 300
OF_EACH = 4


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Disk:
    """What a kill leaves: one family and the positions."""

    rows: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    positions: dict[str, bytes] = field(default_factory=dict[str, bytes])


class MortalDatabase(InMemoryDatabase):
    """A database on a disk, whose process is killed at its n-th step.

    What is written is durable only after `make_durable`, as in RocksDB without a log; what is ingested is at once, and
    then stands above what was durable before.
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
        names = (POSITION, note_name(STORE))
        self._disk.positions = {name: self.position(name) or b"" for name in names}
        self._step()


def at(offset: int) -> Position:
    """Return a position of the test's topic."""
    return Position(offset=offset, topic_id=b"t" * 16, written_at_ms=offset)


def ingest(
    database: Any, spec: StoreSpec, built: BuiltRuns, end: int, *, from_nothing: bool
) -> None:
    """Take runs that end at an offset."""
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
def test_a_kill_at_any_step_does_no_harm(
    spec: StoreSpec, directories: Directories, data: Any
) -> None:
    """After the kill the store goes on from its position, or has none and begins anew: it equals a replay both ways."""
    records: list[Logged] = data.draw(logs(spec))
    end = records[-1].offset + 1 if records else 0
    begin = data.draw(st.integers(0, end))
    middle = data.draw(st.integers(begin, end))
    from_nothing = data.draw(st.booleans())
    # A store that stands at `begin`, of which an older state may be all that is durable.
    durable = data.draw(st.integers(0, begin))
    disk = Disk()
    first = MortalDatabase(disk, steps=10_000)
    replay(spec, first, [each for each in records if each.offset < durable])
    first.write({}, {POSITION: at(durable).encode()})
    first.make_durable()
    database = MortalDatabase(disk, steps=10_000)
    replay(spec, database, [each for each in records if durable <= each.offset < begin])
    database.write({}, {POSITION: at(begin).encode()})
    assert isinstance(database, BulkDatabase)
    start = 0 if from_nothing else begin
    part = [each for each in records if start <= each.offset < middle]
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
        survivor.write({}, {note_name(STORE): b""})
        survivor.clear(STORE)
    follow = 0 if found is None else found.offset
    replay(spec, survivor, [each for each in records if each.offset >= follow])
    expected, now = replayed(spec, records)
    assert visible(spec, survivor, now) == visible(spec, expected, now)


def test_an_old_position_never_speaks_of_ingested_rows(directories: Directories) -> None:
    """It is gone from the disk before the files are there, not only from memory."""
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


def test_files_are_used_up_and_nothing_is_no_error(directories: Directories) -> None:
    """Also by a database in memory; a stretch without any row has no file, and still its end is known."""
    spec = SPECS["key-value"]
    built = build(spec, directories(), [Logged(0, b"a", b"1", 0)])
    database = InMemoryDatabase([STORE])
    ingest(database, spec, built, 1, from_nothing=True)
    assert [file.path.exists() for file in built.files] == [False]
    ingest(database, spec, BuiltRuns((), StoreTime()), 5, from_nothing=False)
    assert [key for key, _ in database.iterate(STORE, None, None)] == [b"a"]
    assert Position.decode(database.position(POSITION)) == at(5)


def check(database: TaskDatabase, position: int) -> None:
    """Compare a store with its position: rows may be ahead of it by what the writer was about to note, never behind."""
    found = list(database.iterate(STORE, None, None))
    following = [record(offset) for offset in range(position, position + STEP)]
    database.write({STORE: fold(SPECS["key-value"], *columns(following))}, {})
    assert dict(database.iterate(STORE, None, None)) == content_at(position + STEP)
    database.clear(STORE)
    database.write({STORE: found}, {})


def both(seen: Sequence[int | None]) -> bool:
    """Return whether stores were found with a position and without one, some times each."""
    without = seen.count(None)
    return min(without, len(seen) - without) >= OF_EACH


@pytest.mark.slow
def test_a_killed_process_leaves_no_store_that_differs_from_its_position(tmp_path: Path) -> None:
    """FAULTS 6: killed again and again while it ingests, a store goes on from its position or has none."""
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
            # Later rounds last longer, until both kinds of kill have come, however slow the machine is.
            wanted = chance.uniform(0.01, 0.15) * (1 + len(seen) / ROUNDS)
            # By the worker's own clock, because on a busy machine ours tells nothing.
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
