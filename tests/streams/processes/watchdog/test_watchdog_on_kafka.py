"""Watchdogs on a real broker: election, take-over, heartbeats of busy workers."""

import itertools
import math
import os
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.streams.processes.watchdog.playing import (
    PATIENCE_S,
    WorkerProgram,
    end_process,
    hello,
    is_running,
    least,
    wait_until,
)
from tidewheel.rebalance.protocol.group import Group, apply
from tidewheel.rebalance.protocol.messages import AnyMessage, Beat, LeaderBeat
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim, MemberRecord, TaskRecord
from tidewheel.streams.broker import KafkaBroker, RunningBroker
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.admin.group_log import KafkaGroupLog, inbox_topic, state_topic
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.processes.watchdog.watchdog_process import WATCHDOG_COMMAND

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Overheard:
    """Reader of an application's control topics."""

    def __init__(self, servers: str, app: str) -> None:
        self.settings = ClientSettings(bootstrap_servers=servers, application_id=app)
        self._log = KafkaGroupLog(self.settings, replication_factor=1)
        self._log.open(create=True, inbox_back_ms=60_000)
        self.group = Group()
        self.records: list[AnyRecord] = []
        self._offset = 0
        #: With the time of reading.
        self.messages: list[tuple[float, AnyMessage]] = []

    def read_until(self, enough: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not enough():
            assert time.monotonic() < deadline_s, (self.group, self.messages[-10:])
            self.read(0.05)

    def read_to_end(self) -> None:
        """Read the part of the group's log that exists now."""
        end = self._log.state_end()
        self.read_until(lambda: self._offset >= end)

    def read(self, timeout_s: float) -> None:
        read = self._log.poll(timeout_s)
        now_s = time.monotonic()
        self._offset = read.state_offset
        self.messages += [(now_s, message) for message in read.messages]
        for logged in read.records:
            if logged.record is not None:
                self.records.append(logged.record)
                self.group = apply(self.group, logged.record)

    def owners(self) -> dict[str, str | None]:
        return {
            str(task): state.owner if state.phase == "RUNNING" else None
            for task, state in self.group.states.items()
        }

    def close(self) -> None:
        self._log.close()


@pytest.fixture
def app() -> str:
    return f"watchdog-{secrets.token_hex(4)}"


@pytest.fixture
def overheard(kafka_broker: RunningBroker, app: str) -> Iterator[Overheard]:
    reader = Overheard(kafka_broker.bootstrap_servers, app)
    yield reader
    reader.close()


StartWorker = Callable[..., WorkerProgram]


@pytest.fixture
def start(kafka_broker: RunningBroker, app: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Start programs with one worker each; settings are those of `hello`."""
    workers: list[WorkerProgram] = []
    servers = kafka_broker.bootstrap_servers

    def started(member: str, **settings: int) -> WorkerProgram:
        words: Hello = hello(member, app=app, bootstrap_servers=servers, **settings)
        workers.append(WorkerProgram(words, tmp_path, WATCHDOG_COMMAND))
        return workers[-1]

    yield started
    for worker in workers:
        worker.close()
        end_process(worker.watchdog_pid)


def test_a_program_leads_its_group_and_runs_its_tasks(
    start: StartWorker, overheard: Overheard, app: str
) -> None:
    worker = start("a", heartbeat_interval_ms=500, session_timeout_ms=15_000)
    worker.wait_for_order("welcome", transactional_id=f"{app}-a-1-0")
    worker.wait_for_order("run", task="0_0")
    worker.wait_for_order("run", task="0_1")
    overheard.read_until(lambda: overheard.owners() == {"0_0": "a-1", "0_1": "a-1"})
    assert len([each for each in overheard.records if isinstance(each, LeaderClaim)]) == 1
    wait_until(lambda: 0 < worker.lease_left_s() <= 15)
    worker.tell("close")
    assert worker.process.wait(PATIENCE_S) == 0
    overheard.read_until(lambda: not overheard.group.live())
    assert not is_running(worker.watchdog_pid)


def test_H1_a_killed_watchdog_with_the_leader_has_a_successor_and_is_replaced(
    start: StartWorker, overheard: Overheard
) -> None:
    timings = {"heartbeat_interval_ms": 300, "session_timeout_ms": 24_000}
    first = start("a", tasks=4, **timings)
    overheard.read_until(lambda: "a-1" in overheard.owners().values())
    second = start("b", tasks=4, **timings)
    overheard.read_until(lambda: list(overheard.owners().values()).count("b-1") == 2)
    owners, epoch = overheard.owners(), overheard.group.leader_epoch
    killed_s = time.monotonic()
    os.kill(first.watchdog_pid, signal.SIGKILL)
    overheard.read_until(lambda: overheard.group.leader_epoch > epoch)
    assert time.monotonic() - killed_s < 24.0
    again = first.wait_for_order("welcome")
    assert again.at_ns / 1e9 - killed_s < 24.0
    first.wait_for_order("run")
    for _ in range(40):
        overheard.read(0.05)
    assert overheard.owners() == owners
    assert not [
        each
        for each in overheard.records
        if isinstance(each, MemberRecord) and each.phase == "FENCING"
    ]
    assert first.lease_left_s() > 0
    assert second.lease_left_s() > 0


def test_a_killed_program_is_fenced_and_other_programs_own_its_tasks(
    start: StartWorker, overheard: Overheard
) -> None:
    first = start("a", tasks=4, session_timeout_ms=30_000)
    overheard.read_until(lambda: "a-1" in overheard.owners().values())
    second = start("b", tasks=4, session_timeout_ms=30_000)
    overheard.read_until(lambda: list(overheard.owners().values()).count("b-1") == 2)
    lost = [task for task, owner in overheard.owners().items() if owner == "a-1"]
    killed_ns = first.kill()
    granted = [second.wait_for_order("run", task=task).at_ns for task in sorted(lost)]
    assert (max(granted) - killed_ns) / 1e9 < 25.0
    overheard.read_until(lambda: set(overheard.owners().values()) == {"b-1"})
    phases = [
        each.phase
        for each in overheard.records
        if isinstance(each, MemberRecord) and each.incarnation == "a-1"
    ]
    assert phases.index("FENCING") < phases.index("FENCED")


def test_H21_beats_continue_while_a_worker_blocks_the_gil_for_10_seconds(
    start: StartWorker, overheard: Overheard
) -> None:
    worker = start("a", heartbeat_interval_ms=500, session_timeout_ms=3_000)
    overheard.read_until(lambda: overheard.owners() == {"0_0": "a-1", "0_1": "a-1"})
    began_s = time.monotonic()
    worker.tell("hold 10")
    while time.monotonic() < began_s + 10:
        overheard.read(0.05)
    held = worker.wait(lambda line: line.text == "held")
    assert held.at_ns / 1e9 - began_s >= 10
    assert worker.lease_left_s() > 0
    beats = [
        at_s
        for at_s, message in overheard.messages
        if isinstance(message, Beat) and began_s < at_s < began_s + 10
    ]
    gaps = [
        later - earlier for earlier, later in itertools.pairwise([began_s, *beats, began_s + 10])
    ]
    assert max(gaps) < 3.0, "its session never ran out"
    assert statistics.median(gaps) < 1.0, "as often as it should"
    assert overheard.owners() == {"0_0": "a-1", "0_1": "a-1"}
    assert {each.task_epoch for each in overheard.records if isinstance(each, TaskRecord)} == {1}


def test_H24_deleted_control_topics_end_leases(
    start: StartWorker, overheard: Overheard, app: str
) -> None:
    worker = start("a", session_timeout_ms=2_000)
    overheard.read_until(lambda: "a-1" in overheard.owners().values())
    admin = KafkaAdmin(overheard.settings, timeout_s=PATIENCE_S)
    admin.delete_topics([state_topic(app), inbox_topic(app)])
    wait_until(lambda: worker.lease_left_s() < 0)
    admin.close()


@pytest.mark.alone
@pytest.mark.timeout(300)  # two brokers start
def test_a_broker_restart_ends_no_worker(tmp_path: Path) -> None:
    data_dir = tmp_path / "broker"
    app = f"watchdog-{secrets.token_hex(4)}"
    with KafkaBroker(data_dir=data_dir) as broker:
        servers = broker.bootstrap_servers
        # A new broker answers slowly: a faster leader would consider itself cut off.
        timings = {"heartbeat_interval_ms": 400, "session_timeout_ms": 1_500}
        words = hello("a", app=app, bootstrap_servers=servers, **timings)
        worker = WorkerProgram(words, tmp_path, WATCHDOG_COMMAND)
        worker.wait_for_order("run", task="0_1")
        wait_until(
            lambda: math.isfinite(worker.lease_left_s())
        )  # the first follows the first order
    try:
        wait_until(lambda: worker.lease_left_s() < -2)
        with KafkaBroker(data_dir=data_dir) as again:
            assert again.bootstrap_servers == servers
            wait_until(lambda: worker.lease_left_s() > 0)
            reader = Overheard(servers, app)
            reader.read_to_end()
            assert reader.owners() == {"0_0": "a-1", "0_1": "a-1"}
            assert {each.task_epoch for each in reader.group.states.values()} == {1}
            reader.close()
            assert not [line for line in worker.lines if line.order.get("order") == "end"]
    finally:
        worker.close()
        end_process(worker.watchdog_pid)


def test_the_leader_sends_beats_at_its_announced_interval(
    start: StartWorker, overheard: Overheard
) -> None:
    start("a", heartbeat_interval_ms=200, session_timeout_ms=6_000)
    overheard.read_until(lambda: "a-1" in overheard.owners().values())

    def off(_: int) -> float:
        """Return the deviation from 14 heartbeats of each kind in three seconds.

        A busy machine sends few.
        """
        since_s = time.monotonic()
        while time.monotonic() < since_s + 3:
            overheard.read(0.05)
        recent = [message for at_s, message in overheard.messages if at_s > since_s]
        counts = [sum(isinstance(each, kind) for each in recent) for kind in (LeaderBeat, Beat)]
        return max(abs(count - 13.5) for count in counts)

    assert least(off, 4.0) < 4.0


def test_memory_of_a_watchdog_is_bounded(start: StartWorker, overheard: Overheard) -> None:
    worker = start("a", session_timeout_ms=6_000)
    overheard.read_until(lambda: "a-1" in overheard.owners().values())
    if sys.platform == "linux":
        status = Path(f"/proc/{worker.watchdog_pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) / 1024 < 64, resident
