"""An application under a steady feed whose worker is killed by SIGKILL many times.

Each kill is classified by the dead worker's scoreboard in shared memory, which the worker writes
after each slice of records and at both ends of each commit.

- "Between two commits, with records uncommitted": the worker was RUNNING and in no commit,
  and a later worker started below its position. So records were lost and processed again.
- "Replays a tail": the next worker found a store with a position on disk, and restored at
  least one changelog record into it.
"""

import logging
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

from tests.integration.cluster import Cluster, SteadyFeed, until
from tests.integration.processes import WorkerProcess
from tests.integration.programs.jobs import STORE
from tests.integration.programs.probes import STATE_NUMBERS
from tidewheel.rebalance.model import TopicPartition

_log = logging.getLogger(__name__)

RECORDS_PER_S: Final = 5_000
FEED_S: Final = 40.5
KILLS: Final = 20
KILLS_BETWEEN_COMMITS: Final = 15
TAILS_REPLAYED: Final = 5
#: A run without enough hits after this many kills never gets them.
_KILLS_MOST: Final = 60
#: At the default of 0.1 s, four workers on two cores spend half their time in commits.
COMMIT_INTERVAL_S: Final = 0.2
#: A worker is killed after at most this many commits.
_COMMITS_MOST: Final = 4
#: Seconds: about the duration of a start.
_START_S: Final = 0.7
#: One kill in this many hits a start; the others hit the processing of records.
_EARLY_ONE_IN: Final = 7

_RUNNING: Final = next(number for state, number in STATE_NUMBERS.items() if state == "RUNNING")


@dataclass(slots=True, kw_only=True)
class Counts:
    kills: int = 0
    between_commits: int = 0
    in_commit: int = 0
    while_starting: int = 0
    tails_replayed: int = 0
    records_lost: int = 0
    records_replayed: int = 0

    @property
    def enough(self) -> bool:
        return (
            self.kills >= KILLS
            and self.between_commits >= KILLS_BETWEEN_COMMITS
            and self.tails_replayed >= TAILS_REPLAYED
        )


