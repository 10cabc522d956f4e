"""The cut between an old application and a new one."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tests.fakes.broker import FakeBroker
from tests.streams.group.fake_group import GroupAdmin
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import GroupRecord
from tidewheel.streams.bulk.backfill.cut import Cut, cut_of_application
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.group.rest_plan import RestFacts
from tidewheel.tasks.kafka.ports import CommittedOffset, TopicDescription
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)
GROWN = TopicPartition("orders", 1)
TOPIC_ID = b"t" * 16


class _Admin:
    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        return {
            name: TopicDescription(name=name, topic_id=TOPIC_ID, partitions=1) for name in names
        }

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 99)


def _committed(*, topic_id: bytes = TOPIC_ID, task_epoch: int = 1) -> CommittedOffset:
    progress = Progress(
        task_epoch=task_epoch,
        transactional_id="old-0",
        topic_id=topic_id,
        topology_hash=bytes(8),
        vector=Vector.at(7),
    )
    return CommittedOffset(7, progress.encode())


def _cut(*, topic_id: bytes = TOPIC_ID) -> Cut:
    """Return the cut of an application that has committed offset 7 of `orders`."""
    committed = {ORDERS: _committed(topic_id=topic_id)}
    facts = RestFacts(application_id="old", group=Group(), committed=committed)
    return Cut(facts=facts, admin=cast("Any", _Admin()))


def test_the_new_application_ends_where_the_old_one_has_committed() -> None:
    assert _cut().ends([ORDERS]) == {ORDERS: 7}


def test_a_new_topic_needs_consent() -> None:
    assert _cut().ends([ORDERS, USERS]) == {ORDERS: 7, USERS: 99}
    (difference,) = _cut().differences(["users", "orders"])
    assert (difference.reason, difference.node) == ("cut-at-end", "users")


def test_partitions_that_the_old_application_has_not_read_are_refused() -> None:
    """Ended at their last record, neither application would process what they have."""
    with pytest.raises(
        BackfillRefused, match=r"offsets of orders-1, although .* of other partitions"
    ):
        _cut().ends([ORDERS, GROWN])


def test_a_working_application_has_a_cut_to_plan_with() -> None:
    """It has committed nothing yet of a topic that it reads, nor of a partition that has grown."""
    about = GroupRecord(leader_epoch=1, partitions={"orders": 1, "users": 1})
    facts = RestFacts(
        application_id="old", group=Group(about=about), committed={ORDERS: _committed()}
    )
    cut = Cut(facts=facts, admin=cast("Any", _Admin()), obstacle="workers are alive")
    assert cut.ends([ORDERS, USERS, GROWN]) == {ORDERS: 7, USERS: 99, GROWN: 99}
    assert [each.node for each in cut.differences(["orders", "products", "users"])] == ["products"]


def test_offsets_of_another_topic_of_this_name_do_not_count() -> None:
    with pytest.raises(BackfillRefused, match="orders was deleted"):
        _cut(topic_id=b"o" * 16).ends([ORDERS])


def test_a_cut_that_has_moved_is_refused_once_results_are_there() -> None:
    _cut().check({ORDERS: OffsetRange(first=0, end=7)})
    with pytest.raises(BackfillRefused, match="from 5 to 7"):
        _cut().check({ORDERS: OffsetRange(first=0, end=5)})


BETWEEN = TopicPartition("old-by-user-repartition", 0)


class _Fixed:
    """Application `old`, whose workers have a fixed assignment: 70 of 100 orders are processed."""

    def __init__(self, admin: type[GroupAdmin] = GroupAdmin) -> None:
        self.broker = FakeBroker()
        self.admin = admin(self.broker)
        self.broker.create_topic(ORDERS.topic, 1)
        for _ in range(100):
            self.broker.send(ORDERS.topic, b"v", b"k")
        self.broker.groups["old"][ORDERS] = CommittedOffset(70, "")

    def repartition(self, records: int) -> None:
        self.broker.create_topic(BETWEEN.topic, 1)
        for _ in range(records):
            self.broker.send(BETWEEN.topic, b"v", b"k")

    def ends(self, old: str = "old") -> dict[TopicPartition, int]:
        config = StreamsConfig(application_id="new")
        admin: Any = self.admin
        return cut_of_application(config, old, admin).ends([ORDERS])


class _Working(GroupAdmin):
    def fixed_workers(self, application_id: str) -> dict[str, str]:
        return {f"{application_id}-fixed-0": "eu-1"}


def test_a_stopped_application_without_a_group_is_cut_at_its_committed_offsets() -> None:
    fixed = _Fixed()
    assert fixed.ends() == {ORDERS: 70}
    fixed.repartition(0)
    assert fixed.ends() == {ORDERS: 70}


def test_records_between_its_tasks_are_not_processed() -> None:
    fixed = _Fixed()
    fixed.repartition(30)
    with pytest.raises(BackfillRefused, match="old-by-user-repartition-0: no offset is committed"):
        fixed.ends()
    fixed.broker.groups["old"][BETWEEN] = CommittedOffset(20, "")
    with pytest.raises(BackfillRefused, match=r"repartition-0: 10 offsets .*--until file:PATH"):
        fixed.ends()
    fixed.broker.groups["old"][BETWEEN] = CommittedOffset(30, "")
    assert fixed.ends() == {ORDERS: 70}


def test_live_workers_without_a_group_are_stopped_first() -> None:
    with pytest.raises(BackfillRefused, match=r"are alive: old-fixed-0 at eu-1; .* stop them"):
        _Fixed(_Working).ends()
    fixed = _Fixed()
    fixed.broker.members["old"] = ("'kafka-streams' on eu-2",)
    with pytest.raises(BackfillRefused, match="are alive: 'kafka-streams' on eu-2"):
        fixed.ends()


def test_an_application_without_offsets_is_unknown() -> None:
    with pytest.raises(
        BackfillRefused, match="odl has committed no offsets yet, or there is no such application"
    ):
        _Fixed().ends("odl")


def test_a_group_whose_topics_are_lost_or_hidden_is_no_fixed_assignment() -> None:
    """Its members may be alive, unseen."""
    fixed = _Fixed()
    fixed.broker.groups["old"][ORDERS] = _committed(task_epoch=3)
    with pytest.raises(BackfillRefused, match=r"topics old-group-inbox, old-group-state do not"):
        fixed.ends()
    fixed.broker.create_topic("old-group-inbox", 1)
    with pytest.raises(BackfillRefused, match=r"topic old-group-state does not.*group recover"):
        fixed.ends()
