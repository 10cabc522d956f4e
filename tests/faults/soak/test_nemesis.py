"""The nemesis does to each process what a fault's name says."""

import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from tests.faults.fault_run import FaultRun, crash_of
from tests.faults.soak.hosts import hosts, missing
from tests.faults.soak.nemesis import Nemesis
from tests.faults.soak.schedule import BROKERS, VISITOR, Fault
from tests.integration.processes import WorkerProcess

_SIGNALS = {
    signal.SIGKILL: "kill",
    signal.SIGSTOP: "pause",
    signal.SIGCONT: "continue",
    signal.SIGTERM: "stop",
}


class _Process:
    def __init__(self, log: list[str], name: str, program: str) -> None:
        self._log, self._name, self._program = log, name, program

    def cmdline(self) -> list[str]:
        return ["python", "-m", f"tidewheel.streams.{self._program}"]

    def status(self) -> str:
        return "stopped"

    def send_signal(self, number: signal.Signals) -> None:
        self._log.append(f"{_SIGNALS[number]} {self._name}")


class _Worker:
    name, log, is_failing = "a.1", "", False

    def __init__(self, log: list[str]) -> None:
        self._log, self.has_ended = log, False
        self._all = [
            _Process(log, "worker", "cli.worker_main"),
            _Process(log, "watchdog", "processes.watchdog"),
            _Process(log, "helper", "processes.restore_helper"),
        ]

    def processes(self) -> list[_Process]:
        return [] if self.has_ended else self._all

    def signal_all(self, number: signal.Signals) -> None:
        for each in self.processes():
            each.send_signal(number)

    def numbers(self) -> dict[str, int]:
        return {"position:in-0": 1}

    def kill(self) -> None:
        self._log.append("kill worker")
        self.has_ended = True

    def send(self, number: signal.Signals) -> None:
        self._all[0].send_signal(number)
        self.has_ended = True

    def wait(self) -> int:
        return 0


class _Run:
    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        self.folder, self.dead, self.crashes = folder, list[Any](), Counter[str]()
        self.workers = {"a": _Worker(self.log)}

    def start(self, name: str, *, failpoints: str = "") -> _Worker:
        self.log.append(f"start {name} {failpoints}".strip())
        self.workers[name] = worker = _Worker(self.log)
        return worker

    def kill(self, name: str) -> None:
        self.workers.pop(name).signal_all(signal.SIGKILL)

    def look_after_workers(self) -> None: ...


class _Host:
    def __init__(self, log: list[str]) -> None:
        self._log, self.disk = log, self

    def __getattr__(self, name: str) -> Any:
        return lambda: self._log.append(name)


class _Brokers:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return lambda *nodes: self._log.append(f"{name} {nodes}")


_ALL = ["worker", "watchdog", "helper"]


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ("kill worker", ["kill worker", "start a"]),
        ("kill worker and helpers", [*(f"kill {each}" for each in _ALL), "start a"]),
        ("kill watchdog", ["kill watchdog"]),
        ("kill restore helper", ["kill helper"]),
        ("pause worker", ["pause worker", "continue worker"]),
        ("pause watchdog", ["pause watchdog", "continue watchdog"]),
        ("pause restore helper", ["pause helper", "continue helper"]),
        (
            "pause worker and helpers",
            [*(f"pause {each}" for each in _ALL), *(f"continue {each}" for each in _ALL)],
        ),
        (
            "pause at failpoint",
            [
                *(f"kill {each}" for each in _ALL),
                "start a before_commit:1:stop",
                *(f"continue {each}" for each in _ALL),
            ],
        ),
        ("restart worker", ["stop worker", "start a"]),
        ("lose worker and disk", [*(f"kill {each}" for each in _ALL), "start a"]),
    ],
)
def test_a_fault_of_a_worker_hits_its_processes(kind: str, log: list[str], tmp_path: Path) -> None:
    disk = tmp_path / "state-a"
    disk.mkdir()
    run = _Run(tmp_path)
    nemesis = Nemesis(cast("FaultRun", run))
    fault = Fault(kind=kind, wait_s=0.0, for_s=0.0, failpoint="before_commit:1")
    nemesis.inflict({"a": [fault]})
    assert run.log == log
    assert nemesis.counts == {kind: 1}
    assert disk.exists() == (kind != "lose worker and disk")


