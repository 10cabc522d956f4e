"""Requests reach the broker, and their replies don't reach the worker."""

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.fakes.proxy import END_TXN, KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import FaultRun, eventually, incarnations
from tests.integration.cluster import PATIENCE_S, until
from tests.integration.processes import WorkerProcess

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

_KILLS = 3
_CUT_S = 15.0
_LATE_S = 15.0
#: Request versions from this one on have tagged fields.
_FLEXIBLE_END_TXN = 3


@pytest.mark.fault("4")
def test_worker_dies_before_the_reply_to_its_commit(
    make_run: MakeRun, proxy: KafkaProxy, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin("ab")
    recoveries: list[float] = []
    for _ in range(_KILLS):
        doomed = _start_behind(run, "c", proxy)
        answered, killed = threading.Event(), threading.Event()

        def hold(answered: threading.Event = answered, killed: threading.Event = killed) -> None:
            answered.set()
            killed.wait(PATIENCE_S)

        proxy.instead_of_reply(END_TXN, _producers(doomed), hold)
        until(answered.is_set, "the broker answers a commit")
        run.kill("c")
        killed.set()
        recoveries.append(run.until_owned())
        run.until_progress()
    record_property("recovery_s", max(recoveries))
    record_property("times", _KILLS)
    run.start("c")
    run.until_shared()
    run.verify()


@pytest.mark.fault("22")
@pytest.mark.parametrize("harm", [KafkaProxy.lose_replies, KafkaProxy.hold_replies])
@pytest.mark.parametrize("order", ["abc", "bca"], ids=["leader", "follower"])
def test_replies_to_one_worker_are_lost_or_late(
    make_run: MakeRun,
    proxy: KafkaProxy,
    order: str,
    harm: Callable[[KafkaProxy], None],
    record_property: Callable[..., None],
) -> None:
    run = make_run()
    behind: dict[str, Any] = {"bootstrap_servers": proxy.bootstrap_servers}
    run.begin(order[0], **(behind if order[0] == "a" else {}))
    for name in order[1:]:
        run.start(name, **(behind if name == "a" else {}))
        run.until_shared()
    is_harmed = threading.Event()

    def begin() -> None:
        harm(proxy)
        is_harmed.set()

    proxy.before_request(END_TXN, begin, _producers(run.workers["a"]))
    until(is_harmed.is_set, "a requests a commit")
    cut_s = time.monotonic()
    taken_s = eventually(lambda: run.is_owned_by("bc"), "b and c take over the tasks of a")
    record_property("recovery_s", taken_s)
    time.sleep(max(cut_s + _CUT_S - time.monotonic(), 0.0))
    proxy.heal()
    healed_s = time.monotonic()
    until(run.is_shared, "a has a task again")
    record_property("healed_s", time.monotonic() - healed_s)
    run.until_progress()
    run.verify()


@pytest.mark.fault("23")
def test_late_commit_request_is_refused(
    make_run: MakeRun, proxy: KafkaProxy, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin("ab")
    worker = _start_behind(run, "c", proxy)
    producers = _producers(worker)
    proxy.withhold(END_TXN, producers)
    until(lambda: proxy.withheld, "a commit request is withheld")
    withheld_s = time.monotonic()
    commits = worker.numbers().get("commits", 0)
    until(lambda: worker.numbers().get("commits", 0) > commits + 5, "the worker commits again")
    record_property("recovery_s", time.monotonic() - withheld_s)
    time.sleep(max(withheld_s + _LATE_S - time.monotonic(), 0.0))
    replies: list[bytes] = []
    # Before another commit: a transaction of the new producer is open.
    proxy.before_request(
        END_TXN, lambda: replies.append(proxy.deliver(proxy.withheld[0])), producers
    )
    until(lambda: replies, "the late request is answered")
    code = _end_txn_error(proxy.withheld[0], replies[0])
    record_property("late_reply", KafkaError(code).name())
    assert code in (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
    run.until_progress()
    assert not worker.has_ended
    run.verify()


def _start_behind(run: FaultRun, name: str, proxy: KafkaProxy) -> WorkerProcess:
    worker = run.start(name, bootstrap_servers=proxy.bootstrap_servers)
    run.until_shared()
    return worker


def _producers(worker: WorkerProcess) -> bytes:
    """Return the common part of the transactional ids of a worker, without the leader's."""
    return f"-{incarnations(worker)[-1]}-".encode()


def _end_txn_error(request: bytes, reply: bytes) -> int:
    """Return the error of a reply: correlation id, tags, throttle time, error."""
    _, version = struct.unpack_from(">hh", request)
    (error,) = struct.unpack_from(">h", reply, 9 if version >= _FLEXIBLE_END_TXN else 8)
    return int(error)
