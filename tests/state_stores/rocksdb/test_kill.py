"""FAULTS 5b: a writer is killed repeatedly; no store is behind its stored position."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from state_stores.rocksdb.shared_resources import SharedResources
from state_stores.rocksdb.task_database import TaskDatabase
from tests.state_stores.rocksdb.kill_writer import OPTIONS, STORES, row

#: Least number of kills; the position must have advanced before more than ADVANCED_MIN of them.
KILLS_MIN = 40
ADVANCED_MIN = KILLS_MIN // 4

#: Limit on a slow machine, where most writers die before RocksDB has flushed anything.
KILLS_MAX = 400


@pytest.mark.slow
def test_no_family_is_behind_its_position_after_a_kill(path: Path) -> None:
    """After each kill -9 at a random moment every store has every row up to the stored position."""
    chance = random.Random(20)
    advanced = 0
    before = 0
    with subprocess.Popen(
        [sys.executable, "-m", "tests.state_stores.rocksdb.kill_writer", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for kills in range(KILLS_MAX):
            if kills >= KILLS_MIN and advanced > ADVANCED_MIN:
                break
            writer.stdin.write("go\n")
            pid = int(writer.stdout.readline())
            # The kill may hit any step, including the opening.
            work(psutil.Process(pid), chance.uniform(0, 0.15))
            time.sleep(chance.uniform(0, 0.01))
            os.kill(pid, signal.SIGKILL)
            assert writer.stdout.readline() == "gone\n"
            position = check(path)
            assert position >= before
            advanced += position > before
            before = position
        writer.stdin.close()
        assert writer.wait(timeout=20) == 0
    # Otherwise nothing was flushed before the kills.
    assert advanced > ADVANCED_MIN


def work(writer: psutil.Process, cpu_s: float) -> None:
    """Wait until a process has used this CPU time; wall time depends on the machine's load."""
    while sum(writer.cpu_times()[:2]) < cpu_s:
        time.sleep(0.001)


def check(path: Path) -> int:
    """Compare every store with its position; return the position."""
    resources = SharedResources.create(OPTIONS)
    database = TaskDatabase.open(path, STORES, OPTIONS, resources)
    try:
        positions = {store: int(database.position(store) or b"0") for store in STORES}
        for store, position in positions.items():
            wanted = [row(number) for number in range(1, position + 1)]
            assert None not in database.get_many(store, wanted), f"{store} is behind {position}"
            (latest,) = database.get_many(store, [b"latest"])
            assert int(latest or b"0") >= position
        assert len(set(positions.values())) == 1, "all positions are written together"
        return positions["a"]
    finally:
        database.close()
