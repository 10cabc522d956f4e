"""Task moves: learner gate, settling, pacing, failures (L1-L3, N1-N3, N11)."""

from itertools import pairwise
from typing import Any

import pytest

from tests.rebalance.leader.round_table import (
    APP,
    RoundTable,
    Worker,
    join,
    keys_of,
    stateful,
    with_settings,
)
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.messages import AnyMessage, NotReady, Ready, SeenTask
from tidewheel.rebalance.protocol.orders import (
    DropCopy,
    KeepCopy,
    ReleaseTask,
    RunTask,
    TaskBroken,
    TaskReleased,
    TasksSeen,
)
from tidewheel.rebalance.protocol.records import StepRecord, TaskRecord


def scaled_out(
    table: RoundTable, *, catches_up: bool = True, **given: Any
) -> tuple[Worker, Worker]:
    """Start `a` with all tasks, then `b`; return both when b has learners."""
    a = table.start("a", **given)
    table.run(1_000)
    b = table.start("b", **given)
    b.catches_up = catches_up
    table.run(300)
    return a, b


def grants(table: RoundTable, incarnation: str) -> list[TaskRecord]:
    return [
        record
        for record in table.log
        if isinstance(record, TaskRecord)
        and record.event == "GRANT"
        and record.owner == incarnation
    ]


def steps(table: RoundTable) -> list[StepRecord]:
    return [record for record in table.log if isinstance(record, StepRecord)]


def ready(worker: Worker, of: str, **given: object) -> Ready:
    report = worker.ready(of)
    fields = {
        "app": APP,
        "member": "b",
        "incarnation": "b-1",
        "task": of,
        "learn_epoch": report.learn_epoch,
        "store_uuid": report.store_uuid,
        "positions": report.positions,
        "ends": report.ends,
    }
    return Ready(**(fields | given))  # type: ignore[arg-type]  # as above


def test_L3_the_old_owner_runs_every_task_until_the_learner_is_ready() -> None:
    table = RoundTable()
    a, b = scaled_out(table)
    assert len(a.running) == 4
    assert len(b.copies) == 2
    table.run(7_000)
    assert len(a.running) == len(b.running) == 2
    for record in grants(table, "b-1"):
        assert table.events(record.task) == ["GRANT", "REVOKE", "RELEASED", "GRANT"]


def test_L1_a_learner_is_promoted_in_place() -> None:
    """The worker keeps its copy; the grant has the old owner's end (H14)."""
    table = RoundTable()
    _, b = scaled_out(table)
    table.run(7_000)
    for task in b.running:
        about = [order for order in b.told if getattr(order, "task", "") == task]
        assert [type(order) for order in about] == [KeepCopy, RunTask]
        run = about[-1]
        assert isinstance(run, RunTask)
        assert run.input == {"orders-0": 7}
        assert run.changelog_end == dict.fromkeys(keys_of(task), 1_000)
    assert not any(isinstance(order, DropCopy) for order in b.told)


def test_N1_uninvolved_tasks_get_no_orders() -> None:
    table = RoundTable()
    a, _ = scaled_out(table)
    table.run(7_000)
    stayed = [order for order in a.told if getattr(order, "task", "") in a.running]
    assert [type(order) for order in stayed] == [RunTask, RunTask]
    released = [order for order in a.told if isinstance(order, ReleaseTask)]
    assert len(released) == 2


def test_N2_the_grant_and_the_end_of_the_learner_are_one_transaction() -> None:
    table = RoundTable()
    a, b = scaled_out(table)
    a.mute.update(b.copies)
    moving = sorted(b.copies)
    table.run(7_000)
    assert [table.phases()[task] for task in moving] == ["REVOKING", "REVOKING"]
    released = TaskReleased(
        task=moving[0],
        task_epoch=1,
        input={"orders-0": 3},
        changelog_end={keys_of(moving[0])[0]: 1_000},
    )
    a.member.report(released, table.now_ms)
    table._members_turn()
    decision = table.coordinator.decide(table.now_ms)
    kinds = [getattr(record, "event", type(record).__name__) for record in decision.records]
    assert kinds == ["RELEASED", "GRANT", "StepRecord"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"learn_epoch": 1},
        {"learn_epoch": 99},
        {"incarnation": "b-0"},
        {"incarnation": "a-1", "member": "a"},
        {"task": "0_9"},
        {"task": "nonsense"},
    ],
)
def test_H13_a_ready_message_for_another_copy_promotes_no_task(wrong: dict[str, object]) -> None:
    table = RoundTable()
    _, b = scaled_out(table, catches_up=False)
    table.run(8_000)
    assert len(b.copies) == 2
    table.receive(ready(b, min(b.copies), **wrong))
    table.run(1_000)
    assert not grants(table, "b-1")
    table.receive(ready(b, min(b.copies)))
    table.run(100)
    assert len(grants(table, "b-1")) == 1


