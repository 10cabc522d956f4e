"""The cut between an old application and a new one."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.bulk.backfill.cut import Cut
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.group.rest_plan import RestFacts
from tidewheel.tasks.kafka.ports import CommittedOffset, TopicDescription
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)
TOPIC_ID = b"t" * 16


class _Admin:
    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        return {
            name: TopicDescription(name=name, topic_id=TOPIC_ID, partitions=1) for name in names
        }

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 99)


def _cut(*, topic_id: bytes = TOPIC_ID, takes_ends: bool = False) -> Cut:
    """Return the cut of an application that has committed offset 7 of `orders`."""
    progress = Progress(
        task_epoch=1,
        transactional_id="old-0",
        topic_id=topic_id,
        topology_hash=bytes(8),
        vector=Vector.at(7),
    )
    committed = {ORDERS: CommittedOffset(7, progress.encode())}
    facts = RestFacts(application_id="old", group=Group(), committed=committed)
    return Cut(facts=facts, admin=cast("Any", _Admin()), takes_ends=takes_ends)


def test_the_new_application_ends_where_the_old_one_has_committed() -> None:
    assert _cut().ends([ORDERS]) == {ORDERS: 7}


def test_a_new_topic_needs_consent() -> None:
    with pytest.raises(BackfillRefused, match="users"):
        _cut().ends([ORDERS, USERS])
    assert _cut(takes_ends=True).ends([ORDERS, USERS]) == {ORDERS: 7, USERS: 99}


def test_offsets_of_another_topic_of_this_name_do_not_count() -> None:
    with pytest.raises(BackfillRefused, match="orders was deleted"):
        _cut(topic_id=b"o" * 16).ends([ORDERS])


def test_a_cut_that_has_moved_is_refused() -> None:
    _cut().check({ORDERS: OffsetRange(first=0, end=7)})
    with pytest.raises(BackfillRefused, match="from 5 to 7"):
        _cut().check({ORDERS: OffsetRange(first=0, end=5)})
