"""Alarms name topic, producer and next command of what keeps an application from working."""

import json
from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import Consumer

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PATIENT, FaultRun, eventually, incarnations
from tests.integration.cluster import until
from tests.integration.crashes.test_open_transactions import ForeignTransaction
from tests.integration.programs.jobs import STORE
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.cli.app import main
from tidewheel.tasks.kafka.internal_topics import changelog_topic

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

MINUTE_S: Final = 60.0
#: Starts of a member that are an alarm.
STARTS: Final = 4

Alarms = Callable[..., list[str]]


@pytest.fixture
def alarms(capsys: pytest.CaptureFixture[str]) -> Alarms:
    """Return alarms of `tidewheel status` that have a name and all of some texts."""

    def read(run: FaultRun, name: str, *parts: str) -> list[str]:
        capsys.readouterr()
        servers = run.cluster.bootstrap_servers
        main(["status", run.application_id, "--bootstrap-servers", servers, "--json"])
        texts = [
            alarm["text"]
            for alarm in json.loads(capsys.readouterr().out)["alarms"]
            if alarm["name"] == name
        ]
        return [text for text in texts if all(part in text for part in parts)]

    return read


@pytest.mark.fault("54")
def test_status_names_the_transaction_that_keeps_input_from_readers(
    make_run: MakeRun, alarms: Alarms, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    foreign = ForeignTransaction(run.cluster, [TopicPartition(run.source, 0)])
    parts = (foreign.transactional_id, "abort", f"--topic {run.source} --partition 0")
    took_s = eventually(lambda: alarms(run, "open-transaction", *parts), "an alarm", MINUTE_S)
    record_property("recovery_s", took_s)
    foreign.abort()
    until(lambda: not alarms(run, "open-transaction"), "the alarm ends")
    run.verify()


@pytest.mark.fault("41")
def test_status_names_a_foreign_consumer_of_a_running_group(
    make_run: MakeRun, alarms: Alarms, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    owners = run.owners()
    consumer = Consumer(
        {
            "bootstrap.servers": run.cluster.bootstrap_servers,
            "group.id": run.application_id,
            "client.id": "billing",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([run.source])
    try:
        until(lambda: [consumer.poll(0.1), consumer.assignment()][1], "the consumer joins")
        took_s = eventually(
            lambda: alarms(run, "foreign-subscribers", "'billing' on 127.0.0.1"), "an alarm"
        )
        record_property("recovery_s", took_s)
        run.until_progress()
        assert run.owners() == owners
    finally:
        consumer.close()
    until(lambda: not alarms(run, "foreign-subscribers"), "the alarm ends")
    run.verify()


@pytest.mark.fault("54")
@pytest.mark.fault("47")
def test_status_names_the_transaction_that_a_restore_waits_for(
    make_run: MakeRun, alarms: Alarms, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    changelog = changelog_topic(run.application_id, STORE)
    foreign = ForeignTransaction(run.cluster, [TopicPartition(changelog, 0)])
    run.until_progress()
    (owner,) = run.owners()[0]
    run.kill(owner)
    parts = (foreign.transactional_id, "abort", f"--topic {changelog} --partition 0")
    took_s = eventually(lambda: alarms(run, "restore-waits", *parts), "an alarm", MINUTE_S)
    record_property("recovery_s", took_s)
    run.until_progress({1, 2, 3})
    foreign.abort()
    run.until_owned()
    until(lambda: not alarms(run, "restore-waits"), "the alarm ends")
    run.verify()


@pytest.mark.fault("54")
def test_status_names_the_member_that_starts_again_and_again(
    make_run: MakeRun, alarms: Alarms, record_property: Callable[..., None]
) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    for _ in range(STARTS):
        run.kill("c")
        run.start("c", failpoints="before_commit:1:kill9")
        until(lambda: run.workers["c"].has_ended, "it dies in its first commit")
    member = run.trace().member_of(incarnations(run.workers["c"])[-1])
    took_s = eventually(lambda: alarms(run, "restarting-member", member), "an alarm", MINUTE_S)
    record_property("recovery_s", took_s)
    record_property("times", STARTS)
    run.kill("c")
    run.start("c")
    run.until_shared()
    run.verify()