@pytest.mark.parametrize(
    ("kind", "log"), [("cut network", ["cut", "connect"]), ("fill disk", ["fill", "free"])]
)
def test_a_fault_of_a_host_ends(kind: str, log: list[str], tmp_path: Path) -> None:
    run = _Run(tmp_path)
    nemesis = Nemesis(cast("FaultRun", run), hosts={"a": cast("Any", _Host(run.log))})
    nemesis.inflict({"a": [Fault(kind=kind, wait_s=0.0, for_s=0.0)]})
    assert run.log == log
    assert nemesis.counts == {kind: 1}


def test_a_stopped_relay_delivers_late(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with hosts(tmp_path, f"127.0.0.1:{port}") as machines:
            host = machines["a"]
            client = subprocess.Popen(
                [*host.within, sys.executable, "-uc", _CLIENT, str(port)],
                stdin=subprocess.PIPE,
            )
            server, _ = listening.accept()
            with client, server:
                assert client.stdin is not None
                _send(client.stdin, b"1")
                assert server.recv(1) == b"1"
                host.cut()
                _send(client.stdin, b"2")
                server.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    server.recv(1)
                host.connect()
                server.settimeout(30)
                assert server.recv(1) == b"2"
                client.stdin.close()


_CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while data := sys.stdin.buffer.read(1):
    client.sendall(data)
"""


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(data)
    pipe.flush()


def test_a_visitor_comes_and_drains(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    nemesis = Nemesis(cast("FaultRun", run))
    nemesis.inflict({VISITOR: [Fault(kind="scale up and down", wait_s=0.0, for_s=0.0)]})
    assert run.log == ["start d", "stop worker"]
    assert set(run.workers) == {"a"}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("restart broker", "stop", []),
        ("kill broker", "kill", []),
        ("pause broker", "pause", ["resume"]),
        ("kill two brokers", "kill", []),
    ],
)
def test_a_fault_of_brokers_ends_in_sync(
    kind: str, before: str, after: list[str], tmp_path: Path
) -> None:
    run = _Run(tmp_path)
    nemesis = Nemesis(cast("FaultRun", run), cast("Any", _Brokers(run.log)))
    nemesis.inflict({BROKERS: [Fault(kind=kind, wait_s=0.0, for_s=0.0, nodes=(1, 2))]})
    done = [f"{each} (1, 2)" for each in (before, *after)]
    assert run.log == [*done, "start ()", "wait_until_in_sync ()"]


def test_an_error_of_the_brokers_ends_the_faults(tmp_path: Path) -> None:
    nemesis = Nemesis(cast("FaultRun", _Run(tmp_path)))
    fault = Fault(kind="kill broker", wait_s=0.0, for_s=0.0, nodes=(1,))
    with pytest.raises(AssertionError, match="brokers of this run"):
        nemesis.inflict({BROKERS: [fault]})


_ASSERTION = "Assertion `eonce->refcnt > 0' failed"
_SEGFAULT = "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize(
    ("code", "log", "kind"),
    [
        (-signal.SIGKILL, "", "kill"),
        (-signal.SIGSEGV, f"{_SEGFAULT}\n\nThread 0x7 (most recent call first):", "client"),
        (-signal.SIGSEGV, f"{_SEGFAULT}\n\nCurrent thread 0x7 (most recent call first):", None),
        (-signal.SIGSEGV, "", None),
        (-signal.SIGABRT, _ASSERTION, "client"),
        (-signal.SIGABRT, "", None),
        (7, "CREATED -> REBALANCING", "unreachable"),
        (7, "REBALANCING -> RUNNING", None),
        (0, "", None),
        (1, "", None),
    ],
)
def test_only_crashes_of_others_are_answered_by_a_restart(
    code: int, log: str, kind: str | None
) -> None:
    worker = cast("WorkerProcess", SimpleNamespace(wait=lambda: code, log=log, name="a.1"))
    if kind is None:
        with pytest.raises(AssertionError):
            crash_of(worker)
    else:
        assert crash_of(worker) == kind