def test_H13_a_copy_too_far_behind_the_ends_read_by_the_leader_is_not_promoted() -> None:
    table = RoundTable(with_settings(acceptable_recovery_lag=100))
    _, b = scaled_out(table, catches_up=False)
    table.run(8_000)
    (task, *_) = sorted(b.copies)
    b.member.report(b.ready(task, behind=101), table.now_ms)
    table.run(1_000)
    assert not grants(table, "b-1")
    b.member.report(b.ready(task, behind=100), table.now_ms)
    table.run(1_000)
    assert [record.task for record in grants(table, "b-1")] == [task]


def test_H13_ends_requested_before_the_announcement_do_not_confirm_it() -> None:
    table = RoundTable()
    _, b = scaled_out(table, catches_up=False)
    table.run(8_000)
    (task, *_) = sorted(b.copies)
    key = keys_of(task)[0]
    asked_ms = table.now_ms
    table.now_ms += 10
    table.coordinator.observe(ready(b, task), table.now_ms)
    table.coordinator.ends_read({key: 1_000}, asked_ms, table.now_ms)
    decision = table.coordinator.decide(table.now_ms)
    assert not decision.records
    assert decision.read_ends == (key,)
    table.coordinator.ends_read({key: 1_000}, table.now_ms, table.now_ms)
    decision = table.coordinator.decide(table.now_ms)
    assert [getattr(record, "event", "") for record in decision.records] == ["REVOKE"]


def test_H13_readiness_is_withdrawn() -> None:
    table = RoundTable(with_settings(settling_ms=6_000))
    _, b = scaled_out(table)
    table.run(3_000)
    b.catches_up = False
    for task in list(b.copies):
        said: AnyMessage = NotReady(
            app=APP,
            member="b",
            incarnation="b-1",
            task=task,
            learn_epoch=b.copies[task],
            reason="fell behind",
        )
        table.receive(said)
        b.member._repeated.clear()
    table.run(5_000)
    assert not grants(table, "b-1")


def test_H13_another_store_under_the_same_learn_epoch_is_checked_again() -> None:
    table = RoundTable(with_settings(settling_ms=6_000, acceptable_recovery_lag=100))
    _, b = scaled_out(table)
    table.run(3_000)
    (task, *_) = sorted(b.copies)
    other = ready(b, task, store_uuid="new", positions={keys_of(task)[0]: 10})
    b.member._repeated.clear()
    for _ in range(8):
        table.receive(other)
        table.run(500)
    assert not [record for record in grants(table, "b-1") if record.task == task]


def test_N11_an_unsettled_member_gets_no_task_of_a_live_member() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(7_000)
    for number in range(12):
        table.start(f"e{number}")
        table.run(4_000)
        table.kill(f"e{number}-1")
        table.run(200)
    assert len(a.running) == 4
    assert all(table.events(task) == ["GRANT"] for task in table.owners())


def four_tasks(*, has_state: bool) -> tuple[SeenTask, ...]:
    tasks = join("a").tasks
    return tasks if has_state else tuple(SeenTask(task=each.task) for each in tasks)


@pytest.mark.parametrize("has_state", [True, False])
def test_N11_a_member_that_vanished_silently_has_not_settled(has_state: bool) -> None:
    table = RoundTable()
    tasks = four_tasks(has_state=has_state)
    a = table.start("a", tasks=tasks)
    table.run(7_000)
    for number in range(4):
        table.start(f"e{number}", tasks=tasks)
        table.run(4_900)
        table.kill(f"e{number}-1", seen=False)
        table.run(4_000)
        assert f"e{number}-1" not in table.group.live()
    assert len(a.running) == 4
    assert all(table.events(task) == ["GRANT"] for task in table.owners())


@pytest.mark.parametrize("has_state", [True, False])
def test_N11_a_member_that_vanished_before_a_new_leader_has_not_settled(has_state: bool) -> None:
    table = RoundTable()
    tasks = four_tasks(has_state=has_state)
    a = table.start("a", tasks=tasks)
    table.run(7_000)
    table.start("e", tasks=tasks)
    table.run(1_000)
    table.kill("e-1", seen=False)
    table.lead("p1")
    table.run(500)
    assert "e-1" in table.group.live()
    table.run(3_500)
    assert "e-1" not in table.group.live()
    assert len(a.running) == 4
    assert all("REVOKE" not in table.events(task) for task in table.owners())


