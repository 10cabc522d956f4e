"""Fake group: two topics on a `FakeBroker`, and access for commands."""

from collections.abc import Sequence
from typing import cast

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import (
    FakeAdmin,
    FakeChangelogReader,
    FakeSinkProducer,
    FakeTransactionalProducer,
)
from tests.rebalance.leader.group_logs import LogBook
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import AnyMessage, Beat, LeaderBeat, encode_message
from tidewheel.rebalance.protocol.records import decode_record, encode_record, record_key
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.cli.group_access import GroupConnection
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.recovery import LogWriter
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic

APP = "shop"


class GroupAdmin(FakeAdmin):
    """Admin client that also finds offsets by time."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self._logs = broker

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for each in partitions:
            log = self._logs.log_of(each)
            assert log is not None, f"{each} does not exist"
            later = [
                log.start + index
                for index, entry in enumerate(log.entries)
                if entry.record is not None and entry.record.timestamp >= timestamp_ms
            ]
            found[each] = min(later, default=log.end)
        return found

    def fixed_workers(self, application_id: str) -> dict[str, str]:
        assert application_id
        return {}


class FakeLeader:
    def __init__(self, broker: FakeBroker) -> None:
        self._producer = FakeTransactionalProducer(broker, f"{APP}-leader")

    def init(self) -> None:
        self._producer.init()

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self._producer.begin()
        self._producer.produce_changelog(
            TopicPartition(state_topic(APP), 0), keys, values, [0] * len(keys)
        )
        self._producer.commit(APP, {})

    def close(self) -> None: ...


def group_log_of(broker: FakeBroker, now_ms: int) -> GroupLogWriter:
    admin = GroupAdmin(broker)
    return GroupLogWriter(
        APP,
        admin=admin,
        topics=GroupTopics(APP, admin, FakeChangelogReader(broker), FakeChangelogReader(broker)),
        writer=lambda: FakeLeader(broker),
        sink=lambda: FakeSinkProducer(broker),
        now_ms=lambda: now_ms,
        pause=lambda _: None,
    )


class FakeConnection:
    def __init__(self, broker: FakeBroker, now_ms: int = 0) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self.admin = GroupAdmin(broker)
        self.topics = GroupTopics(
            APP, self.admin, FakeChangelogReader(broker), FakeChangelogReader(broker)
        )
        self.closed = False

    def sink(self) -> FakeSinkProducer:
        return FakeSinkProducer(self._broker)

    def leader(self) -> LogWriter:
        return FakeLeader(self._broker)

    def group_log(self) -> GroupLogWriter:
        return group_log_of(self._broker, self._now_ms)

    def close(self) -> None:
        self.topics.close()
        self.closed = True


class FakeGroup:
    """Group of application `shop`."""

    def __init__(self, *, topics: bool = True) -> None:
        self.broker = FakeBroker()
        self.connections: list[FakeConnection] = []
        self.now_ms = 0
        self._written = 0
        if topics:
            self.broker.create_topic(state_topic(APP))
            self.broker.create_topic(inbox_topic(APP))

    def write(self, book: LogBook) -> None:
        """Write the new records of a log book."""
        for entry in book.entries[self._written :]:
            self.broker.send(
                state_topic(APP),
                encode_record(entry.record),
                record_key(entry.record),
                timestamp=entry.timestamp_ms,
            )
        self._written = len(book.entries)

    def hear(self, timestamp_ms: int, *messages: AnyMessage) -> None:
        """Add messages to the inbox."""
        for message in messages:
            self.broker.send(inbox_topic(APP), encode_message(message), timestamp=timestamp_ms)

    def beats(self, timestamp_ms: int, *members: str, leader_epoch: int = 1) -> None:
        self.hear(
            timestamp_ms,
            LeaderBeat(app=APP, member="p1", incarnation="p1", leader_epoch=leader_epoch, seq=1),
            *(
                Beat(app=APP, member=name, incarnation=f"{name}-1", seq=1, full=True)
                for name in members
            ),
        )

    def group_log(self) -> GroupLogWriter:
        return group_log_of(self.broker, self.now_ms)

    def state(self) -> Group:
        """Return the group in the log."""
        records = (decode_record(each.value) for each in self.broker.records(state_topic(APP)))
        return replay(record for record in records if record is not None)

    def connect(self, config: StreamsConfig, *, live: bool = False) -> GroupConnection:
        """Replace `tidewheel.streams.cli.group_access.connect`."""
        del live
        assert config.application_id == APP
        connection = FakeConnection(self.broker, self.now_ms)
        self.connections.append(connection)
        return cast("GroupConnection", connection)


def beat(name: str, *tasks: TaskStatus, full: bool = True) -> Beat:
    return Beat(app=APP, member=name, incarnation=f"{name}-1", seq=1, full=full, tasks=tasks)


def use(monkeypatch: pytest.MonkeyPatch, group: FakeGroup, now_ms: int) -> None:
    """Let commands see a group at a fixed time."""
    group.now_ms = now_ms
    monkeypatch.setattr("tidewheel.streams.cli.group_access.connect", group.connect)
    monkeypatch.setattr("tidewheel.streams.cli.group_access.wall_clock_ms", lambda: now_ms)
