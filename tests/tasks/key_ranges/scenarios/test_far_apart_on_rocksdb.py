"""Key ranges days apart on RocksDB: kills and damage give the results of factor 1."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.key_ranges.scenarios.test_far_apart import (
    APART,
    BEFORE,
    BEHIND,
    SLOW,
    THREADS,
    WINDOWS,
    Gate,
    are_ahead,
    at_factor_one,
    bench_of,
    found,
    send,
    windowed,
)
from tests.tasks.loop.bench import Crash, Disk, Fuse
from tests.tasks.restore.test_run_restores import use_runs
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

_OPTIONS = RocksDBOptions()


class RocksDisk(Disk):
    """A disk of real databases.

    Attributes:
        root: Where they are.
    """

    def __init__(self, fuse: Fuse, root: Path) -> None:
        super().__init__(fuse)
        self.root = root

    def open(self, path: Path, families: list[str]) -> Any:
        self.root.mkdir(exist_ok=True)
        where = self.root / path.name
        return TaskDatabase.open(where, families, _OPTIONS, SharedResources.create(_OPTIONS))


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("threads", [1, THREADS])
@pytest.mark.parametrize("left", ["what was flushed", "nothing", "what was flushed, and runs"])
def test_K3_a_killed_worker_loses_no_window_of_a_slow_range(
    tmp_path: Path, name: str, threads: int, left: str
) -> None:
    gate = Gate()
    bench = bench_of(windowed(name, gate))
    disk = bench.disk = RocksDisk(bench.fuse, tmp_path / "first")
    killed = tmp_path / "killed"
    send(bench, BEFORE)
    assert bench.live(threads=THREADS)
    send(bench, APART)

    def kill(_worker: Any, _source: Any) -> None:
        if are_ahead(bench.broker, SLOW):
            shutil.copytree(disk.root, killed, ignore=shutil.ignore_patterns("LOCK"))
            raise Crash("killed")

    bench.at_poll.append(kill)
    assert not bench.live(threads=THREADS)
    bench.at_poll.clear()
    gate.opened.set()
    disk.root = tmp_path / "empty" if left == "nothing" else killed
    if left.endswith("runs"):
        use_runs(bench, tmp_path)
    send(bench, BEHIND)
    assert bench.live(threads=threads)
    started_at = [event.start for event in bench.events if event.kind == "start"]
    assert started_at, "something was restored"
    assert (started_at[0] == 0) is (left == "nothing"), "from where the files stand"
    assert found(bench.broker) == at_factor_one(name, [*BEFORE, *APART, *BEHIND])
