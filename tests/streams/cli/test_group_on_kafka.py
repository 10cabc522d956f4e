"""Group commands on a real Kafka."""

import json
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.integration.cluster import until
from tests.rebalance.leader.group_logs import LogBook, scale_out, two_members
from tidewheel.rebalance.model import MemberPhase, TaskId, TopicPartition
from tidewheel.rebalance.producer_ids import INCARNATION_BYTES, group_id
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import AnyMessage, Beat, DrainMember, LeaderBeat
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.rebalance.runtime.ports import GroupLogAwayError
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.cli.app import main
from tidewheel.streams.errors import FencedError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import KafkaGroupLog, inbox_topic, state_topic
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.kafka.producers.transactional_producer import KafkaTransactionalProducer
from tidewheel.tasks.kafka.ports import CommittedOffset, NewTopic
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PROGRAM = """
from tidewheel import StreamsBuilder

builder = StreamsBuilder()
builder.stream("{orders}", key_serde=str, value_serde=str).group_by_key().count(store="totals")
topology = builder.build()
config = {{"application_id": "{app}"}}
"""


class _Group:
    """Control topics written by hand."""

    def __init__(self, servers: str) -> None:
        self.app = f"watched-{secrets.token_hex(4)}"
        self.servers = servers
        self.settings = ClientSettings(bootstrap_servers=servers, application_id=self.app)
        self.log = KafkaGroupLog(self.settings)
        self.clients = KafkaClients(bootstrap_servers=servers, application_id=self.app)
        self.admin = self.clients.admin()
        self.topic_ids: dict[str, str] = {}
        until(self._is_open, "the control topics to be usable")

    def _is_open(self) -> bool:
        try:
            self.topic_ids |= self.log.open(create=True, inbox_back_ms=60_000)
        except GroupLogAwayError:
            return False  # created, without a leader yet
        return True

    def lead(self, book: LogBook) -> None:
        """Write a log as its leader would, with the topics' real ids."""
        records = [_with_ids(entry.record, self.topic_ids) for entry in book.entries]
        self.log.claim()
        self.log.append(records)

    def speak(self, *members: str, tasks: tuple[TaskStatus, ...] = ()) -> None:
        told: list[AnyMessage] = [
            LeaderBeat(app=self.app, member="p1", incarnation="p1", leader_epoch=1, seq=1)
        ]
        told += [
            Beat(
                app=self.app,
                member=name,
                incarnation=f"{name}-1",
                seq=1,
                full=True,
                tasks=tasks if name == "c" else (),
            )
            for name in members
        ]
        before = self._said()
        self.log.send(told)
        until(lambda: self._said() >= before + len(told), "the beats to be there")

    def command(self, *arguments: str) -> int:
        return main([*arguments, "--bootstrap-servers", self.servers])

    def _said(self) -> int:
        inbox = TopicPartition(inbox_topic(self.app), 0)
        return self.admin.end_offsets([inbox])[inbox]

    def close(self) -> None:
        self.log.close()
        self.admin.close()


def _with_ids(record: AnyRecord, topic_ids: dict[str, str]) -> AnyRecord:
    if isinstance(record, LeaderClaim):
        return msgspec.structs.replace(record, topic_ids=topic_ids)
    return record


@pytest.fixture
def group(kafka_broker: RunningBroker) -> Iterator[_Group]:
    group = _Group(kafka_broker.bootstrap_servers)
    yield group
    group.close()


def _scaled_out() -> LogBook:
    """A group with a long session timeout, for slow machines."""
    book = LogBook()
    book.session_timeout_ms = 60_000
    return scale_out(two_members(book=book))


def _learning() -> LogBook:
    book = _scaled_out()
    book.target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "c"}, "more for c")
    return book.step({"0_3": ("c-1", 9)})


LEARNER = TaskStatus(
    task="0_3",
    role="learner",
    epoch=9,
    state="RESTORING",
    changelog={"counts-3": 10},
    ends={"counts-3": 40},
    lag=30,
    rate=10.0,
)


def test_N5_a_group_is_read_from_its_topics(
    group: _Group, capsys: pytest.CaptureFixture[str]
) -> None:
    group.lead(_learning())
    group.speak("a", "b", "c", tasks=(LEARNER,))
    assert group.command("status", group.app, "--json") == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert told["phase"] == "SYNC (RECONCILING)"
    assert {each["task"]: each["member"] for each in told["tasks"]} == {
        "0_0": "a",
        "0_1": "c",
        "0_2": "a",
        "0_3": "b",
    }
    assert [(each["task"], each["lag"], each["eta_s"]) for each in told["learners"]] == [
        ("0_3", 30, 3.0)
    ]
    assert told["members"][0]["heard_ms_ago"] < 60_000
    assert group.command("top", group.app, "--count", "1") == ExitCode.OK
    assert "SYNC (RECONCILING)  members 3  tasks 4/4  learners 1" in capsys.readouterr().out
    assert group.command("group", "history", group.app, "--json") == ExitCode.OK
    episodes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [move["how"] for episode in episodes for move in episode["moves"]] == [
        *["start"] * 4,
        "learner",
    ]


