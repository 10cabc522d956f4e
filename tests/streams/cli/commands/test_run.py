"""`tidewheel run` with real workers on a real Kafka."""

import os
import secrets
import signal
import time
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, until
from tests.streams.cli.command_runs import Command
from tests.streams.processes.supervisor.scenario import IMPATIENT, QUICK, is_alive
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.supervisor.supervisor import Supervisor
from tidewheel.streams.processes.supervisor.worker_messages import (
    MetricsReported,
    NextRecord,
    Report,
    StartWorker,
    StateChanged,
    WorkerReady,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROGRAM = """
from tidewheel import StreamsBuilder

def shout(value):
    if value == "poison":
        raise ValueError("cannot be shouted")
    return value.upper()

def topology():
    builder = StreamsBuilder()
    builder.stream("{input}", key_serde=str, value_serde=str).map_values(shout).to(
        "{output}", key_serde=str, value_serde=str
    )
    return builder

config = {{"application_id": "{app}", "commit_interval_ms": 50}}
"""


class Shouting:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        word = secrets.token_hex(4)
        self.cluster = cluster
        self.input, self.output, self.app = f"in-{word}", f"out-{word}", f"app-{word}"
        self.program = folder / f"shout_{word}.py"
        self.program.write_text(
            PROGRAM.format(input=self.input, output=self.output, app=self.app), encoding="utf-8"
        )
        self.state_dir = folder / "state"

    @property
    def target(self) -> str:
        return f"{self.program}:topology"

    def arguments(self, *more: str, state_dir: Path | None = None) -> list[str]:
        servers = self.cluster.bootstrap_servers
        where = str(state_dir or self.state_dir)
        return ["run", self.target, "--bootstrap-servers", servers, "--state-dir", where, *more]

    def start(self) -> StartWorker:
        servers, state_dir = self.cluster.bootstrap_servers, str(self.state_dir)
        return StartWorker(
            target=self.target,
            fixed=True,
            overrides={"bootstrap_servers": servers, "state_dir": state_dir},
        )

    def create(self, partitions: int = 2) -> None:
        self.cluster.create({self.input: partitions, self.output: partitions})

    def say(self, *words: str) -> None:
        self.cluster.send(self.input, [(word.encode(), word.encode()) for word in words])

    def heard(self) -> set[bytes | None]:
        return {record.value for record in self.cluster.read(self.output)}


@pytest.fixture
def shouting(cluster: Cluster, tmp_path: Path) -> Shouting:
    return Shouting(cluster, tmp_path)


def test_R1_two_worker_processes_share_the_tasks_and_survive_kill_9(shouting: Shouting) -> None:
    shouting.create()
    shouting.say("one", "two", "three", "four")
    with Command(*shouting.arguments("--workers", "2")) as command:
        until(lambda: shouting.heard() == {b"ONE", b"TWO", b"THREE", b"FOUR"}, command.said)
        command.until_said("REBALANCING -> RUNNING", 2)
        os.kill(command.workers[0], signal.SIGKILL)
        command.until_said("starting it again in 1.0 s")
        shouting.say("five", "six", "seven", "eight")
        until(lambda: len(shouting.heard()) == 8, command.said)
        command.signal(signal.SIGTERM)
        assert command.wait() == ExitCode.OK, command.said
        assert '"slot":0' in command.said
        assert '"slot":1' in command.said


def test_a_second_command_takes_the_next_slots_and_keeps_them(shouting: Shouting) -> None:
    shouting.create()
    with Command(*shouting.arguments()) as first:
        first.until_said("REBALANCING -> RUNNING")
        with Command(*shouting.arguments("--workers", "2")) as second:
            second.until_said("REBALANCING -> RUNNING", 2)
            holder = f"slot 0 is held by process {first.workers[0]} on "
            assert second.said.count(holder) >= 1
            assert f"{shouting.app}, slot 1," in second.said
            assert f"{shouting.app}, slot 2," in second.said
            second.kill_worker(second.workers[1])

            def starts() -> list[int]:
                return [second.said.count(f"{shouting.app}, slot {slot},") for slot in range(4)]

            until(lambda: sum(starts()) == 3, second.said)
            assert sorted(starts()) == [0, 0, 1, 2]
            assert starts()[0] == starts()[3] == 0
            second.signal(signal.SIGTERM)
            assert second.wait() == ExitCode.OK, second.said
        first.signal(signal.SIGTERM)
        assert first.wait() == ExitCode.OK, first.said


@pytest.mark.fault("58")
def test_workers_stop_cleanly_when_their_supervisor_is_killed(shouting: Shouting) -> None:
    shouting.create()
    with Command(*shouting.arguments()) as command:
        command.until_said("REBALANCING -> RUNNING")
        (worker,) = command.workers
        command.signal(signal.SIGKILL)
        command.wait()
        until(lambda: not is_alive(worker), "the worker ended")
        until(lambda: "PENDING_SHUTDOWN -> NOT_RUNNING" in command.said, command.said)
        assert "the supervisor is gone: stopping" in command.said
    with Command(*shouting.arguments()) as again:
        again.until_said("REBALANCING -> RUNNING")


def test_secrets_are_in_no_workers_arguments_or_environment(shouting: Shouting) -> None:
    shouting.create()
    with Command(*shouting.arguments("--set", "producer.sasl.password=canary")) as command:
        command.until_said("REBALANCING -> RUNNING")
        for part in ("cmdline", "environ"):
            assert b"canary" not in Path(f"/proc/{command.workers[0]}/{part}").read_bytes()
        assert "canary" not in command.said


def test_a_worker_reports_its_states_and_every_interval_its_figures(shouting: Shouting) -> None:
    shouting.create()
    reports: list[Report] = []
    running: list[float] = []

    def note(_slot: int, report: Report) -> None:
        reports.append(report)
        if isinstance(report, MetricsReported) and report.metrics["state"] == "RUNNING":
            running.append(time.monotonic())
            if len(running) == 3:
                supervisor.request_stop()

    start = StartWorker(
        target=shouting.target,
        fixed=True,
        overrides={
            "bootstrap_servers": shouting.cluster.bootstrap_servers,
            "state_dir": str(shouting.state_dir),
            "drain_timeout_ms": 7_000,
        },
        report_interval_ms=700,
    )
    supervisor = Supervisor([start], on_report=note)
    began_s = time.monotonic()
    assert supervisor.run() is ExitCode.OK
    took_s = time.monotonic() - began_s
    assert running[2] - began_s >= 3 * 0.7
    assert reports[0] == WorkerReady(application_id=shouting.app, drain_timeout_ms=7_000)
    states = [report.new for report in reports if isinstance(report, StateChanged)]
    assert states == ["REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    figures = [report.metrics for report in reports if isinstance(report, MetricsReported)]
    assert figures[-1]["state"] in {"RUNNING", "REBALANCING"}
    assert 3 <= len(figures) <= took_s / 0.7


@pytest.mark.parametrize("place", ["--fixed-assignment", "--set=group_instance_id=one"])
def test_S3_the_second_of_two_live_workers_with_one_id_ends_the_first(
    shouting: Shouting, tmp_path: Path, place: str
) -> None:
    shouting.create()
    with Command(*shouting.arguments(place)) as first:
        first.until_said("REBALANCING -> RUNNING")
        with Command(*shouting.arguments(place, state_dir=tmp_path / "elsewhere")) as second:
            second.until_said("REBALANCING -> RUNNING")
            shouting.say("one", "two", "three")
            assert first.wait() == ExitCode.FENCED, first.said
            assert len(first.workers) == 1
            until(lambda: shouting.heard() == {b"ONE", b"TWO", b"THREE"}, second.said)
            second.signal(signal.SIGINT)
            assert second.wait() == ExitCode.OK, second.said


def test_missing_source_topics_are_named_waited_for_or_created(shouting: Shouting) -> None:
    with Command(*shouting.arguments()) as command:
        assert command.wait() == ExitCode.MISSING_SOURCE_TOPIC
        assert f"source topic {shouting.input} not found" in command.said
    with Command(*shouting.arguments("--wait-for-topics")) as command:
        command.until_said(f"waiting for source topics: {shouting.input}")
        shouting.create()
        command.until_said("REBALANCING -> RUNNING")
    other = Shouting(shouting.cluster, shouting.state_dir.parent)
    with Command(*other.arguments("--create-topics")) as command:
        command.until_said(f"creating source topics: {other.input}")
        command.until_said("REBALANCING -> RUNNING")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "0_0"], "group_instance_id"),
        (["--set", "commit_intervall_ms=1"], "did you mean commit_interval_ms?"),
    ],
)
def test_bad_settings_end_the_command_with_2(
    shouting: Shouting, arguments: list[str], message: str
) -> None:
    with Command(*shouting.arguments(*arguments)) as command:
        assert command.wait() == ExitCode.USAGE
        assert message in command.said


