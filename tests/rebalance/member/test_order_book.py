"""Orders derived from the group log."""

from tidewheel.rebalance.member.order_book import OrderBook
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.orders import AnyOrder, DropCopy, KeepCopy, ReleaseTask, RunTask
from tidewheel.rebalance.protocol.records import Copy, LeaderClaim, StepRecord, TaskRecord

MINE = "a-1"


def task(phase: str, epoch: int, owner: str | None = MINE, name: str = "0_1") -> TaskRecord:
    return TaskRecord(
        leader_epoch=1,
        task=name,
        phase=phase,
        task_epoch=epoch,
        owner=owner,
        input={"t-1": 7},
        changelog_end={"c-1": 9},
    )


def step(
    learners: dict[str, int] | None = None, standbys: dict[str, int] | None = None
) -> StepRecord:
    return StepRecord(
        leader_epoch=1,
        group_epoch=1,
        step_epoch=9,
        learners={
            name: Copy(incarnation=MINE, learn_epoch=at) for name, at in (learners or {}).items()
        },
        standbys={
            name: (Copy(incarnation=MINE, learn_epoch=at),) for name, at in (standbys or {}).items()
        },
    )


def group(*records: TaskRecord | StepRecord) -> Group:
    return replay([LeaderClaim(leader_epoch=1, leader="p0"), *records])


def orders(*groups: Group) -> list[AnyOrder]:
    """Return the orders for the last of these successive groups."""
    book = OrderBook(MINE)
    given: list[AnyOrder] = []
    for each in groups:
        given = list(book.orders(each))
    return given


RUN = RunTask(task="0_1", task_epoch=3, input={"t-1": 7}, changelog_end={"c-1": 9})


def test_an_owned_task_runs_with_the_positions_of_its_grant() -> None:
    assert orders(group(task("RUNNING", 3), task("RUNNING", 2, "b-1", "0_2"))) == [RUN]


def test_no_order_is_sent_twice() -> None:
    there = group(task("RUNNING", 3), step({"0_2": 4}))
    assert orders(there, group(task("RUNNING", 3), step({"0_2": 4}))) == []


def test_releases_are_ordered_before_starts() -> None:
    now = group(task("REVOKING", 3), task("RUNNING", 2, MINE, "0_3"), step({"0_2": 4}))
    assert [type(order) for order in orders(now)] == [ReleaseTask, RunTask, KeepCopy]


def test_a_promoted_copy_is_not_dropped() -> None:
    before = group(task("RUNNING", 2, "b-1"), step({"0_1": 4}))
    assert orders(before, group(task("RUNNING", 3))) == [RUN]


def test_a_grant_may_be_read_before_its_step() -> None:
    before = group(task("RUNNING", 2, "b-1"), step({"0_1": 4}))
    between = group(task("RUNNING", 3), step({"0_1": 4}))
    assert orders(before, between) == [RUN]
    assert orders(before, between, group(task("RUNNING", 3))) == []


def test_an_unwanted_copy_is_dropped() -> None:
    before = group(step({"0_2": 4}))
    assert orders(before, group(step())) == [DropCopy(task="0_2")]
    assert orders(before, group(step()), group(step())) == []


def test_a_learner_that_becomes_a_standby_keeps_its_state() -> None:
    before = group(step(learners={"0_2": 4}))
    after = group(step(standbys={"0_2": 4}))
    assert orders(before, after) == [KeepCopy(task="0_2", role="standby", learn_epoch=4)]


def test_a_copy_under_a_new_epoch_is_ordered_again() -> None:
    again = orders(group(step({"0_2": 4})), group(step({"0_2": 6})))
    assert again == [KeepCopy(task="0_2", role="learner", learn_epoch=6)]


def test_a_release_names_the_copy_to_keep() -> None:
    now = group(task("REVOKING", 3), step(standbys={"0_1": 8}))
    assert orders(now) == [ReleaseTask(task="0_1", task_epoch=3, keep=8)]
    kept = group(task("RELEASED", 3, None), step(standbys={"0_1": 8}))
    assert orders(now, kept) == [KeepCopy(task="0_1", role="standby", learn_epoch=8)]


def test_an_owner_being_fenced_gets_no_orders() -> None:
    assert orders(group(task("RUNNING", 3)), group(task("FENCE_WAIT", 3))) == []