@dataclass(slots=True)
class CrashRun:
    """One run; `exit_code` belongs to the last worker, which is not killed."""

    cluster: Cluster
    job: str
    config: dict[str, Any]
    folder: Path
    seed: int
    counts: Counts = field(default_factory=Counts)
    exit_code: int | None = None
    fed_s: float = 0.0
    records: list[tuple[bytes, bytes]] = field(default_factory=list)
    _unjudged: list[dict[str, int]] = field(default_factory=list)
    _thread: Thread | None = None
    _error: BaseException | None = None

    @property
    def application_id(self) -> str:
        return str(self.config["application_id"])

    @property
    def source(self) -> str:
        return f"{self.application_id}-in"

    @property
    def sink(self) -> str:
        return f"{self.application_id}-out"

    @property
    def changelog(self) -> str:
        return f"{self.application_id}-{STORE}-changelog"

    def in_each_partition(self) -> dict[TopicPartition, int]:
        topics = [self.source]
        if self.job == "word_count":
            topics.append(f"{self.application_id}-{STORE}-repartition")
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(2)]
        return self.cluster.admin.stable_offsets(partitions)

    def start(self) -> None:
        self.folder.mkdir()
        self.cluster.create({self.source: 2, self.sink: 2})
        self._thread = Thread(target=self._run, name=self.application_id, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        assert self._thread is not None, "start comes first"
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        chance = random.Random(self.seed)
        feed = SteadyFeed(
            self.cluster, self.source, lambda _: self._record(chance), rate=RECORDS_PER_S
        )
        feed.start()
        # The next worker has imported everything before it is needed; this shortens the run.
        worker, ready = self._worker(), self._worker()
        try:
            self._go(worker)
            waits = random.Random(self.seed + 1)
            while not self.counts.enough:
                assert self.counts.kills < _KILLS_MOST, f"too many kills: {self.counts}"
                self._kill(worker, waits)
                worker, ready = ready, self._worker()
                self._go(worker)
            self._wait_until_processing(worker)
            until(lambda: feed.elapsed_s > FEED_S, "the feed has run its time")
            feed.stop()
            self.records, self.fed_s = feed.records, feed.elapsed_s
            self._catch_up(worker)
            self.exit_code = worker.stop()
            _log.info("%s: fed for %.0f s, %s", self.application_id, self.fed_s, self.counts)
        except BaseException as error:  # noqa: BLE001 - raised by finish, in the test's thread
            error.add_note(f"the worker's log:\n{worker.log[-3000:]}")
            self._error = error
        finally:
            feed.stop()
            worker.close()
            ready.close()

    def _record(self, chance: random.Random) -> tuple[bytes, bytes]:
        if self.job == "word_count":
            # Squared: some words are frequent and most are rare.
            words = (int(chance.random() ** 2 * 3_000) for _ in range(chance.randint(1, 3)))
            text = " ".join(f"word-{word:04}" for word in words).encode()
            return b"line-%03d" % chance.randrange(1_000), text
        return b"key-%04d" % int(chance.random() ** 2 * 2_000), b"x" * 20

    def _worker(self) -> WorkerProcess:
        return WorkerProcess(self.folder, f"life-{len(list(self.folder.glob('*.log')))}")

    def _go(self, worker: WorkerProcess) -> None:
        worker.go(self.job, self.source, self.sink, self.config)

    def _kill(self, worker: WorkerProcess, waits: random.Random) -> None:
        if waits.randrange(_EARLY_ONE_IN):
            self._wait_until_processing(worker)
            # Counted in commits that change state, not in seconds: a slow machine would otherwise
            # never get beyond the repartition topic.
            changes = waits.randint(1, _COMMITS_MOST)
            until(
                lambda: worker.numbers().get("changes", 0) >= changes or worker.has_ended,
                f"{worker.name} commits {changes} changes of its state",
            )
            time.sleep(waits.uniform(0.0, COMMIT_INTERVAL_S))
        else:
            time.sleep(waits.uniform(0.0, _START_S))
        assert not worker.has_ended, f"{worker.name} ended by itself: {worker.log[-3000:]}"
        worker.kill()
        self.counts.kills += 1
        numbers = worker.numbers()
        self._unjudged.append(numbers)
        self._count_tail(numbers)
        worker.close()

    def _wait_until_processing(self, worker: WorkerProcess) -> None:
        worker.wait_until_running()
        until(
            lambda: _processed(worker.numbers()) > 0 or worker.has_ended,
            f"{worker.name} processes records",
        )
        lives = [*self._unjudged, worker.numbers()]
        for index, dead in enumerate(self._unjudged):
            self._judge(dead, lives[index + 1 :])
        self._unjudged = []

    def _judge(self, dead: dict[str, int], successors: list[dict[str, int]]) -> None:
        lost = _lost(dead, successors)
        if dead.get("state") != _RUNNING:
            self.counts.while_starting += 1
        elif dead.get("committing"):
            self.counts.in_commit += 1
        elif lost:
            self.counts.between_commits += 1
            self.counts.records_lost += lost

    def _count_tail(self, numbers: dict[str, int]) -> None:
        tail = sum(
            count
            for name, count in numbers.items()
            if name.startswith("restored:")
            and numbers["restore-from:" + name.removeprefix("restored:")] > 0
        )
        if tail:
            self.counts.tails_replayed += 1
            self.counts.records_replayed += tail

    def _catch_up(self, worker: WorkerProcess) -> None:
        topics = [self.source]
        if self.job == "word_count":
            # In this order: records committed in the source are then in the repartition topic.
            topics.append(f"{self.application_id}-{STORE}-repartition")
        for topic in topics:
            self.cluster.wait_until_consumed(self.application_id, topic)
        assert worker.is_running, f"{worker.name} has caught up and runs"


def _processed(numbers: dict[str, int]) -> int:
    return sum(
        numbers["position:" + name.removeprefix("start:")] - start
        for name, start in numbers.items()
        if name.startswith("start:")
    )


def _lost(dead: dict[str, int], successors: list[dict[str, int]]) -> int:
    lost = 0
    for name, position in dead.items():
        if name.startswith("position:"):
            start = "start:" + name.removeprefix("position:")
            begun = next((life[start] for life in successors if start in life), position)
            lost += max(position - begun, 0)
    return lost