def test_alarms_of_the_brokers_are_shown(group: _Group, capsys: pytest.CaptureFixture[str]) -> None:
    """H18: an offset that no commit of the application has written."""
    book = _scaled_out()
    orders = f"orders-{group.app}"
    group.admin.create_topics([NewTopic(name=orders, partitions=1, config={})])
    book.write(msgspec.structs.replace(book.group.about, partitions={orders: 1}, leader_epoch=1))
    group.lead(book)
    group.speak("a", "b", "c")
    group.admin.alter_committed(group.app, {TopicPartition(orders, 0): 0})
    assert group.command("status", group.app, "--json") == ExitCode.FAILED
    told = json.loads(capsys.readouterr().out)
    assert [alarm["name"] for alarm in told["alarms"]] == ["offsets-moved"]
    assert f"{orders}-0" in told["alarms"][0]["text"]


def test_L4_the_drain_request_reaches_the_leader(
    group: _Group, capsys: pytest.CaptureFixture[str]
) -> None:
    book = _scaled_out()
    group.lead(book)
    group.speak("a", "b", "c")
    heard: list[DrainMember] = []

    def lead_on() -> None:
        while not heard:
            heard.extend(
                each for each in group.log.poll(0.2).messages if isinstance(each, DrainMember)
            )
        start = len(book.entries)
        book.member("b", MemberPhase.LEAVING).released("0_3").grant("0_3", "a")
        book.member("b", MemberPhase.GONE)
        group.log.append([entry.record for entry in book.entries[start:]])

    leader = threading.Thread(target=lead_on)
    leader.start()
    try:
        assert group.command("drain", "b", group.app, "--timeout", "20s", "--json") == ExitCode.OK
    finally:
        leader.join(30)
    assert (heard[0].target, heard[0].drain_ms) == ("b", 20_000)
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (steps[0]["phase"], steps[-1]["phase"], steps[-1]["tasks"]) == ("ACTIVE", "GONE", [])


def test_a_group_whose_topics_were_deleted_is_set_up_again(
    group: _Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """H24: the epoch exceeds every committed one, and old producers are fenced."""
    orders = f"orders-{group.app}"
    group.admin.create_topics([NewTopic(name=orders, partitions=2, config={})])
    zombie = _commit(group, TopicPartition(orders, 0), epoch=17)
    file = tmp_path / f"program_{secrets.token_hex(4)}.py"
    file.write_text(PROGRAM.format(orders=orders, app=group.app), encoding="utf-8")
    group.admin.delete_topics([state_topic(group.app), inbox_topic(group.app)])
    assert (
        group.command("group", "recover", f"{file}:topology", "--execute", "--json") == ExitCode.OK
    )
    assert json.loads(capsys.readouterr().out)["epoch"] == 18
    with pytest.raises(FencedError):
        _commit_with(zombie, group, TopicPartition(orders, 0), epoch=17)
    zombie.close()
    log = KafkaGroupLog(group.settings)
    ids = log.open(create=False, inbox_back_ms=0)
    found, end = Group(), log.state_end()
    offset = 0
    while offset < end:
        read = log.poll(0.5)
        offset = read.state_offset
        found = replay((each.record for each in read.records if each.record), found)
    log.close()
    assert (found.leader_epoch, dict(found.topic_ids)) == (18, dict(ids))
    assert {task: state.task_epoch for task, state in found.states.items()} == {
        TaskId(0, 0): 18,
        TaskId(0, 1): 18,
    }
    assert group.command("group", "recover", f"{file}:topology", "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["needed"] == []


def _commit(group: _Group, partition: TopicPartition, *, epoch: int) -> KafkaTransactionalProducer:
    producer = group.clients.transactional_producer(
        group_id(group.app, "0a" * INCARNATION_BYTES, 0), 60_000
    )
    producer.init()
    _commit_with(producer, group, partition, epoch=epoch)
    return producer


def _commit_with(
    producer: KafkaTransactionalProducer, group: _Group, partition: TopicPartition, *, epoch: int
) -> None:
    progress = Progress(
        task_epoch=epoch,
        transactional_id=producer.transactional_id,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector.at(0),
    )
    producer.begin()
    producer.commit(group.app, {partition: CommittedOffset(0, progress.encode())})
