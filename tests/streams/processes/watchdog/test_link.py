"""Worker's end of the connection: orders, reports, replacement of a dead watchdog."""

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidewheel.rebalance.protocol.messages import JoinGroup, SeenTask
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    CopyReady,
    DropCopy,
    KeepCopy,
    LogLine,
    TasksSeen,
    WantShutdown,
    Welcome,
    WorkerClosed,
    WorkerLeaves,
    WorkerStatus,
    decode_report,
    encode_line,
)
from tidewheel.streams.processes.watchdog import link as link_module
from tidewheel.streams.processes.watchdog.hello import Hello, decode_hello
from tidewheel.streams.processes.watchdog.link import WatchdogLink
from tidewheel.streams.processes.watchdog.shared_memory import SharedMemory

PATIENCE_S = 10.0


def _hello(session_timeout_ms: int = 3_000) -> Hello:
    return Hello(
        join=JoinGroup(
            app="app",
            member="m",
            incarnation="m-1",
            transactional_ids=("app-m-1-0",),
            host="h",
            pid=os.getpid(),
            process_id="p",
            session_timeout_ms=session_timeout_ms,
        ),
        bootstrap_servers="none:1",
        consumer={"sasl.password": "secret"},
    )


class _Watchdog:
    """Fake watchdog at the other end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.fd = theirs.detach()
        self._socket.settimeout(PATIENCE_S)
        self._file = self._socket.makefile("rb")

    def meet(self) -> tuple[Hello, SharedMemory]:
        _, fds, _, _ = socket.recv_fds(self._socket, 1, 1)
        return decode_hello(self._file.readline()), SharedMemory.adopt(fds[0])

    def heard(self) -> object:
        return decode_report(self._file.readline())

    def order(self, *orders: AnyOrder) -> None:
        self._socket.sendall(b"".join(map(encode_line, orders)))

    def die(self) -> None:
        self._file.close()
        self._socket.close()


class _Watchdogs:
    """Successive watchdogs for one link."""

    def __init__(self) -> None:
        self.made: list[_Watchdog] = []
        self._more = threading.Condition()

    def __call__(self) -> int:
        with self._more:
            self.made.append(_Watchdog())
            self._more.notify_all()
            return self.made[-1].fd

    def wait_for(self, number: int) -> _Watchdog:
        with self._more:
            assert self._more.wait_for(lambda: len(self.made) >= number, PATIENCE_S)
        return self.made[number - 1]


@pytest.fixture
def watchdogs() -> Iterator[_Watchdogs]:
    made = _Watchdogs()
    yield made
    for each in made.made:
        each.die()


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def link(watchdogs: _Watchdogs, woken: threading.Event) -> Iterator[WatchdogLink]:
    made = WatchdogLink.start(_hello(), fd=watchdogs, woken=woken.set)
    yield made
    made.close()


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_the_first_message_is_hello_with_the_shared_memory(
    link: WatchdogLink, watchdogs: _Watchdogs
) -> None:
    hello, memory = watchdogs.wait_for(1).meet()
    assert hello == _hello()
    assert "secret" not in repr(hello)
    assert link.lease_left_s() == math.inf
    link.progress()
    link.progress()
    assert memory.progress == 2
    memory.lease_ns = time.monotonic_ns() + 3_600_000_000_000
    assert 3_500.0 < link.lease_left_s() <= 3_600.0
    memory.lease_ns = time.monotonic_ns() - 1
    assert link.lease_left_s() < 0
    memory.close()


def test_orders_wake_the_worker_and_are_drained_in_order(
    link: WatchdogLink, watchdogs: _Watchdogs, woken: threading.Event
) -> None:
    assert link.receive_orders() == []
    orders: list[AnyOrder] = [
        Welcome(transactional_id="t"),
        DropCopy(task="0_1"),
        DropCopy(task="0_2"),
    ]
    watchdogs.wait_for(1).order(*orders)
    assert woken.wait(PATIENCE_S)
    taken: list[AnyOrder] = []
    _until(lambda: len(taken.__iadd__(link.receive_orders())) >= 3)
    assert taken == orders
    assert link.receive_orders() == []


def test_log_lines_of_the_watchdog_go_to_the_logging_of_the_program(
    link: WatchdogLink, watchdogs: _Watchdogs, caplog: pytest.LogCaptureFixture
) -> None:
    line = LogLine(name="tidewheel.group", level=logging.WARNING, text="100% of a leader")
    watchdogs.wait_for(1).order(line, DropCopy(task="0_1"))
    _until(lambda: link.receive_orders() == [DropCopy(task="0_1")])
    assert [(each.name, each.levelno, each.getMessage()) for each in caplog.records] == [
        ("tidewheel.group", logging.WARNING, "100% of a leader")
    ]


def test_reports_arrive_in_order_also_when_the_watchdog_does_not_read(
    link: WatchdogLink, watchdogs: _Watchdogs
) -> None:
    watchdog = watchdogs.wait_for(1)
    reports = [
        CopyReady(task=f"0_{each}", learn_epoch=1, store_uuid="u" * 1_000, positions={}, ends={})
        for each in range(2_000)
    ]
    for report in reports:
        link.send(report)  # would block forever: no reader yet
    _, memory = watchdog.meet()
    assert [watchdog.heard() for _ in reports] == reports
    memory.close()


def test_a_new_watchdog_receives_hello_and_the_valid_reports(
    link: WatchdogLink, watchdogs: _Watchdogs
) -> None:
    first = watchdogs.wait_for(1)
    _, memory = first.meet()
    memory.lease_ns = 123
    first.order(Welcome(transactional_id="t"))
    _until(lambda: bool(link.receive_orders()))
    seen = TasksSeen(
        tasks=(SeenTask(task="0_0", stateful=True, changelogs=("c",)),), partitions={"in": 1}
    )
    link.send(WorkerStatus())
    link.send(seen)
    link.send(CopyReady(task="0_0", learn_epoch=1, store_uuid="u", positions={}, ends={}))
    link.send(WorkerLeaves(rejoin=True))
    link.send(WantShutdown(reason="ValueError"))
    first.die()
    second = watchdogs.wait_for(2)
    hello, same = second.meet()
    assert hello.join == _hello().join
    assert hello.welcomed
    assert same.lease_ns == 123
    lasting = [seen, WorkerStatus(), WorkerLeaves(rejoin=True), WantShutdown(reason="ValueError")]
    assert [second.heard() for _ in lasting] == lasting
    second.order(KeepCopy(task="0_0", role="standby", learn_epoch=2))
    _until(lambda: link.receive_orders() == [KeepCopy(task="0_0", role="standby", learn_epoch=2)])
    link.send(WorkerStatus())
    assert second.heard() == WorkerStatus()
    memory.close()
    same.close()


@contextmanager
def _sleeping() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        try:
            yield process
        finally:
            process.kill()


def _run_until(end_s: float, memory: SharedMemory, pid: int) -> None:
    while time.monotonic() < end_s:
        memory.count_turn(pid)
        time.sleep(0.01)


def test_a_watchdog_that_does_not_run_is_killed_and_no_dead_one(
    watchdogs: _Watchdogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "TURN_S", 0.1)
    link = WatchdogLink.start(
        _hello(session_timeout_ms=333), fd=watchdogs, woken=threading.Event().set
    )
    first = watchdogs.wait_for(1)
    _, memory = first.meet()
    with _sleeping() as reused, _sleeping() as hung:
        _run_until(time.monotonic() + 0.2, memory, reused.pid)
        first.die()
        _, same = watchdogs.wait_for(2).meet()
        time.sleep(2.0)  # another process may have the number of the dead one
        assert reused.poll() is None
        _run_until(time.monotonic() + 2.0, same, hung.pid)
        assert hung.poll() is None
        assert hung.wait(PATIENCE_S) == -signal.SIGKILL
    link.close()
    for each in (memory, same):
        each.close()


def test_invalid_orders_are_ignored(link: WatchdogLink, watchdogs: _Watchdogs) -> None:
    watchdog = watchdogs.wait_for(1)
    watchdog._socket.sendall(b'{"order":"dance"}\nnonsense\n')
    watchdog.order(DropCopy(task="0_1"))
    _until(lambda: link.receive_orders() == [DropCopy(task="0_1")])


def test_close_sends_waiting_reports_and_closes_the_connection(
    watchdogs: _Watchdogs, woken: threading.Event
) -> None:
    link = WatchdogLink.start(_hello(), fd=watchdogs, woken=woken.set)
    watchdog = watchdogs.wait_for(1)
    link.send(WorkerClosed())
    link.close()
    link.close()
    link.send(WorkerStatus())
    watchdog.meet()[1].close()
    assert watchdog.heard() == WorkerClosed()
    assert watchdog._file.readline() == b""
    assert len(watchdogs.made) == 1


def test_many_threads_may_report_concurrently(link: WatchdogLink, watchdogs: _Watchdogs) -> None:
    watchdog = watchdogs.wait_for(1)
    _, memory = watchdog.meet()

    def say(number: int) -> None:
        for each in range(200):
            link.send(
                CopyReady(
                    task=f"{number}_{each}", learn_epoch=1, store_uuid="u", positions={}, ends={}
                )
            )

    threads = [threading.Thread(target=say, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    heard = [watchdog.heard() for _ in range(800)]
    for thread in threads:
        thread.join()
    for number in range(4):
        mine = [
            each.task
            for each in heard
            if isinstance(each, CopyReady) and each.task.startswith(f"{number}_")
        ]
        assert mine == [f"{number}_{each}" for each in range(200)]
    memory.close()
