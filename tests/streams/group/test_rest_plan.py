"""Decisions of `tidewheel group rest`, from what it has read."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from tests.rebalance.leader.group_logs import LogBook
from tidewheel.rebalance.leader.resting import REST_HOLD
from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.group.rest_plan import (
    RestFacts,
    RestStep,
    cut_of,
    plan_rest,
    reasons_against_rest,
)
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

ORDERS: Final = TopicPartition("orders", 0)
BETWEEN: Final = TopicPartition("shop-by-user-repartition", 0)
FIRST, SECOND = TaskId(0, 0), TaskId(1, 0)
EPOCH: Final = 9


def committed(vector: Vector, shards: int = 1) -> CommittedOffset:
    progress = Progress(
        task_epoch=1,
        transactional_id="shop-a",
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=vector,
        shards=shards,
    )
    return CommittedOffset(progress.committed_offset, progress.encode())


def at(offset: int) -> CommittedOffset:
    return committed(Vector.at(offset))


def group(*, held: str = "", rest: Rest | None = None) -> Group:
    book = LogBook().leader("p1").member("a")
    book.about(str(FIRST), str(SECOND), held=held, partitions={ORDERS.topic: 1, BETWEEN.topic: 1})
    book.grant(str(FIRST), "a").grant(str(SECOND), "a")
    found = book.group
    return msgspec.structs.replace(found, about=msgspec.structs.replace(found.about, rest=rest))


def confirmed(rest: int = EPOCH, /, **changed: Any) -> dict[str, Mapping[TaskId, TaskStatus]]:
    """Return statuses of both tasks; `changed` are fields of the second one's."""
    rows = {
        task: TaskStatus(task=str(task), role="active", epoch=1, state="RUNNING", rest=rest)
        for task in (FIRST, SECOND)
    }
    rows[SECOND] = msgspec.structs.replace(rows[SECOND], **changed)
    return {"a-1": rows}


def facts(
    rest: Rest | None = Rest(epoch=EPOCH),  # noqa: B008 - immutable
    **changed: Any,
) -> RestFacts:
    """Return facts of a group with one live member, whose work is done."""
    done: dict[str, Any] = {
        "application_id": "shop",
        "group": group(rest=rest),
        "live_members": ("a",),
        "statuses": confirmed(),
        "committed": {ORDERS: at(70), BETWEEN: at(40)},
        "ends": {BETWEEN: 40},
    }
    return RestFacts(**done | changed)


#: Two key ranges of one partition, and two shards.
RANGES: Final = {ORDERS: committed(Vector((0, 1 << 31), (70, 75))), BETWEEN: at(40)}
LOWER, UPPER = Shard.all_of(2)


def halves(lower: int, upper: int) -> dict[TopicPartition, CommittedOffset]:
    offsets = {
        ShardInput.of(ORDERS, shard): committed(
            Vector.at(offset, shard.first_hash, shard.end_hash), 2
        )
        for shard, offset in ((LOWER, lower), (UPPER, upper))
    }
    floor = committed(Vector.at(min(lower, upper)), 2)
    return {ORDERS: floor, BETWEEN: at(40), **offsets}


@pytest.mark.parametrize(
    ("given", "step", "reason"),
    [
        (facts(None), RestStep.ORDER, ""),
        (facts(), RestStep.HOLD, ""),
        (facts(group=group(held=f"{REST_HOLD}all done")), RestStep.DONE, ""),
        (facts(group=group(held="partitions: lost")), RestStep.WAIT, "partitions: lost"),
        (facts(statuses=confirmed(8)), RestStep.WAIT, "task 0_0 of h-a (a) has not come to rest"),
        (facts(statuses=confirmed(rest=0)), RestStep.WAIT, "task 1_0 of h-a (a)"),
        (facts(statuses=confirmed(epoch=2)), RestStep.WAIT, "task 1_0"),
        (facts(statuses={}), RestStep.WAIT, "task 0_0"),
        (facts(ends={BETWEEN: 41}), RestStep.WAIT, "shop-by-user-repartition-0: 1 offset"),
        (facts(committed={ORDERS: at(70)}), RestStep.WAIT, "no offset is committed"),
        (facts(committed=RANGES), RestStep.LEVEL, "between offsets 70 and 75"),
        (facts(Rest(epoch=EPOCH, until={"orders-0": 75}), committed=RANGES), RestStep.WAIT, "70 and 75"),
        (facts(committed=halves(70, 74)), RestStep.LEVEL, "between offsets 70 and 74"),
        (facts(committed=halves(74, 74)), RestStep.HOLD, ""),
        (facts(live_members=(), statuses={}), RestStep.HOLD, ""),
        (facts(live_members=(), ends={BETWEEN: 41}), RestStep.WAIT, "no member is running"),
        (facts(live_members=(), committed=RANGES, ends={}), RestStep.LEVEL, "70 and 75"),
    ],
)  # fmt: skip
def test_the_next_step(given: RestFacts, step: RestStep, reason: str) -> None:
    plan = plan_rest(given)
    assert plan.step is step
    assert reason in "; ".join(plan.reasons)
    assert bool(plan.reasons) == bool(reason)


def test_slow_shards_and_key_ranges_read_up_to_the_fastest() -> None:
    assert plan_rest(facts(committed=RANGES)).until == {ORDERS: 75}
    assert plan_rest(facts(committed=halves(70, 74))).until == {ORDERS: 74}


def test_a_task_without_a_running_owner_has_not_come_to_rest() -> None:
    book = LogBook().leader("p1").member("a").about(str(FIRST), partitions={ORDERS.topic: 1})
    found = msgspec.structs.replace(
        book.group, about=msgspec.structs.replace(book.group.about, rest=Rest(epoch=EPOCH))
    )
    plan = plan_rest(facts(group=found, committed={ORDERS: at(70)}))
    assert plan.reasons == ("task 0_0 has no owner at the moment",)


def test_an_application_is_at_rest_if_it_is_held_or_stopped_and_has_processed_all() -> None:
    held = group(held=f"{REST_HOLD}all done")
    assert reasons_against_rest(facts(group=held)) == ()
    assert reasons_against_rest(facts(None, live_members=())) == ()
    assert "workers are alive: a" in reasons_against_rest(facts(None))[0]
    for reason, given in {
        "1 offset": facts(group=held, ends={BETWEEN: 41}),
        "no offset": facts(group=held, committed={ORDERS: at(70)}),
        "between offsets 70 and 75": facts(group=held, committed=RANGES),
        "1 of 2 shards": facts(
            group=held,
            committed={
                each: offset
                for each, offset in halves(70, 70).items()
                if each != ShardInput.of(ORDERS, UPPER)
            },
        ),
    }.items():
        (found,) = reasons_against_rest(given)
        assert reason in found


def test_the_cut_has_external_inputs_only() -> None:
    assert cut_of(facts()) == {ORDERS: 70}
    assert cut_of(facts(committed=halves(74, 74))) == {ORDERS: 74}


def test_without_a_group_log_committed_offsets_name_the_inputs() -> None:
    foreign = {ORDERS: CommittedOffset(70, ""), BETWEEN: CommittedOffset(39, "AgAAAAAAAAPo")}
    alone = facts(group=Group(), live_members=(), statuses={}, committed=foreign)
    assert reasons_against_rest(alone) == (f"{BETWEEN}: 1 offset is not processed",)
    assert cut_of(alone) == {ORDERS: 70}
