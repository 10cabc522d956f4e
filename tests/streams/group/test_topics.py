"""Reads of the control topics."""

import pytest

from tests.fakes.clients import FakeChangelogReader
from tests.rebalance.leader.group_logs import T, two_members
from tests.streams.group.fake_group import APP, FakeConnection, FakeGroup, GroupAdmin
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.messages import LeaderBeat, Suspect
from tidewheel.rebalance.protocol.records import encode_record
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

SUSPECT = Suspect(app=APP, member="p1", incarnation="p1", leader_epoch=1)


def test_each_log_record_is_read_once_and_reading_resumes_at_its_position() -> None:
    group = FakeGroup()
    book = two_members()
    group.write(book)
    group.broker.send(state_topic(APP), b"noise", b"1/noise", timestamp=T)
    group.broker.send(state_topic(APP), None, b"1/claim", timestamp=T)
    topics = FakeConnection(group.broker).topics
    *entries, rejected = topics.log()
    assert entries == book.entries
    assert isinstance(rejected, RejectedRecord)
    assert (rejected.topic, rejected.partition, rejected.offset, rejected.timestamp_ms) == (
        *(state_topic(APP), 0, len(book.entries), T),
    )
    assert topics.log() == []
    more = book.member("c").entries[-1]
    group.broker.send(state_topic(APP), encode_record(more.record), timestamp=more.timestamp_ms)
    assert topics.log() == [more._replace(offset=len(book.entries) + 1)]


def test_the_inbox_is_read_from_a_timestamp() -> None:
    group = FakeGroup()
    other = Suspect(app="bank", member="p1", incarnation="p1", leader_epoch=1)
    group.hear(T - 1, LeaderBeat(app=APP, member="p1", incarnation="p1", leader_epoch=1, seq=1))
    group.hear(T, SUSPECT, other)
    group.broker.send(inbox_topic(APP), b"noise", timestamp=T)
    topics = FakeConnection(group.broker).topics
    heard, dropped = topics.inbox(T)
    assert heard == (T, SUSPECT)
    assert isinstance(dropped.message, RejectedRecord)
    assert (dropped.message.offset, dropped.message.rejection.field) == (3, "message")
    group.hear(T + 5, SUSPECT)
    assert [heard.timestamp_ms for heard in topics.inbox(T)] == [T + 5]


def test_messages_deleted_between_two_reads_are_skipped() -> None:
    group = FakeGroup()
    group.hear(T, SUSPECT, SUSPECT)
    connection = FakeConnection(group.broker)
    assert len(connection.topics.inbox(T)) == 2
    group.hear(T + 1, SUSPECT, SUSPECT)
    connection.admin.delete_records({TopicPartition(inbox_topic(APP), 0): 3})
    assert [heard.timestamp_ms for heard in connection.topics.inbox(T)] == [T + 1]


class _Clock:
    """Clock that moves ten seconds per call."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += 10.0
        return self._now_s


class _SilentReader(FakeChangelogReader):
    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        return []


def test_a_topic_that_returns_no_records_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeGroup()
    group.write(two_members())
    monkeypatch.setattr("tidewheel.streams.group.topics.time", _Clock())
    readers = [_SilentReader(group.broker) for _ in range(2)]
    topics = GroupTopics(APP, GroupAdmin(group.broker), readers[0], readers[1])
    with pytest.raises(StreamsError, match="topic shop-group-state: no record arrived for 30 s"):
        topics.log()