def test_N11_a_member_that_vanishes_under_a_new_leader_has_not_settled() -> None:
    table = RoundTable()
    tasks = four_tasks(has_state=False)
    a = table.start("a", tasks=tasks)
    table.run(7_000)
    table.start("e", tasks=tasks)
    table.run(1_000)
    table.lead("p1")
    table.run(3_900)
    table.kill("e-1", seen=False)
    table.run(4_000)
    assert "e-1" not in table.group.live()
    assert len(a.running) == 4
    assert all("REVOKE" not in table.events(task) for task in table.owners())


def test_N11_an_owner_before_a_new_leader_stays_settled() -> None:
    table = RoundTable()
    tasks = tuple(SeenTask(task=f"0_{each}") for each in range(6))
    a = table.start("a", tasks=tasks)
    b = table.start("b", tasks=tasks)
    table.run(1_000)
    assert (len(a.running), len(b.running)) == (3, 3)
    left = tuple(SeenTask(task=each) for each in [*a.running, min(b.running)])
    table.lead("p1")
    for worker in (a, b):
        worker.member.report(TasksSeen(tasks=left, partitions={"orders": 6}), table.now_ms)
    table.run(1_500)
    assert (len(a.running), len(set(b.running) & {seen.task for seen in left})) == (2, 2)


def test_N11_tasks_without_an_owner_go_to_unsettled_members_too() -> None:
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    table.start("b")
    table.run(500)
    table.kill("a-1")
    table.run(300)
    assert set(table.owners().values()) == {"b-1"}


def test_stateless_tasks_move_without_a_learner_but_only_after_settling() -> None:
    table = RoundTable()
    tasks = tuple(each for each in join("a").tasks)
    bare = tuple(type(each)(task=each.task) for each in tasks)
    _, b = scaled_out(table, tasks=bare)
    table.run(5_000)
    assert not b.running
    assert not b.copies
    table.run(1_000)
    assert len(b.running) == 2


def test_learners_are_bounded_in_the_whole_group() -> None:
    table = RoundTable(with_settings(max_warmup_replicas=2))
    scaled_out(table, tasks=stateful(12), catches_up=False)
    table.run(8_000)
    assert all(len(step.learners) <= 2 for step in steps(table))
    assert steps(table)[-1].parked


def test_N3_moves_keep_the_configured_interval() -> None:
    table = RoundTable(with_settings(task_move_interval_ms=2_000))
    granted: dict[str, int] = {}

    def watch(record: object) -> None:
        if isinstance(record, TaskRecord) and record.event == "GRANT" and record.task_epoch > 1:
            granted[record.task] = table.now_ms

    table.watchers.append(watch)
    scaled_out(table, tasks=stateful(8))
    table.run(20_000)
    times = sorted(granted.values())
    assert len(times) == 4
    assert all(later - earlier >= 2_000 for earlier, later in pairwise(times))


def test_N3_a_slow_log_does_not_shorten_the_interval_between_grants() -> None:
    table = RoundTable(with_settings(task_move_interval_ms=2_000))
    granted: list[int] = []

    def planned(record: object) -> bool:
        return isinstance(record, TaskRecord) and record.event == "GRANT" and record.task_epoch > 1

    def watch(record: object) -> None:
        if planned(record):
            granted.append(table.now_ms)

    table.watchers.append(watch)
    # The first is slow, later ones are not.
    table.write_ms = lambda records: 1_500 if not granted and any(map(planned, records)) else 0
    scaled_out(table, tasks=stateful(8))
    table.run(20_000)
    assert len(granted) == 4
    assert all(later - earlier >= 2_000 for earlier, later in pairwise(granted))


@pytest.mark.parametrize("new_leader", [False, True])
def test_N3_a_task_removed_during_its_move_delays_no_other_task(
    new_leader: bool,
) -> None:
    table = RoundTable(with_settings(task_move_interval_ms=2_000))
    specs = stateful(8)
    a = table.start("a", tasks=specs)
    table.run(1_000)
    b = table.start("b", tasks=specs)
    a.mute = {spec.task for spec in specs}
    revoking: list[str] = []
    while not revoking:
        table.run(50)
        revoking = [task for task, phase in table.phases().items() if phase == "REVOKING"]
        assert table.now_ms < 60_000, table.phases()
    (gone,) = revoking
    left = tuple(spec for spec in specs if spec.task != gone)
    for worker in (a, b):
        worker.member.report(TasksSeen(tasks=left, partitions={"orders": 8}), table.now_ms)
    table.run(1_000)
    epoch = table.group.states[TaskId.parse(gone)].task_epoch
    a.mute = set()
    a.obey(ReleaseTask(task=gone, task_epoch=epoch, keep=0), table.now_ms)
    table.run(2_000)
    if new_leader:
        table.lead("p1")
    table.run(30_000)
    assert len(b.running) == sum(name == "b" for name in table.group.target.owners.values()) >= 3


