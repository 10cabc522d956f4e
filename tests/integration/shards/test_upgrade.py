"""An application goes on from the last version without shards, and shares partitions then."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartWorker
from tests.integration.earlier_version import unpack_version_before_shards
from tests.integration.groups.group_run import EXACT_AND_QUICK, GroupRun, begun
from tests.integration.outcome import number_of
from tests.integration.processes import WorkerProcess
from tests.streams.cli.command_runs import Command
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.rebalance.protocol.messages import PROTOCOL_MAX
from tidewheel.rebalance.protocol.records import SHARDS_HOLD, GroupRecord
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.tasks.kafka.internal_topics import offsets_group

PARTITIONS: Final = 4
KEYS: Final = 40
RATE: Final = 800
MOVE_S: Final = 60.0
#: Watchdogs are killed until one of the wanted member leads.
TRIES: Final = 5


@pytest.fixture(scope="module")
def before_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_version_before_shards(tmp_path_factory.mktemp("before-shards"))


@pytest.fixture
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupRun]:
    run = GroupRun(
        cluster=cluster,
        folder=tmp_path_factory.mktemp("upgrade"),
        application_id=f"upgrade-{time.monotonic_ns() % 10**9}",
        partitions=PARTITIONS,
        keys=KEYS,
        rate=RATE,
        standstill_max=4,
        config=EXACT_AND_QUICK | {"acceptable_recovery_lag": RATE * 2},
    )
    with begun(run):
        yield run


def _replace(run: GroupRun, name: str, **version: Path) -> None:
    """Restart a static member in another version: only its own tasks wait for it."""
    with run.operation(f"{name} restarts", unmoved=PARTITIONS // 2, promoted=0):
        run.stop(name)
        run.start(name, group_instance_id=name, **version)
        run.until_shared_by([2, 2], ["a", "b"], MOVE_S)


def _elect(run: GroupRun, name: str) -> None:
    """Kill watchdogs until this member leads; no task moves."""
    with run.operation(f"{name} leads", unmoved=PARTITIONS, promoted=0):
        for _ in range(TRIES):
            if run.leader().name == name:
                return
            epoch = run.claim().leader_epoch
            run.leader().kill_watchdog()
            until(
                lambda epoch=epoch: run.claim().leader_epoch > epoch,  # type: ignore[misc] # mypy: cannot infer type of lambda
                "a new leader claims",
            )
    raise AssertionError(f"{name} does not lead after {TRIES} tries")


@pytest.mark.timeout(600)
@pytest.mark.alone
def test_N14_K8_a_group_rolls_from_the_version_before_shards(
    run: GroupRun, before_shards: Path
) -> None:
    run.start("a", root=before_shards, group_instance_id="a")
    run.until_counted()
    run.start("b", root=before_shards, group_instance_id="b")
    with run.feeding():
        run.until_shared_by([2, 2], ["a", "b"], MOVE_S)
    assert run.leader().name == "a"
    _replace(run, "b")
    assert run.leader().name == "a"  # an old member leads one of each version
    _elect(run, "b")
    _replace(run, "a", root=before_shards)  # the new one leads an old one that comes back
    assert run.leader().name == "b"
    _replace(run, "a")
    abouts = [record for record in run.records() if isinstance(record, GroupRecord)]
    assert abouts[-1].group_version == PROTOCOL_MAX


SHARDS: Final = 4
_PROGRAM: Final = """
from tests.integration.programs.jobs import JOBS

config = {config!r}
topology = JOBS["count_by_key"]({source!r}, {sink!r})
"""


class _Application:
    """A group over one partition; its workers count by key, each in a version of its own."""

    def __init__(
        self,
        cluster: Cluster,
        config: dict[str, Any],
        unique: str,
        folder: Path,
        start: StartWorker,
    ) -> None:
        self.cluster = cluster
        self.config = config | {"settling_ms": 0}
        self.id = str(config["application_id"])
        self.source, self.sink = f"in-{unique}", f"out-{unique}"
        self._folder, self._start = folder, start
        self._sent: list[tuple[bytes, bytes]] = []
        cluster.create({self.source: 1, self.sink: 1})
        text = _PROGRAM.format(config=self.config, source=self.source, sink=self.sink)
        (folder / "shop.py").write_text(text)

    def start(self, name: str, shards: int = 0, **version: Path) -> WorkerProcess:
        worker = self._start(name, **version)
        settings = {"group_instance_id": name} | ({"partition_shards": shards} if shards else {})
        worker.go("count_by_key", self.source, self.sink, self.config | settings, fixed=False)
        return worker

    def feed(self, shards: int = 1) -> None:
        """Write records, and wait until all shards have counted them and the floor has followed."""
        begin = len(self._sent)
        more = [
            (b"key %d" % (number * number % KEYS), b"x") for number in range(begin, begin + 200)
        ]
        self._sent += more
        self.cluster.send(self.source, more)
        at = TopicPartition(self.source, 0)
        groups = {self.id, *(offsets_group(self.id, shard) for shard in Shard.all_of(shards))}
        until(
            lambda: all(
                self.cluster.committed(group).get(at) == len(self._sent) for group in groups
            ),
            "all records are counted",
            2 * PATIENCE_S,
        )

    def command(self, *arguments: str, until_code: int = ExitCode.OK) -> None:
        """Run a command, again while it refuses because members that ended seem alive."""

        def is_over() -> bool:
            with Command(*arguments, cwd=self._folder) as command:
                return command.wait() == until_code

        until(is_over, f"{arguments} ends", 3 * PATIENCE_S)

    def check(self) -> None:
        expected = Counter(key for key, _ in self._sent)
        output = {
            key: [number_of(value or b"") for value in values]
            for key, values in self.cluster.values_by_key(self.sink).items()
        }
        assert output == {key: list(range(1, count + 1)) for key, count in expected.items()}


@pytest.fixture
def app(
    cluster: Cluster,
    config: dict[str, Any],
    unique: str,
    tmp_path: Path,
    start_worker: StartWorker,
) -> _Application:
    return _Application(cluster, config, unique, tmp_path, start_worker)


@pytest.mark.timeout(300)
def test_N14_K8_an_earlier_version_gets_no_task_of_an_application_with_shards(
    app: _Application, before_shards: Path
) -> None:
    worker = app.start("whole", root=before_shards)
    app.feed()
    assert worker.stop() == ExitCode.OK
    change = ("reshard", "shop.py:topology", "--shards", str(SHARDS), "--execute")
    app.command(*change)
    worker = app.start("sharded", SHARDS)
    app.feed(SHARDS)

    refused = app.start("refused", root=before_shards)
    assert refused.wait() == ExitCode.INCOMPATIBLE_MEMBER
    assert f"upgrade its program, and start it with partition_shards={SHARDS}" in refused.log
    app.feed(SHARDS)  # the owner goes on
    assert worker.stop() == ExitCode.OK

    leading = app.start("leading", root=before_shards)  # no other member is there
    until(lambda: SHARDS_HOLD in leading.log, "the earlier version leads the group and holds it")
    until(lambda: "joined the group" in leading.log, "it is a member")
    assert leading.stop() == ExitCode.OK
    held = app.start("held", SHARDS)
    until(lambda: SHARDS_HOLD in held.log, "the group stays held")
    assert held.stop() == ExitCode.OK
    app.command(
        "group", "recover", "shop.py:topology", "--set", f"partition_shards={SHARDS}", "--execute"
    )
    app.start("recovered", SHARDS)
    app.feed(SHARDS)
    app.check()
