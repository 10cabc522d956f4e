"""Rest: a running application comes to a clean cut of its input, and continues from there."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster, Received, SteadyFeed, until
from tests.integration.conftest import StartWorker
from tests.integration.processes import WorkerProcess
from tests.streams.cli.command_runs import Command
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.exit_codes import ExitCode

PARTITIONS: Final = 4
GROUPS: Final = 29
RATE: Final = 1_000


def _record(number: int) -> tuple[bytes, bytes]:
    return b"key-%d" % (number % 101), b"%d g%d" % (number, number * 7 % GROUPS)


class Application:
    """Members of one group that count behind a repartition topic, under load."""

    def __init__(
        self,
        cluster: Cluster,
        config: dict[str, Any],
        unique: str,
        start: StartWorker,
        job: str = "rekeyed_counts",
    ) -> None:
        self.cluster = cluster
        self.config = config | {"settling_ms": 0, "processing_guarantee": "exactly_once"}
        self.id = str(config["application_id"])
        self.source, self.sink = f"in-{unique}", f"out-{unique}"
        self.job = job
        self._start = start
        cluster.create({self.source: PARTITIONS, self.sink: PARTITIONS})
        self.feed = SteadyFeed(cluster, self.source, _record, rate=RATE)

    def start(self, name: str, **settings: Any) -> WorkerProcess:
        worker = self._start(name)
        worker.go(self.job, self.source, self.sink, self.config | settings, fixed=False)
        return worker

    def command(self, name: str, *options: str) -> Command:
        servers = self.cluster.bootstrap_servers
        return Command("group", name, self.id, "--bootstrap-servers", servers, "--json", *options)

    def rest(self) -> dict[TopicPartition, int]:
        with self.command("rest") as command:
            code = command.wait()
        assert code == ExitCode.OK, command.said
        return cut_in(command.said)

    def resume(self) -> None:
        with self.command("resume") as command:
            assert command.wait() == ExitCode.OK, command.said

    def check_cut(self, cut: Mapping[TopicPartition, int]) -> None:
        """Check that the records below the cut have exactly their outputs, and no others any."""
        below = [
            record
            for record in self.cluster.read(self.source)
            if record.offset < cut[TopicPartition(self.source, record.partition)]
        ]
        self.check_outputs(below)

    def check_outputs(self, inputs: list[Received]) -> None:
        outputs = self.cluster.read(self.sink)
        expected = Counter(
            (group, record_id)
            for record in inputs
            for record_id, group in [(record.value or b"").split()]
        )
        assert Counter(_output(record) for record in outputs) == expected
        counts: dict[bytes, list[int]] = {}
        for record in outputs:
            counts.setdefault(record.key, []).append(int((record.value or b"").split()[0]))
        assert counts == {key: list(range(1, len(each) + 1)) for key, each in counts.items()}


def _output(record: Received) -> tuple[bytes, bytes]:
    return record.key, (record.value or b"").split()[1]


def cut_in(said: str) -> dict[TopicPartition, int]:
    answer = json.loads(said.splitlines()[-1])
    assert answer["at_rest"] is True
    return {TopicPartition(row["topic"], row["partition"]): row["offset"] for row in answer["cut"]}


@pytest.mark.parametrize("factor", [1, 4])
def test_an_application_under_load_comes_to_a_clean_cut_and_continues(
    cluster: Cluster, config: dict[str, Any], unique: str, start_worker: StartWorker, factor: int
) -> None:
    application = Application(
        cluster, config | {"parallelising_factor": factor}, unique, start_worker
    )
    application.feed.start()
    for name in ("first", "second"):
        application.start(name).wait_until_running()
    until(lambda: len(cluster.read(application.sink)) > RATE, "results arrive")
    cut = application.rest()
    assert set(cut) == {TopicPartition(application.source, each) for each in range(PARTITIONS)}
    sent = len(application.feed.records)
    until(lambda: len(application.feed.records) > sent + RATE, "more input arrives")
    application.check_cut(cut)
    assert application.rest() == cut, "it stays there"
    application.resume()
    application.feed.stop()
    cluster.wait_until_consumed(application.id, application.source)
    application.rest()
    application.check_outputs(cluster.read(application.source))