def test_chosen_tasks_only_are_run(shouting: Shouting) -> None:
    shouting.create()
    chosen = ("--tasks", "0_1", "--set", "group_instance_id=one")
    with Command(*shouting.arguments(*chosen)) as command:
        command.until_said("REBALANCING -> RUNNING")
        assert "tasks 0_1, state in" in command.said
        shouting.say(*(f"word{number}" for number in range(20)))
        until(shouting.heard, command.said)
        partitions = {record.partition for record in shouting.cluster.read(shouting.input)}
        assert partitions == {0, 1}
        heard = {record.partition for record in shouting.cluster.read(shouting.output)}
        assert heard == {1}


def test_a_record_that_crashes_workers_is_named_after_five_crashes(
    shouting: Shouting, caplog: pytest.LogCaptureFixture
) -> None:
    shouting.create(partitions=1)
    shouting.say("one", "poison", "two")
    assert Supervisor([shouting.start()], restart=QUICK).run() is ExitCode.CRASH_LOOP
    assert f"5 crashes on topic {shouting.input}, partition 0, offset 1: " in caplog.text
    # The message names this handler: it skips the record, and processing continues.
    skipping = ("--set", "processing_exception_handler=continue")
    with Command(*shouting.arguments(*skipping)) as command:
        until(lambda: shouting.heard() == {b"ONE", b"TWO"}, command.said)
        assert len(shouting.cluster.read(shouting.output)) == 2


