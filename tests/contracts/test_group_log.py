import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from tests.fakes.cluster import PATIENCE_S, RealCluster, columns, started
from tests.fakes.group_log import FakeControlTopics
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.rebalance.producer_ids import INCARNATION_BYTES, group_id
from tidewheel.rebalance.protocol.messages import AnyMessage, MemberDied, Suspect
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim, TaskRecord
from tidewheel.rebalance.runtime.ports import (
    ControlTopicsChangedError,
    GroupLog,
    LeadershipLostError,
    LoggedRecord,
)
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.admin.group_log import (
    KafkaGroupAdmin,
    KafkaGroupLog,
    inbox_topic,
    state_topic,
)
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.control_topics import Arrival, ControlTopicsReader
from tidewheel.tasks.kafka.internal_topics import offsets_group
from tidewheel.tasks.kafka.ports import CommittedOffset, NewTopic
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

BACK_MS = 60_000


class ControlTopics(Protocol):
    """Control topics of one application, in memory or real."""

    def log(self) -> GroupLog: ...

    def delete(self) -> None: ...

    def put(self, message: bytes) -> None: ...


class _Fake(FakeControlTopics):
    def put(self, message: bytes) -> None:
        self.inbox.append(message)


class _Real:
    def __init__(
        self, cluster: RealCluster, broker: RunningBroker, stack: contextlib.ExitStack
    ) -> None:
        self._cluster = cluster
        self._stack = stack
        self.app = f"group-{secrets.token_hex(4)}"
        self.settings = ClientSettings(
            bootstrap_servers=broker.bootstrap_servers, application_id=self.app
        )

    def log(self) -> KafkaGroupLog:
        log = KafkaGroupLog(self.settings)
        self._stack.callback(log.close)
        return log

    def delete(self) -> None:
        self._cluster.admin().delete_topics([state_topic(self.app), inbox_topic(self.app)])

    def put(self, message: bytes, topic: str | None = None) -> None:
        sink = self._cluster.sink()
        sink.produce(columns(topic or inbox_topic(self.app), message))
        assert sink.flush() == []


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.broker)])
def topics(request: pytest.FixtureRequest) -> Iterator[ControlTopics]:
    if request.param == "fake":
        yield _Fake()
        return
    with contextlib.ExitStack() as stack:
        yield _Real(
            request.getfixturevalue("real_cluster"), request.getfixturevalue("kafka_broker"), stack
        )


