"""The number of shards changes between lives of an application; the command is killed as well."""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.outcome import number_of
from tests.integration.processes import WorkerProcess
from tests.integration.programs.jobs import JOBS, STORE
from tests.streams.cli.command_runs import Command
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.kafka.internal_topics import offsets_group

#: Numbers of shards, one after the other.
COUNTS: Final = (1, 4, 2, 1)
WORKERS: Final = 2
KEYS: Final = 100
RECORDS_PER_S: Final = 300
#: Places at which the command is killed before it may end.
KILLED_AT: Final = ("before_flush", "before_commit", "after_commit")
_PROGRAM: Final = """
from tests.integration.programs.jobs import JOBS

config = {config!r}
topology = JOBS["count_by_key"]({source!r}, {sink!r})
"""


def _record(number: int) -> tuple[bytes, bytes]:
    return b"key %d" % (number * number % KEYS), b"x"


@dataclass
class _Run:
    """One application over one partition: its workers, and `tidewheel reshard`."""

    cluster: Cluster
    start_worker: StartWorker
    config: dict[str, Any]
    source: str
    sink: str
    folder: Path
    workers: dict[int, WorkerProcess] = field(default_factory=dict[int, WorkerProcess])
    lives: int = 0

    @property
    def application_id(self) -> str:
        return str(self.config["application_id"])

    def begin(self) -> None:
        self.cluster.create({self.source: 1, self.sink: 1})
        text = _PROGRAM.format(config=self.config, source=self.source, sink=self.sink)
        (self.folder / "shop.py").write_text(text)

    def start(self, slot: int, count: int) -> None:
        self.lives += 1
        worker = self.workers[slot] = self.start_worker(f"worker{slot}-{self.lives}")
        changed = self.config | {"partition_shards": count}
        worker.go("count_by_key", self.source, self.sink, changed, slot=slot, workers=WORKERS)

    def committed(self, shard: Shard) -> int:
        group = offsets_group(self.application_id, shard)
        return self.cluster.committed(group).get(TopicPartition(self.source, 0), 0)

    def reaches(self, shard: Shard, offset: int) -> bool:
        return self.committed(shard) >= offset

    def until_all_reach(self, count: int, offset: int) -> None:
        """Wait for the offset of each shard, and of the floor."""
        for shard in {*Shard.all_of(count), Shard()}:
            until(partial(self.reaches, shard, offset), f"shard {shard}", 3 * PATIENCE_S)

    def reshard(self, count: int, failpoint: str = "") -> int:
        """Run the command until it no longer refuses: killed workers seem alive for a while."""
        arguments = ["reshard", "shop.py:topology", "--shards", str(count), "--execute"]
        environment = {"FAILPOINT": f"{failpoint}:1:kill9"} if failpoint else {}
        codes: list[int] = []

        def is_over() -> bool:
            with Command(*arguments, cwd=self.folder, environment=environment) as command:
                codes.append(command.wait())
            return codes[-1] != ExitCode.REFUSED

        until(is_over, "the killed workers are gone", 3 * PATIENCE_S)
        return codes[-1]

    def check(self, sent: list[tuple[bytes, bytes]]) -> None:
        """Check outputs, in order by key, and state."""
        expected = Counter(key for key, _ in sent)
        output = {
            key: [number_of(value or b"") for value in values]
            for key, values in self.cluster.values_by_key(self.sink).items()
        }
        assert output == {key: list(range(1, count + 1)) for key, count in expected.items()}
        rows = self.cluster.folded(f"{self.application_id}-{STORE}-changelog")
        assert {key: number_of(value) for key, (value, _) in rows.items()} == expected


@pytest.fixture
def run(
    cluster: Cluster,
    config: dict[str, Any],
    unique: str,
    start_worker: StartWorker,
    tmp_path: Path,
) -> _Run:
    run = _Run(cluster, start_worker, config, f"in-{unique}", f"out-{unique}", tmp_path)
    run.begin()
    return run


@pytest.mark.timeout(3_600)
def test_K8_changes_of_the_number_lose_repeat_and_reorder_nothing(run: _Run) -> None:
    chance = random.Random(35)
    feed = SteadyFeed(run.cluster, run.source, _record, rate=RECORDS_PER_S)
    feed.start()
    for number, count in enumerate(COUNTS):
        if number:
            for worker in run.workers.values():
                worker.kill()
            killed = [run.reshard(count, failpoint=place) for place in KILLED_AT]
            assert killed == [-9] * len(KILLED_AT)
            assert run.reshard(count) == ExitCode.OK
        for slot in range(WORKERS):
            run.start(slot, count)
        # Shards are far apart when their workers die one after the other.
        for shard in Shard.all_of(count):
            wanted = run.committed(shard) + chance.randrange(1, RECORDS_PER_S)
            until(partial(run.reaches, shard, wanted), "the shard commits")
            slot = shard.number % WORKERS
            run.workers[slot].kill()
            run.start(slot, count)
        run.until_all_reach(count, 1)  # a number can change once every shard has committed
    feed.stop()
    run.until_all_reach(COUNTS[-1], len(feed.records))
    assert [worker.stop() for worker in run.workers.values()] == [0] * WORKERS
    run.check(feed.records)


def test_K8_a_group_goes_on_with_another_number_of_shards(run: _Run, start_app: StartApp) -> None:
    sent: list[tuple[bytes, bytes]] = []
    for number, count in enumerate(COUNTS):
        if number:
            assert run.reshard(count) == ExitCode.OK
        more = [_record(at) for at in range(len(sent), len(sent) + 500)]
        sent += more
        run.cluster.send(run.source, more)
        topology = JOBS["count_by_key"](run.source, run.sink)
        app = start_app(topology, run.config | {"partition_shards": count}, options=RunOptions())
        run.until_all_reach(count, len(sent))
        assert app.close(timeout=30_000)
    run.check(sent)
