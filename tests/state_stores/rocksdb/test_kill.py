"""A writer is killed repeatedly; no store is behind its stored position."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.state_stores.rocksdb.kill_writer import OPTIONS, STORES, row
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase

KILLS_MIN = 100 if os.environ.get("TIDEWHEEL_FAULTS", "0") not in ("", "0") else 40

#: The position must have advanced before more kills than this.
ADVANCED_MIN = KILLS_MIN // 4
#: On a slow machine most writers die before RocksDB has flushed anything; such a kill tests nothing.
KILLS_MAX = 400


@pytest.mark.slow
@pytest.mark.fault("5b")
def test_no_family_is_behind_its_position_after_a_kill(
    path: Path, record_property: Callable[..., None]
) -> None:
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
    record_property("times", kills)
    # Otherwise nothing was flushed before the kills.
    assert advanced > ADVANCED_MIN


def work(writer: psutil.Process, cpu_s: float) -> None:
    """Let a process run for this CPU time, because the machine may be busy."""
    while sum(writer.cpu_times()[:2]) < cpu_s:
        time.sleep(0.001)


def check(path: Path) -> int:
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