def test_a_record_that_kills_workers_silently_is_named_too(
    shouting: Shouting, caplog: pytest.LogCaptureFixture
) -> None:
    shouting.program.write_text(
        "import os\n"
        + shouting.program.read_text(encoding="utf-8").replace(
            'raise ValueError("cannot be shouted")', f"os._exit({ExitCode.FENCED.value})"
        ),
        encoding="utf-8",
    )
    shouting.create(partitions=1)
    shouting.say("one", "poison", "two")
    hands: list[list[int]] = []

    def note(_slot: int, report: Report) -> None:
        if isinstance(report, WorkerReady):
            hands.append([])
        elif isinstance(report, NextRecord) and report.topic is not None:
            hands[-1].append(report.offset)

    supervisor = Supervisor([shouting.start()], restart=IMPATIENT, on_report=note)
    assert supervisor.run() is ExitCode.CRASH_LOOP
    place = f"topic {shouting.input}, partition 0, offset 1"
    said = f"2 crashes on {place}: exit code 4 without a report while processing {place}. Correct"
    assert said in caplog.text
    # A restart after a commit begins with the record that kills.
    assert [each[-1:] for each in hands] == [[], [1], [1]]
    assert {offset for each in hands for offset in each} <= {0, 1}


ORDERS = """
import msgspec
from tidewheel import Serdes, StreamsBuilder

class Order(msgspec.Struct):
    cents: int
    {field}

def add(left, right):
    left.cents += right.cents
    return left

def topology():
    builder = StreamsBuilder()
    orders = builder.stream("{input}", key_serde=str, value_serde=Serdes.json(Order))
    orders.group_by_key().reduce(add, store="totals").to_stream().to("{output}")
    return builder

config = {{"application_id": "{app}", "commit_interval_ms": 50}}
"""


