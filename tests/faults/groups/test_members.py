"""Members that do not belong, that write too much, or that hear late of their tasks."""

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.fakes.proxy import OFFSET_FETCH, KafkaProxy
from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PATIENT, FaultRun, eventually, incarnations
from tests.integration.cluster import PATIENCE_S
from tests.integration.processes import owned
from tidewheel.rebalance.protocol.messages import Beat, JoinRefused, TaskFailed, encode_message
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

#: Longer than the session, so members whose heartbeats are lost in it would be declared dead.
FLOOD_S: Final = 15
FLOOD_PER_S: Final = 20_000
#: A request without an answer is repeated every 30 s.
ASKS: Final = 10


@pytest.mark.fault("40")
def test_worker_of_another_program_is_refused_with_the_reason(make_run: MakeRun) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    owners = run.owners()
    for job, assignor, code in (
        ("hold_and_count_by_key", "sticky", "INCOMPATIBLE_TOPOLOGY"),
        (run.job, "round_robin", "INCOMPATIBLE_ASSIGNOR"),
    ):
        stranger = run.start("d", job=job, task_assignor=assignor)
        assert stranger.wait() == ExitCode.INCOMPATIBLE_MEMBER, stranger.log[-3_000:]
        refusals = [each for each in run.trace().messages if isinstance(each, JoinRefused)]
        assert refusals[-1].code == code
        assert refusals[-1].reason in stranger.log
        run.workers.pop("d").close()
    run.until_progress()
    assert run.owners() == owners
    run.verify()


@pytest.mark.fault("35")
@pytest.mark.parametrize("sender", ["a stranger", "a member"])
def test_flood_of_messages_ends_no_other_member(
    make_run: MakeRun, sender: str, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    lives = {name: incarnations(worker) for name, worker in run.workers.items()}
    incarnation = lives["c"][-1] if sender == "a member" else "f1" * 16
    record_property("messages_per_s", round(FLOOD_S * FLOOD_PER_S / _flood(run, incarnation)))
    record_property("recovery_s", run.until_progress())
    record_property("times", FLOOD_S * FLOOD_PER_S)
    run.until_shared()
    run.verify()
    assert run.trace().fenced() <= {incarnation}


def _flood(run: FaultRun, incarnation: str) -> float:
    """Send heartbeats of one incarnation at the rate of a flood; return the seconds it took."""
    producer = Producer(
        {
            "bootstrap.servers": run.cluster.bootstrap_servers,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    topic, sent, begun_s = inbox_topic(run.application_id), 0, time.monotonic()
    while sent < FLOOD_S * FLOOD_PER_S:
        due = min(int((time.monotonic() - begun_s) * FLOOD_PER_S), FLOOD_S * FLOOD_PER_S)
        for number in range(sent, due):
            beat = Beat(app=run.application_id, member="flood", incarnation=incarnation, seq=number)
            producer.produce(topic, encode_message(beat), partition=0)
        sent = due
        producer.poll(0.01)
    assert producer.flush(PATIENCE_S) == 0
    return time.monotonic() - begun_s


@pytest.mark.fault("51")
def test_grant_that_is_revoked_before_its_offsets_are_known_is_dropped(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(config={**PATIENT, "session_timeout_ms": 15_000})
    asks, may_ask = threading.Event(), threading.Event()

    def ask_late() -> None:
        asks.set()
        may_ask.wait(PATIENCE_S)

    with KafkaProxy(run.cluster.bootstrap_servers) as proxy:
        run.begin("a")
        late = run.start("b", bootstrap_servers=proxy.bootstrap_servers)
        run.until_shared()
        first = owned(late)
        for _ in range(ASKS):
            proxy.before_request(OFFSET_FETCH, ask_late)
        run.kill("a")
        assert asks.wait(PATIENCE_S), "b asks for the offsets of its new tasks"
        others = [run.start(name) for name in ("c", "d", "e")]
        record_property("recovery_s", eventually(lambda: all(map(owned, others)), "all have one"))
        moved = {partition for other in others for partition in owned(other)}
        assert owned(late) <= first, "its new tasks have not started"
        assert moved - first, "one of them is another member's now"
        run.until_progress(moved)
        may_ask.set()
        run.until_shared()
        run.verify()
    assert len(incarnations(late)) == 1
    assert not [each for each in run.trace().messages if isinstance(each, TaskFailed)]
