"""Consecutive workers with a slow function, and checks of their journals and commits.

A *call* is one run of the user's function for one record. A record is done if its offset is below
the next offset of its key's range in the commit metadata.
"""

import os
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.progress import CommitRecord
from benchmarks.topics.commit_log import read_commits
from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.programs.slow_member import STORE, Orders
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import VectorPart

_ROOT: Final = Path(__file__).resolve().parents[3]

#: Partition and offset.
Place = tuple[int, int]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call; `ended_ms` is None if the worker died during it."""

    place: Place
    key_hash: int
    begun_ms: int
    ended_ms: int | None


def ranges_of(commit: CommitRecord) -> tuple[VectorPart, ...]:
    progress = Progress.decode(commit.metadata, committed_offset=commit.offset)
    assert progress is not None, f"the commit has our metadata: {commit}"
    return progress.vector.parts


def range_of(commit: CommitRecord, key_hash: int) -> VectorPart:
    ranges = ranges_of(commit)
    return ranges[bisect_right(ranges, key_hash, key=lambda key_range: key_range.first_hash) - 1]


class Life:
    def __init__(self, run: "ParallelRun", number: int, orders: Orders) -> None:
        self.journal = Path(orders.journal)
        self.log_path = run.folder / f"life-{number}.log"
        self.started_ms = now_ms()
        program = [sys.executable, "-m", "tests.integration.programs.slow_member"]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, msgspec.json.encode(orders).decode()],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def until_begun(self, count: int) -> None:
        until(
            lambda: self.has_ended or sum(line[0] == "b" for line in self._lines()) >= count,
            f"{count} calls begin; the log:\n{self.log[-2000:]}",
        )
        self.check()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def check(self) -> None:
        assert not self.has_ended, f"it ended:\n{self.log[-4000:]}"

    def kill(self) -> None:
        self.check()
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def calls(self) -> list[Call]:
        begun: dict[Place, Call] = {}
        for event, partition, offset, key_hash, at_ms in self._lines():
            place = int(partition), int(offset)
            if event == "b":
                assert place not in begun, f"{place} was called twice in one life"
                begun[place] = Call(
                    place=place, key_hash=int(key_hash), begun_ms=int(at_ms), ended_ms=None
                )
            else:
                begun[place] = replace(begun[place], ended_ms=int(at_ms))
        return list(begun.values())

    def _lines(self) -> Iterator[list[str]]:
        if self.journal.exists():
            whole, _, _ = self.journal.read_text().rpartition("\n")
            yield from (line.split() for line in whole.splitlines())


@dataclass(slots=True, kw_only=True)
class ParallelRun:
    cluster: Cluster
    folder: Path
    config: dict[str, Any]
    partitions: int = 2
    lives: list[Life] = field(default_factory=list[Life])

    @property
    def application_id(self) -> str:
        return str(self.config["application_id"])

    @property
    def source(self) -> str:
        return f"{self.application_id}-in"

    @property
    def sink(self) -> str:
        return f"{self.application_id}-out"

    def create_topics(self) -> None:
        self.cluster.create({self.source: self.partitions, self.sink: self.partitions})

    def start(self, config: dict[str, Any] | None = None, **orders: Any) -> Life:
        number = len(self.lives)
        life = Life(
            self,
            number,
            Orders(
                source=self.source,
                sink=self.sink,
                config=self.config | (config or {}),
                journal=str(self.folder / f"life-{number}.calls"),
                **orders,
            ),
        )
        self.lives.append(life)
        return life

    def commits(self) -> list[CommitRecord]:
        return read_commits(self.cluster.bootstrap_servers, self.application_id, self.source)

    def until_consumed(self, life: Life) -> None:
        until(
            lambda: life.has_ended or self.cluster.is_consumed(self.application_id, self.source),
            f"all is consumed; the log:\n{life.log[-2000:]}",
        )
        life.check()

    def assert_exact(self, records: Iterable[tuple[bytes, bytes]], guarantee: str) -> None:
        expected: dict[bytes, list[bytes]] = {}
        for key, value in records:
            counts = expected.setdefault(key, [])
            counts.append(b"%d %b" % (len(counts) + 1, value))
        output = self.cluster.values_by_key(self.sink)
        if guarantee == "exactly_once":
            assert output == expected
        else:
            assert {key: set(values) for key, values in output.items()} == {
                key: set(values) for key, values in expected.items()
            }
        changelog = self.cluster.folded(f"{self.application_id}-{STORE}-changelog")
        assert {key: int.from_bytes(value, "big") for key, (value, _) in changelog.items()} == {
            key: len(values) for key, values in expected.items()
        }

    def close(self) -> None:
        for life in self.lives:
            life.process.kill()
            life.process.wait(PATIENCE_S)


def last_commits(commits: Iterable[CommitRecord], *, before_ms: int) -> dict[int, CommitRecord]:
    return {commit.partition: commit for commit in commits if commit.at_ms < before_ms}


def is_done(call: Call, last: dict[int, CommitRecord]) -> bool:
    commit = last.get(call.place[0])
    return commit is not None and call.place[1] < range_of(commit, call.key_hash).offset


def most_at_once(calls: Iterable[Call]) -> int:
    events: list[tuple[int, int]] = []
    for call in calls:
        events.append((call.begun_ms, 1))
        if call.ended_ms is not None:
            events.append((call.ended_ms, -1))
    most = at_once = 0
    for _, change in sorted(events):  # within one millisecond ends sort before starts
        at_once += change
        most = max(most, at_once)
    return most


def assert_in_order(calls: Iterable[Call]) -> None:
    last: dict[tuple[int, int], Call] = {}
    for call in calls:
        place = call.place[0], call.key_hash
        before = last.get(place)
        if before is not None:
            assert before.place < call.place, f"{call} came after {before}"
            assert before.ended_ms is not None, f"{call} began while {before} was in hand"
            assert before.ended_ms <= call.begun_ms, f"{call} began while {before} was in hand"
        last[place] = call