def test_a_stored_row_that_the_new_class_cannot_read_ends_the_command_once(
    shouting: Shouting,
) -> None:
    def write(field: str) -> None:
        text = ORDERS.format(
            field=field, input=shouting.input, output=shouting.output, app=shouting.app
        )
        shouting.program.write_text(text, encoding="utf-8")

    def say(order: bytes) -> None:
        shouting.cluster.send(shouting.input, [(b"ann", order)])

    shouting.create(partitions=1)
    write("")
    say(b'{"cents":1}')
    with Command(*shouting.arguments()) as command:
        until(lambda: shouting.heard() == {b'{"cents":1}'}, command.said)
        command.signal(signal.SIGTERM)
        assert command.wait() == ExitCode.OK
    write("currency: str")
    say(b'{"cents":2,"currency":"EUR"}')
    with Command(*shouting.arguments()) as command:
        assert command.wait() == ExitCode.STORED_ROW, command.said
        assert len(command.workers) == 1
        assert "store totals" in command.said
        assert "currency" in command.said
    write("currency: str = 'EUR'")
    with Command(*shouting.arguments()) as command:
        until(lambda: len(shouting.heard()) > 1, command.said)
        assert shouting.heard() == {b'{"cents":1}', b'{"cents":3,"currency":"EUR"}'}


def test_a_reset_application_starts_from_the_beginning(shouting: Shouting) -> None:
    shouting.create()
    shouting.say("one", "two")
    common = shouting.arguments()[2:]
    with Command(*shouting.arguments()) as command:
        until(lambda: len(shouting.cluster.read(shouting.output)) == 2, command.said)
        with Command("reset", shouting.app, "--execute", *common) as refused:
            assert refused.wait() == ExitCode.REFUSED
            assert f"held by process {command.workers[0]}" in refused.said
        command.signal(signal.SIGTERM)
        assert command.wait() == ExitCode.OK
    with Command("reset", shouting.target, "--json", *common) as dry:
        assert dry.wait() == ExitCode.OK
        assert '"executed":false' in dry.said
    assert sum(shouting.cluster.committed(shouting.app).values()) == 2
    with Command("reset", shouting.target, "--execute", *common) as done:
        assert done.wait() == ExitCode.OK, done.said
    assert set(shouting.cluster.committed(shouting.app).values()) == {0}
    with Command(*shouting.arguments()) as command:
        until(lambda: len(shouting.cluster.read(shouting.output)) == 4, command.said)


def test_reset_detects_workers_with_chosen_tasks(shouting: Shouting, tmp_path: Path) -> None:
    shouting.create()
    chosen = ("--tasks", "0_0,0_1", "--set", "group_instance_id=one")
    reset = ("reset", shouting.target, "--execute", *shouting.arguments()[2:])
    with Command(*shouting.arguments(*chosen, state_dir=tmp_path / "elsewhere")) as worker:
        worker.until_said("REBALANCING -> RUNNING")
        with Command(*reset) as refused:
            assert refused.wait() == ExitCode.REFUSED, refused.said
            assert f"alive: {shouting.app}-fixed-one-0 at 127.0.0.1; stop them" in refused.said
        with Command(*reset, "--force") as forced:
            assert forced.wait() == ExitCode.OK, forced.said
        shouting.say("one", "two")
        assert worker.wait() == ExitCode.FENCED, worker.said
    assert not shouting.heard()
    assert shouting.cluster.admin.group_members(f"{shouting.app}:fixed") == ()


def test_reset_to_a_time(shouting: Shouting) -> None:
    shouting.create(partitions=1)
    for moment in (1_000, 2_000, 3_000):
        shouting.cluster.send(shouting.input, [(b"k", b"v")], first_timestamp=moment)
    for to, offset in (("1500", 1), ("2000", 1), ("9999", 3), ("latest", 3), ("earliest", 0)):
        arguments = ("reset", shouting.target, "--execute", "--to", to, *shouting.arguments()[2:])
        with Command(*arguments) as command:
            assert command.wait() == ExitCode.OK, command.said
        assert list(shouting.cluster.committed(shouting.app).values()) == [offset]