@pytest.mark.parametrize("new_leader", [False, True])
def test_N3_a_task_that_waits_for_a_static_member_delays_no_other_task(new_leader: bool) -> None:
    table = RoundTable(with_settings(task_move_interval_ms=2_000))
    specs = stateful(9)
    a = table.start("a", tasks=specs)
    table.run(1_000)
    b = table.start("b", tasks=specs, static=True, rejoin_timeout_ms=60_000)
    c = table.start("c", tasks=specs)
    table.run(1_000)
    a.mute = {str(task) for task, name in table.group.target.owners.items() if name == "b"}
    revoking: list[str] = []
    while not revoking:
        table.run(50)
        revoking = [task for task in a.mute if table.phases()[task] == "REVOKING"]
        assert table.now_ms < 60_000, table.phases()
    (left,) = revoking
    table.kill("b-1")
    table.run(500)
    a.mute = set()
    epoch = table.group.states[TaskId.parse(left)].task_epoch
    a.obey(ReleaseTask(task=left, task_epoch=epoch, keep=0), table.now_ms)
    table.run(1_000)
    assert table.phases()[left] == "RELEASED"
    if new_leader:
        table.lead("p1")
    granted = len(c.running)
    table.run(20_000)
    assert table.phases()[left] == "RELEASED"
    assert len(c.running) == 3 > granted
    assert not b.running


def test_L5_a_move_is_dropped_with_its_reason() -> None:
    table = RoundTable()
    a, _ = scaled_out(table, catches_up=False)
    table.kill("b-1")
    table.run(8_000)
    assert not steps(table)[-1].learners
    assert len(a.running) == 4
    assert all(table.events(task) == ["GRANT"] for task in table.owners())


def test_standbys_are_reused_as_learners() -> None:
    table = RoundTable(with_settings(num_standby_replicas=1, max_warmup_replicas=1))
    for name in "abc":
        table.start(name)
    table.run(10_000)
    table.workers["a-1"].member.died("killed", table.now_ms)
    before = {str(task): copies for task, copies in table.group.step.standbys.items()}
    lost = [task for task, owner in table.owners().items() if owner == "a-1"]
    assert lost
    table.run()
    for task in lost:
        records = [each for each in table.log if isinstance(each, TaskRecord) and each.task == task]
        (released,) = [index for index, each in enumerate(records) if each.source == "fence"]
        assert records[released + 1].owner in {copy.incarnation for copy in before[task]}
        assert records[released + 1].event == "GRANT"


def test_the_old_owner_keeps_its_state_open_as_a_standby() -> None:
    table = RoundTable(with_settings(num_standby_replicas=1))
    a, b = scaled_out(table)
    table.run(8_000)
    assert len(b.running) == 2
    for task in b.running:
        (release,) = [o for o in a.told if isinstance(o, ReleaseTask) and o.task == task]
        assert release.keep > 0
        assert a.copies[task] == release.keep
        assert [copy.incarnation for copy in table.group.step.standbys[TaskId.parse(task)]] == [
            "a-1"
        ]


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failed_learner_is_started_again_after_a_pause() -> None:
    table = RoundTable()
    a, b = scaled_out(table, catches_up=False)
    (task, *_) = sorted(b.copies)
    epochs = [b.copies[task]]
    for pause_ms in (1_000, 2_000):
        broken = TaskBroken(task=task, epoch=b.copies.pop(task), role="learner", detail="no disk")
        b.member.report(broken, table.now_ms)
        table.run(pause_ms - 100)
        assert task not in b.copies
        table.run(300)
        epochs.append(b.copies[task])
    assert epochs == sorted(set(epochs))
    assert len(a.running) == 4


def test_a_task_that_cannot_be_opened_moves_to_another_member() -> None:
    table = RoundTable()
    table.start("a")
    b = table.start("b")
    table.run(1_000)
    task = min(b.running)
    b.member.report(
        TaskBroken(task=task, epoch=b.running[task], role="active", detail="damaged"), table.now_ms
    )
    table.run(500)
    assert table.owners()[task] == "a-1"
    assert table.events(task) == ["GRANT", "REVOKE", "RELEASED", "GRANT"]


def test_a_task_no_member_can_open_is_granted_again_after_a_pause() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(1_000)
    task = min(a.running)
    a.member.report(
        TaskBroken(task=task, epoch=a.running[task], role="active", detail="damaged"), table.now_ms
    )
    table.run(500)
    assert table.phases()[task] == "RELEASED"
    table.run(1_000)
    assert table.owners()[task] == "a-1"
    assert len(a.running) == 4
