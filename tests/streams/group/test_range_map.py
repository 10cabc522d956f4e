"""Committed positions of key ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import APP, beat
from tidewheel.rebalance.inspect.describe import fold_log
from tidewheel.rebalance.model import (
    HASH_END,
    WHOLE,
    Shard,
    TaskId,
    TaskPhase,
    TopicPartition,
)
from tidewheel.rebalance.protocol.records import TaskRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.range_map import progress_of, range_map, topic_readers
from tidewheel.streams.group.topics import ReceivedMessage
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.key_ranges import RANGES_MAX
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

ORDERS_3 = TopicPartition("orders", 3)


def _progress(*ranges: tuple[int, int], transactional_id: str = f"{APP}-a-0") -> Progress:
    return Progress(
        task_epoch=1,
        transactional_id=transactional_id,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector(tuple(first for first, _ in ranges), tuple(offset for _, offset in ranges)),
    )


@given(
    first_hashes=st.sets(st.integers(1, HASH_END - 1), max_size=RANGES_MAX - 1),
    offsets=st.lists(st.integers(0, 1 << 26), min_size=RANGES_MAX, max_size=RANGES_MAX),
)
def test_K2_the_map_tiles_all_hashes(first_hashes: set[int], offsets: list[int]) -> None:
    said = _progress(*zip(sorted({0, *first_hashes}), offsets, strict=False))
    committed = {ORDERS_3: CommittedOffset(said.committed_offset, said.encode())}
    (shown,) = range_map({WHOLE: progress_of(APP, committed)}, {"orders": 2})
    assert (shown.task, shown.topic, shown.partition) == ("2_3", "orders", 3)
    assert {len(text) for each in shown.ranges for text in (each.first, each.last)} == {8}
    begins = [int(each.first, 16) for each in shown.ranges]
    ends = [int(each.last, 16) + 1 for each in shown.ranges]
    assert [*begins, HASH_END] == [0, *ends]
    assert min(each.ahead for each in shown.ranges) == 0
    assert [each.offset for each in shown.ranges] == list(said.vector.offsets)
    assert {each.offset - each.ahead for each in shown.ranges} == {shown.committed}


@pytest.mark.parametrize(
    "metadata",
    ["", "AgAAAAAAAAPo", _progress((0, 7), transactional_id="other-a-0").encode()],
    ids=["none", "kafka-streams", "another-application"],
)
def test_commits_of_other_applications_are_not_ranges(metadata: str) -> None:
    assert progress_of(APP, {ORDERS_3: CommittedOffset(7, metadata)}) == {}


def test_ranges_are_sorted_by_task_with_unknown_tasks_last() -> None:
    topics = (("orders", 10), ("orders", 2), ("new", 0), ("counts", 0))
    progress = {TopicPartition(*each): _progress((0, 5)) for each in topics}
    shown = range_map({WHOLE: progress}, {"orders": 0, "counts": 1})
    assert [each.task for each in shown] == ["0_2", "0_10", "1_0", None]
    assert shown[-1].topic == "new"


def test_the_ranges_of_shards_come_from_their_own_commits() -> None:
    shards = Shard.all_of(2)
    orders = TopicPartition("orders", 0)
    progress = {
        WHOLE: {orders: _progress((0, 5)), TopicPartition("counts", 0): _progress((0, 6))},
        Shard(3, 4): {orders: _progress((3 << 30, 1))},
        **{shard: {orders: _progress((shard.first_hash, 7 + shard.number))} for shard in shards},
    }
    tasks = [TaskId(0, 0, shard) for shard in shards]
    # Whole commits are the floor of the shards; another number of shards is an earlier one.
    shown = range_map(progress, {"orders": 0, "counts": 1}, {"0_0/1of2": {1 << 31: 30}}, tasks)
    assert [(each.task, each.committed) for each in shown] == [
        ("0_0/0of2", 7),
        ("0_0/1of2", 8),
        ("1_0", 6),
    ]
    assert [shown[1].ranges[0].first, shown[1].ranges[0].busy] == ["80000000", 30]


def test_readers_are_derived_from_figures_and_from_the_log() -> None:
    book = two_members(("0_0", "1_3"))
    assert topic_readers(fold_log(book.entries).group, InboxFold()) == {}
    book.write(
        TaskRecord(
            leader_epoch=book.leader_epoch,
            task="0_0",
            phase=TaskPhase.RELEASED,
            task_epoch=1,
            input={"payments-0": 17},
        )
    )
    inbox = InboxFold()
    active = TaskStatus(
        task="1_3", role="active", epoch=1, state="RUNNING", input={"my-orders-3": 5}
    )
    copy = TaskStatus(task="2_3", role="learner", epoch=1, state="RESTORING", input={"x-3": 5})
    junk = TaskStatus(task="junk", role="active", epoch=1, state="RUNNING", input={"x-3": 5})
    inbox.add(ReceivedMessage(book.now_ms, beat("a", active, copy, junk)))
    group = fold_log(book.entries).group
    assert topic_readers(group, inbox) == {"my-orders": 1, "payments": 0}
