"""Key ranges further apart in stream time than a window store's retention, with a kill -9."""

import shutil
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, Feed, until
from tests.integration.programs.slow_windows import HELD, WINDOW_MS, Orders
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import VectorPart

_ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.timeout(600)]

MINUTE = 60_000
HOUR = 60 * MINUTE
#: Some hours ago: brokers delete records older than a day from a window's changelog.
BEGIN_MS = (time.time_ns() // 1_000_000 - 6 * HOUR) // WINDOW_MS * WINDOW_MS
#: Minutes that other ranges run ahead: far longer than the retention, about one window.
APART_MINUTES = 300
FACTOR = 4
SLOW = "slow"

#: (key, minutes since the beginning, value) of a record.
Row = tuple[str, float, str]

#: Records before the slow key's blocked record, and records of other keys far later.
BEFORE: list[Row] = [(SLOW, 0, "v"), ("a", 1, "v"), (SLOW, 2, "v"), (SLOW, 8, "v"), ("b", 8, "v")]
APART: list[Row] = [
    (SLOW, 9, HELD),
    (SLOW, 9.5, "v"),
    *((f"k{minute % 17}", minute, "v") for minute in range(10, APART_MINUTES)),
    (SLOW, APART_MINUTES + 1, "v"),
]
BEHIND: list[Row] = [(SLOW, APART_MINUTES + 2, "v"), ("a", APART_MINUTES + 3, "v")]


class _Run:
    def __init__(self, cluster: Cluster, config: dict[str, Any], folder: Path) -> None:
        self.cluster, self.config, self.folder = cluster, config, folder
        self.application_id = str(config["application_id"])
        self.source, self.sink = f"{self.application_id}-in", f"{self.application_id}-out"
        self.lives: list[subprocess.Popen[bytes]] = []
        cluster.create({self.source: 1, self.sink: 1})

    def send(self, rows: list[Row]) -> None:
        with Feed(self.cluster, self.source) as feed:
            for key, minutes, value in rows:
                feed.send([(key.encode(), value.encode())], first_timestamp=_time_ms(minutes))

    def start(self, *, factor: int, holds: bool = False) -> subprocess.Popen[bytes]:
        orders = Orders(
            source=self.source,
            sink=self.sink,
            config=self.config | {"parallelising_factor": factor},
            holds=holds,
        )
        program = [sys.executable, "-m", "tests.integration.programs.slow_windows"]
        with self.log_path.open("ab") as log:
            life = subprocess.Popen(
                [*program, msgspec.json.encode(orders).decode()],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.lives.append(life)
        return life

    @property
    def log_path(self) -> Path:
        return self.folder / "lives.log"

    def until(self, condition: Any, what: str) -> None:
        until(lambda: self.lives[-1].poll() is not None or condition(), what)
        assert self.lives[-1].poll() is None, self.log_path.read_text(errors="replace")[-4000:]

    def until_consumed(self) -> None:
        self.until(lambda: self.cluster.is_consumed(self.application_id, self.source), "all is consumed")  # fmt: skip

    def ranges(self) -> tuple[VectorPart, ...]:
        offsets = self.cluster.admin.committed(self.application_id, None, stable=True)
        committed = offsets.get(TopicPartition(self.source, 0))
        if committed is None:
            return ()
        progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
        return () if progress is None else progress.vector.parts

    def are_ahead(self) -> bool:
        """Return True if only the slow key's range has committed nothing, and others everything."""
        ranges = self.ranges()
        mine = [
            key_range for key_range in ranges if key_range.first_hash <= zlib.crc32(SLOW.encode())
        ][-1:]
        others = {key_range.offset for key_range in ranges if key_range not in mine}
        ends = set(self.cluster.log_ends(self.source).values())
        return others == ends and [each.offset for each in mine] == [len(BEFORE)]

    def window_counts(self) -> dict[str, list[int]]:
        values = self.cluster.values_by_key(self.sink)
        return {
            key.decode(): [int(value or b"") for value in counts] for key, counts in values.items()
        }

    def close(self) -> None:
        for life in self.lives:
            life.kill()
            life.wait(PATIENCE_S)


@pytest.fixture
def run(cluster: Cluster, config: dict[str, Any], tmp_path: Path) -> Iterator[_Run]:
    made = _Run(cluster, config, tmp_path)
    yield made
    made.close()


def _time_ms(minutes: float) -> int:
    return BEGIN_MS + int(minutes * MINUTE)


def _counted(rows: list[Row]) -> dict[str, list[int]]:
    """Return the counts of each window; no record is late, since partition order decides."""
    times = [(key, _time_ms(minutes)) for key, minutes, _ in rows]
    windows = Counter(f"{key} {time_ms - time_ms % WINDOW_MS}" for key, time_ms in times)
    return {window: list(range(1, count + 1)) for window, count in windows.items()}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize(
    ("disk_is_lost", "factor"), [(False, FACTOR), (True, FACTOR), (True, 1)], ids=["disk", "no disk", "no disk, factor 1"]
)  # fmt: skip
def test_K3_K6_a_killed_worker_loses_no_window_of_a_range_that_is_hours_behind(
    run: _Run, guarantee: str, disk_is_lost: bool, factor: int
) -> None:
    run.config["processing_guarantee"] = guarantee
    run.start(factor=FACTOR, holds=True)
    run.send(BEFORE)
    run.until_consumed()
    run.send(APART)
    run.until(run.are_ahead, "the other ranges have done all there is")
    run.lives[-1].kill()
    run.lives[-1].wait(PATIENCE_S)
    assert run.window_counts()[f"{SLOW} {BEGIN_MS}"] == [1, 2, 3], "the slow key's window is open"
    if disk_is_lost:
        shutil.rmtree(run.config["state_dir"])
    run.send(BEHIND)
    run.start(factor=factor)
    run.until_consumed()
    run.lives[-1].terminate()
    assert run.lives[-1].wait(PATIENCE_S) == 0
    assert run.window_counts() == _counted([*BEFORE, *APART, *BEHIND])