class _Reader:
    def __init__(self, log: GroupLog, *, back_ms: int = BACK_MS) -> None:
        self._log = log
        self.ids = log.open(create=True, inbox_back_ms=back_ms)
        self.logged: list[LoggedRecord] = []
        self.messages: list[AnyMessage] = []
        self.offset = 0
        self.dropped = 0

    @property
    def records(self) -> list[AnyRecord]:
        return [each.record for each in self.logged if each.record is not None]

    def read_until(self, enough: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not enough():
            assert time.monotonic() < deadline_s, (self.logged, self.messages, self.offset)
            read = self._log.poll(0.2)
            self.logged += read.records
            self.messages += read.messages
            self.offset = read.state_offset
            self.dropped += read.dropped

    def read_to(self, end: int) -> None:
        self.read_until(lambda: self.offset >= end)


def _claim(epoch: int) -> LeaderClaim:
    return LeaderClaim(leader_epoch=epoch, leader=f"leader-{epoch}")


def _task(epoch: int, number: int) -> TaskRecord:
    return TaskRecord(
        leader_epoch=epoch, task=f"0_{number}", phase="RUNNING", task_epoch=number, owner="a-1"
    )


def _died(number: int) -> MemberDied:
    return MemberDied(app="a", member=f"m{number}", incarnation=f"m{number}-1")


def test_the_first_opener_creates_the_topics_and_all_see_the_same_ids(
    topics: ControlTopics,
) -> None:
    first, second = topics.log(), topics.log()
    ids = first.open(create=True, inbox_back_ms=BACK_MS)
    assert second.open(create=False, inbox_back_ms=BACK_MS) == ids == first.topic_ids()
    assert len(ids) == 2
    assert len(set(ids.values())) == 2
    assert first.state_end() == 0


def test_missing_topics_are_not_created_without_create(topics: ControlTopics) -> None:
    with pytest.raises(ControlTopicsChangedError):
        topics.log().open(create=False, inbox_back_ms=BACK_MS)


def test_records_are_read_by_all_processes_in_order_up_to_the_end(topics: ControlTopics) -> None:
    leader = topics.log()
    readers = [_Reader(leader), _Reader(topics.log())]
    leader.claim()
    leader.append([_claim(1), _task(1, 0)])
    leader.append([_task(1, 1)])
    for reader in readers:
        reader.read_until(lambda: len(reader.logged) >= 3)  # noqa: B023 - called immediately
        reader.read_to(leader.state_end())
        assert reader.records == [_claim(1), _task(1, 0), _task(1, 1)]
        assert [each.key for each in reader.logged] == ["1/claim", "1/task/0_0", "1/task/0_1"]


def test_H1_a_claim_fences_the_leader_before_and_covers_all_it_wrote(topics: ControlTopics) -> None:
    old, new = topics.log(), topics.log()
    reader = _Reader(old)
    late = _Reader(new)
    old.claim()
    old.append([_claim(1)])
    end = new.claim()
    late.read_to(end)
    assert late.records == [_claim(1)]
    with pytest.raises(LeadershipLostError):
        old.append([_task(1, 7)])
    new.append([_claim(2)])
    reader.read_until(lambda: len(reader.logged) >= 2)
    assert reader.records == [_claim(1), _claim(2)]


def test_H1_a_fenced_leader_that_claims_again_leads_again(topics: ControlTopics) -> None:
    one, two = topics.log(), topics.log()
    reader = _Reader(one)
    one.claim()
    two.claim()
    with pytest.raises(LeadershipLostError):
        one.append([_claim(1)])
    one.claim()
    one.append([_claim(3)])
    reader.read_until(lambda: bool(reader.logged))
    assert reader.records == [_claim(3)]


def test_writes_need_a_claim(topics: ControlTopics) -> None:
    log = topics.log()
    log.open(create=True, inbox_back_ms=BACK_MS)
    with pytest.raises(LeadershipLostError):
        log.append([_claim(1)])
    log.claim()
    log.resign()
    log.resign()
    with pytest.raises(LeadershipLostError):
        log.append([_claim(1)])


def test_messages_of_all_processes_arrive_in_the_order_they_were_sent(
    topics: ControlTopics,
) -> None:
    one, two = topics.log(), topics.log()
    reader = _Reader(one)
    two.open(create=False, inbox_back_ms=BACK_MS)
    one.send([_died(number) for number in range(3)])
    one.send([_died(3)])
    two.send([Suspect(app="a", member="c", incarnation="c-1", leader_epoch=1)])
    reader.read_until(lambda: len(reader.messages) == 5)
    assert [message for message in reader.messages if isinstance(message, MemberDied)] == [
        _died(number) for number in range(4)
    ]


def test_H23_malformed_and_too_large_messages_are_dropped_and_counted(
    topics: ControlTopics,
) -> None:
    log = topics.log()
    reader = _Reader(log)
    for data in (b"\xff", b"{}", b'{"kind":"TELEPATHY","app":"a"}', b"[" * 300_000):
        topics.put(data)
    log.send([_died(1)])
    reader.read_until(lambda: bool(reader.messages))
    assert (reader.messages, reader.dropped) == ([_died(1)], 4)


def test_only_recent_messages_are_read_at_the_start(topics: ControlTopics) -> None:
    first = topics.log()
    reader = _Reader(first)
    first.send([_died(1)])
    reader.read_until(lambda: bool(reader.messages))
    later, latest = _Reader(topics.log()), _Reader(topics.log(), back_ms=0)
    first.send([_died(2)])
    later.read_until(lambda: _died(2) in later.messages)
    latest.read_until(lambda: _died(2) in latest.messages)
    assert later.messages == [_died(1), _died(2)]
    assert latest.messages == [_died(2)]


def test_H4_forgotten_keys_are_tombstones(topics: ControlTopics) -> None:
    log = topics.log()
    reader = _Reader(log)
    log.claim()
    log.append([_claim(1), _task(1, 0)])
    log.forget(["1/task/0_0"])
    reader.read_until(lambda: len(reader.logged) >= 3)
    last = reader.logged[-1]
    assert (last.key, last.record, last.tombstone) == ("1/task/0_0", None, True)


def test_H24_recreated_topics_have_other_ids(topics: ControlTopics) -> None:
    log = topics.log()
    ids = log.open(create=True, inbox_back_ms=BACK_MS)
    topics.delete()
    assert log.topic_ids() == {}
    again = topics.log().open(create=True, inbox_back_ms=BACK_MS)
    assert set(again) == set(ids)
    assert not set(again.values()) & set(ids.values())


def test_closing_twice_is_allowed(topics: ControlTopics) -> None:
    log = topics.log()
    log.open(create=True, inbox_back_ms=BACK_MS)
    log.send([_died(1)])
    log.close()
    log.close()
    topics.log().close()


@pytest.fixture
def real_topics(real_cluster: RealCluster, kafka_broker: RunningBroker) -> Iterator[_Real]:
    with contextlib.ExitStack() as stack:
        yield _Real(real_cluster, kafka_broker, stack)


@pytest.mark.broker
def test_a_record_outside_any_transaction_blocks_no_reader(real_topics: _Real) -> None:
    log = real_topics.log()
    reader = _Reader(log)
    log.claim()
    log.append([_claim(1)])
    real_topics.put(b'{"kind":"TASK","leader_epoch":1,"task":"x"}', state_topic(real_topics.app))
    later = _Reader(real_topics.log())
    end = log.state_end()
    for each in (reader, later):
        each.read_to(end)
        assert each.records == [_claim(1)]
        rejected = each.logged[-1].rejected
        assert rejected is not None
        assert (rejected.topic, rejected.offset) == (state_topic(real_topics.app), end - 1)
    log.append([_task(1, 1)])
    later.read_until(lambda: later.records == [_claim(1), _task(1, 1)])


@pytest.mark.broker
@pytest.mark.parametrize(
    "is_old", [False, True], ids=["new topics", "topics of an earlier version"]
)
def test_a_leader_whose_clock_is_hours_ahead_writes_under_the_brokers_time(
    real_topics: _Real,
    real_cluster: RealCluster,
    monkeypatch: pytest.MonkeyPatch,
    is_old: bool,
) -> None:
    if is_old:
        names = (state_topic(real_topics.app), inbox_topic(real_topics.app))
        config = {"message.timestamp.type": "CreateTime"}
        real_cluster.admin().create_topics(
            [
                NewTopic(name=name, partitions=1, replication_factor=1, config=config)
                for name in names
            ]
        )
    log = real_topics.log()
    reader = _Reader(log)
    before_ms = time.time_ns() // 1_000_000  # the broker runs on this machine
    ahead_ns = time.time_ns() + 5 * 3_600 * 10**9
    monkeypatch.setattr("tidewheel.streams.kafka.admin.group_log.time.time_ns", lambda: ahead_ns)
    log.claim()
    log.append([_claim(1)])
    reader.read_until(lambda: reader.records == [_claim(1)])
    monkeypatch.undo()
    admin = KafkaAdmin(real_topics.settings)
    state = TopicPartition(state_topic(real_topics.app), 0)
    hour_ms = 3_600_000
    assert admin.offsets_at([state], before_ms - hour_ms)[state] == 0
    assert admin.offsets_at([state], before_ms + hour_ms)[state] == log.state_end()
    admin.close()


@pytest.mark.broker
def test_rounds_of_revoke_revoked_grant_are_read_in_order_by_both_sides(
    real_topics: _Real,
) -> None:
    leader, member = real_topics.log(), real_topics.log()
    at_leader, at_member = _Reader(leader), _Reader(member)
    leader.claim()

    def decided(record: AnyRecord) -> None:
        leader.append([record])
        at_member.read_until(lambda: at_member.records[-1:] == [record])

    def announced(message: AnyMessage) -> None:
        member.send([message])
        at_leader.read_until(lambda: at_leader.messages[-1:] == [message])

    decided(_claim(1))
    announced(_died(0))
    for number in range(1, 11):
        decided(_task(1, 2 * number))
        announced(_died(number))
        decided(_task(1, 2 * number + 1))
    assert at_member.records == [_claim(1), *(_task(1, epoch) for epoch in range(2, 22))]
    assert at_leader.messages == [_died(number) for number in range(11)]


@pytest.mark.broker
def test_H3_a_foreign_open_transaction_in_the_inbox_blocks_no_reader(
    real_topics: _Real, real_cluster: RealCluster
) -> None:
    log = real_topics.log()
    reader = _Reader(log)
    log.claim()
    stranger = started(real_cluster, f"{real_topics.app}-stranger")
    stranger.begin()
    stranger.produce(columns(inbox_topic(real_topics.app), b"nonsense"))
    reader.read_until(lambda: reader.dropped == 1)
    log.send([_died(1)])
    log.append([_claim(1)])
    reader.read_until(lambda: bool(reader.messages) and bool(reader.records))
    assert reader.messages == [_died(1)]
    stranger.abort()


@pytest.mark.broker
def test_messages_deleted_unread_are_skipped(real_topics: _Real, real_cluster: RealCluster) -> None:
    log = real_topics.log()
    log.open(create=True, inbox_back_ms=0)
    inbox = TopicPartition(inbox_topic(real_topics.app), 0)
    reader = ControlTopicsReader(
        real_topics.settings,
        (TopicPartition(state_topic(real_topics.app), 0), 0),
        (inbox, 1_000),
        lambda: real_cluster.admin().end_offsets([inbox])[inbox],
    )
    deadline_s = time.monotonic() + PATIENCE_S
    taken: list[Arrival] = []
    while not any(each.runs for each in taken):
        assert time.monotonic() < deadline_s, taken
        log.send([_died(1)])
        taken += reader.receive(0.2)
    assert {each.partition for each in taken if each.runs} == {inbox}
    reader.close()


@pytest.mark.broker
def test_the_admin_answers_the_queries_of_the_leader(
    real_topics: _Real, real_cluster: RealCluster
) -> None:
    topic = real_cluster.topic()
    transactional_id = group_id(real_topics.app, "0a" * INCARNATION_BYTES, 0)
    producer = started(real_cluster, transactional_id)
    producer.begin()
    producer.produce(columns(topic, b"open"))
    admin = KafkaGroupAdmin(real_topics.settings)
    admin.fence([transactional_id])
    known = {f"{topic}-0": _end_of(real_cluster, topic)}
    assert admin.ends([f"{topic}-0"]) == known
    assert admin.ends([f"{topic}-0", "no-such-topic-7", "nonsense"]) == known
    assert not admin.was_used()
    assert admin.foreign_offsets({topic: 1}) == ()
    real_cluster.admin().alter_committed(real_topics.app, {TopicPartition(topic, 0): 1})
    assert admin.foreign_offsets({topic: 1}) == (f"{topic}-0",)
    shard = offsets_group(real_topics.app, Shard(1, 4))
    _commit(real_cluster, shard, {TopicPartition(topic, 0): CommittedOffset(1, "")})
    assert admin.foreign_offsets({topic: 1}) == (f"{topic}-0", f"{topic}-0/1of4")
    admin.close()


def test_commits_of_a_shard_show_that_a_group_was_used(
    real_topics: _Real, real_cluster: RealCluster
) -> None:
    """The application's own group has no offset until all shards have committed."""
    topic, shard = real_cluster.topic(), Shard(1, 4)
    admin = KafkaGroupAdmin(real_topics.settings)
    for task_epoch in (0, 3):
        progress = Progress(
            task_epoch=task_epoch,
            transactional_id=group_id(real_topics.app, "0a" * INCARNATION_BYTES, 0),
            topic_id=bytes(16),
            topology_hash=bytes(8),
            vector=Vector.at(1, shard.first_hash, shard.end_hash),
            shards=4,
        )
        committed = CommittedOffset(1, progress.encode())
        group = offsets_group(real_topics.app, shard)
        _commit(real_cluster, group, {TopicPartition(topic, 0): committed})
        assert admin.was_used() is (task_epoch > 0)
    admin.close()


def _commit(
    cluster: RealCluster, group: str, offsets: dict[TopicPartition, CommittedOffset]
) -> None:
    admin = cluster.admin()
    admin.reach_group(group)  # a coordinator that still loads answers a change with an error
    admin.alter_committed(group, offsets)


def _end_of(cluster: RealCluster, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    return cluster.admin().end_offsets([partition])[partition]
