"""Steps in a group's log from outside, while members lead in between."""

from collections.abc import Callable, Sequence

import pytest

from tests.fakes.clients import FakeAdmin, FakeChangelogReader, FakeSinkProducer
from tests.streams.group.fake_group import APP, FakeGroup, FakeLeader
from tidewheel import StreamsError
from tidewheel.rebalance.leader.log_steps import Claimant, log_step
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group, snapshot
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim
from tidewheel.rebalance.runtime.ports import LeadershipLostError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector


class RacingLeader(FakeLeader):
    """Writer that loses to queued claims of others."""

    def __init__(self, group: FakeGroup, races: list[Callable[[], None]]) -> None:
        super().__init__(group.broker)
        self._races = races

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        if self._races:
            self._races.pop()()
            raise LeadershipLostError("fenced")
        super().write(keys, values)

    def close(self) -> None: ...


def books_of(
    group: FakeGroup, races: list[Callable[[], None]], pauses: list[float] | None = None
) -> GroupLogWriter:
    broker = group.broker
    admin = FakeAdmin(broker)
    topics = GroupTopics(APP, admin, FakeChangelogReader(broker), FakeChangelogReader(broker))  # type: ignore[arg-type] # asks for no time
    return GroupLogWriter(
        APP,
        admin=admin,
        topics=topics,
        writer=lambda: RacingLeader(group, races),
        sink=lambda: FakeSinkProducer(broker),
        now_ms=lambda: 0,
        pause=(pauses if pauses is not None else []).append,
    )


def claimed_by(leader: str) -> Callable[[Group], list[AnyRecord]]:
    """Return a step that claims the unchanged group."""

    def make(group: Group) -> list[AnyRecord]:
        epoch = group.leader_epoch + 1
        return [LeaderClaim(leader_epoch=epoch, leader=leader), *snapshot(group, epoch)]

    return make


def overtaken(books: GroupLogWriter) -> None:
    books.step(claimed_by("member"))


def test_a_step_overtaken_by_a_member_is_repeated_from_the_members_record() -> None:
    group = FakeGroup()
    other = books_of(group, [])
    pauses: list[float] = []
    books = books_of(group, [lambda: overtaken(other)], pauses)
    after = books.step(claimed_by("command"))
    assert (after.leader, after.leader_epoch) == ("command", 2)
    assert books.group() == other.group() == after
    assert len(pauses) == 1


def test_a_writer_that_is_always_overtaken_fails_and_writes_nothing() -> None:
    group = FakeGroup()
    books = books_of(group, [lambda: None] * 100)
    with pytest.raises(StreamsError, match="others claimed the leadership of group shop each time"):
        books.step(claimed_by("command"))
    assert books.group() == Group()


def test_a_refused_step_writes_nothing() -> None:
    group = FakeGroup()
    books = books_of(group, [])

    def refuse(_: Group) -> list[AnyRecord]:
        raise StreamsError("no")

    with pytest.raises(StreamsError, match="no"):
        books.step(refuse)
    assert group.broker.topics[state_topic(APP)].logs[0].end == 0


def test_a_claimed_step_names_the_leader_and_the_topics() -> None:
    books = books_of(FakeGroup(), [])
    books.claim_step("rest", "1", log_step)
    after = books.group()
    assert (after.leader, after.leader_epoch) == ("rest-1", 1)
    assert after.topic_ids == books.topic_ids()
    assert after.topic_ids.keys() == {state_topic(APP), inbox_topic(APP)}


def test_a_claimed_step_refuses_with_an_error_of_streams() -> None:
    group = FakeGroup()

    def refuse(_: Group, __: Claimant) -> list[AnyRecord]:
        raise ValueError("the group is not at rest")

    with pytest.raises(StreamsError, match="the group is not at rest"):
        books_of(group, []).claim_step("rest", "1", refuse)
    assert group.broker.topics[state_topic(APP)].logs[0].end == 0


@pytest.mark.parametrize("committing", [APP, f"{APP}~1of2"])
def test_missing_topics_are_created_unless_a_group_has_lost_them(committing: str) -> None:
    group = FakeGroup(topics=False)
    books_of(group, []).open(-1)
    assert {state_topic(APP), inbox_topic(APP)} <= group.broker.topics.keys()
    group.broker.delete_topic(state_topic(APP))
    metadata = Progress(
        task_epoch=4,
        transactional_id="shop-a-1-0",
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector.at(3),
    ).encode()
    group.broker.groups[committing][TopicPartition("orders", 0)] = CommittedOffset(3, metadata)
    with pytest.raises(StreamsError, match="run `tidewheel group recover` first"):
        books_of(group, []).open(-1)
