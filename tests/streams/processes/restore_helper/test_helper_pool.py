"""Start, first message and replacement of helpers."""

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tidewheel import Serdes
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.processes.restore_helper.helper_messages import Begin
from tidewheel.streams.processes.restore_helper.helper_pool import MEMORY_BYTES, RestoreHelperPool
from tidewheel.tasks.restore.run_ports import (
    RunOrder,
    RunProgress,
    RunReport,
    RunsBuilt,
    RunsFailed,
)

CANARY = "canary-5e1c"
_PATIENCE_S = 20.0
_COMMAND = (sys.executable, "-m", "tests.streams.processes.restore_helper.fake_helper")


def begin(run_bytes: int) -> Begin:
    return Begin(
        application_id="app",
        bootstrap_servers="unused:9092",
        consumer={"sasl.password": CANARY},
        run_bytes=run_bytes,
    )


@pytest.fixture
def make_host() -> Iterator[Callable[..., RestoreHelperPool]]:
    hosts: list[RestoreHelperPool] = []

    def make(**settings: Any) -> RestoreHelperPool:
        hosts.append(
            RestoreHelperPool(
                begin, **{"snapshots": True, "readers": 2, "command": _COMMAND, **settings}
            )
        )
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def order(name: str, tmp_path: Path) -> RunOrder:
    return RunOrder(
        spec=StoreSpec(
            name=name,
            kind=StoreKind.KEY_VALUE,
            key_serde=Serdes.string(),
            value_serde=Serdes.string(),
        ),
        partition=TopicPartition("log", 0),
        snapshot=None,
        from_offset=0,
        to_offset=1,
        complete_from_zero=True,
        urgent=True,
        directory=tmp_path / name,
    )


class Told:
    """Reports in order."""

    def __init__(self) -> None:
        self._reports: queue.SimpleQueue[RunReport] = queue.SimpleQueue()

    def __call__(self, report: RunReport) -> None:
        self._reports.put(report)

    def next(self) -> RunReport:
        return self._reports.get(timeout=_PATIENCE_S)


def test_an_order_starts_a_helper_process(
    make_host: Callable[..., RestoreHelperPool], tmp_path: Path
) -> None:
    host = make_host()
    assert host.pids() == []
    told = Told()
    host.make(order("counts", tmp_path), told)
    made = told.next()
    assert isinstance(made, RunsBuilt)
    assert 0 < made.records * 4 == MEMORY_BYTES
    assert len(host.pids()) == 1


def test_secrets_are_sent_only_over_the_socket(
    make_host: Callable[..., RestoreHelperPool], tmp_path: Path
) -> None:
    host = make_host()
    told = Told()
    host.make(order("wait", tmp_path), told)
    assert isinstance(told.next(), RunProgress)
    process = psutil.Process(*host.pids())
    assert CANARY not in " ".join([*process.cmdline(), *process.environ().values()])
    assert CANARY not in repr(begin(1))


def test_a_second_helper_is_started_while_the_first_is_busy(
    make_host: Callable[..., RestoreHelperPool], tmp_path: Path
) -> None:
    host = make_host()
    first = Told()
    for _ in range(2):
        host.make(order("counts", tmp_path), first)
        assert isinstance(first.next(), RunsBuilt)
    assert len(host.pids()) == 1
    for _ in range(4):
        told = Told()
        host.make(order("wait", tmp_path), told)
        assert isinstance(told.next(), RunProgress)
    assert len(host.pids()) == 2


def test_callers_that_wait_for_a_helper_are_notified_of_its_death(
    make_host: Callable[..., RestoreHelperPool], tmp_path: Path
) -> None:
    host = make_host(readers=1)
    waiting, dying, told = Told(), Told(), Told()
    host.make(order("wait", tmp_path), waiting)
    assert isinstance(waiting.next(), RunProgress)
    host.make(order("die", tmp_path), dying)
    for each in (waiting, dying):
        report = each.next()
        assert isinstance(report, RunsFailed)
        assert "ended with code 3" in report.reason
    host.make(order("counts", tmp_path), told)
    assert isinstance(told.next(), RunsBuilt)


def test_a_failed_order_is_reported_with_its_reason(
    make_host: Callable[..., RestoreHelperPool], tmp_path: Path
) -> None:
    host, told = make_host(), Told()
    host.make(order("fail", tmp_path), told)
    assert told.next() == RunsFailed(reason="as asked")
    assert len(host.pids()) == 1


def test_an_idle_helper_ends(make_host: Callable[..., RestoreHelperPool], tmp_path: Path) -> None:
    host, told = make_host(idle_s=0.1, readers=1), Told()
    host.make(order("wait", tmp_path), told)
    assert isinstance(told.next(), RunProgress)
    busy = psutil.Process(*host.pids())
    with pytest.raises(psutil.TimeoutExpired):
        busy.wait(0.5)
    asked = order("counts", tmp_path)
    host.make(asked, told)
    assert isinstance(told.next(), RunsBuilt)
    host.close()
    other = make_host(idle_s=0.1)
    other.make(asked, told)
    assert isinstance(told.next(), RunsBuilt)
    for pid in other.pids():
        psutil.Process(pid).wait(_PATIENCE_S)
    assert other.pids() == []
    other.make(asked, told)  # then restarted
    assert isinstance(told.next(), RunsBuilt)


def test_a_forgotten_order_has_no_more_reports(
    make_host: Callable[..., RestoreHelperPool], tmp_path: Path
) -> None:
    host = make_host(readers=1)
    waiting, told = Told(), Told()
    forgotten, done = order("wait", tmp_path), order("counts", tmp_path)
    host.make(forgotten, waiting)
    assert isinstance(waiting.next(), RunProgress)
    host.forget(forgotten)
    host.make(done, told)
    assert isinstance(told.next(), RunsBuilt)
    done.directory.mkdir()
    host.forget(done)
    host.forget(done)
    assert not done.directory.exists()
    psutil.Process(*host.pids()).kill()
    host.make(order("die", tmp_path), told)
    assert isinstance(told.next(), RunsFailed)
    with pytest.raises(queue.Empty):
        waiting._reports.get_nowait()


def test_concurrent_callers_share_one_search_for_a_snapshot(
    make_host: Callable[..., RestoreHelperPool],
) -> None:
    host = make_host()
    all_told, found = threading.Event(), list[Any]()

    def tell(snapshot: Any) -> None:
        found.append(snapshot)
        if len(found) == 10:
            all_told.set()

    for _ in range(10):
        host.find_snapshot("counts", bytes(16), tell)
    assert all_told.wait(_PATIENCE_S)
    assert found == [None] * 10
    host.find_snapshot("counts", bytes(16), tell)
    assert len(found) == 11
    assert len(host.pids()) == 1
