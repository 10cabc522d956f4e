"""Group description: text, phase, start times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.group_logs import LogBook, T, scale_out, two_members
from tests.rebalance.leader.round_table import RoundTable, Worker, stateful, with_settings
from tidewheel.rebalance.inspect.describe import (
    GroupPhase,
    LogEntry,
    LogFold,
    Since,
    describe_group,
    duration_text,
    fold_log,
    task_phase_text,
)
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.leader.resting import order_rest
from tidewheel.rebalance.model import MemberPhase, TaskId
from tidewheel.rebalance.protocol.group import replay, snapshot
from tidewheel.rebalance.protocol.orders import WorkerClosed, WorkerLeaves
from tidewheel.rebalance.protocol.records import LeaderClaim, TargetRecord, TaskRecord

MOVED = TaskId(0, 1)


def _phases(book: LogBook) -> list[GroupPhase]:
    fold = LogFold()
    seen: list[GroupPhase] = []
    for entry in book.entries:
        fold.add(entry)
        if fold.phase is not (seen[-1] if seen else None):
            seen.append(fold.phase)
    return seen


def test_a_group_reads_as_text() -> None:
    book = two_members().member("c")
    book.target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "b"}, "c joined")
    book.step({"0_1": ("c-1", 7)}, {"0_0": ("b-1", 8)}, parked=("0_3",))
    assert describe_group(book.group) == (
        "group SYNC (RECONCILING): led by p1 (epoch 1), target 2, step 2\n"
        "  runs topology 0 (1f2e3d4c), protocol 1, assignor sticky\n"
        "members\n"
        "  a (a-1) ACTIVE on h-a threads 1\n"
        "    active 0_0 0_2\n"
        "  b (b-1) ACTIVE on h-b threads 1\n"
        "    active 0_1 0_3\n"
        "    standby 0_0\n"
        "  c (c-1) ACTIVE on h-c threads 1\n"
        "    learner 0_1\n"
        "tasks\n"
        "  0_0 RUNNING at a epoch 1, standby at b learn epoch 8\n"
        "  0_1 WARMING at b epoch 1, target c, learner at c learn epoch 7\n"
        "  0_2 RUNNING at a epoch 1\n"
        "  0_3 RUNNING at b epoch 1, parked"
    )


def test_the_same_group_is_the_same_text_also_after_a_snapshot() -> None:
    book = scale_out()
    before = describe_group(book.group)
    book.leader("p1")
    assert describe_group(book.group) == before.replace("(epoch 1)", "(epoch 2)")


def test_the_description_of_a_held_group_has_the_reason() -> None:
    book = two_members().about("0_0", held="topic orders lost partitions")
    assert fold_log(book.entries).phase is GroupPhase.NOT_READY
    assert "held: topic orders lost partitions" in describe_group(book.group)


def test_the_description_of_a_group_that_comes_to_rest_says_so() -> None:
    group = two_members().group
    group = replay(order_rest(group, {}, Claimant(leader="rest-1")), group)
    assert "comes to rest, ordered in epoch 2" in describe_group(group)


def test_S5_phases_of_a_scale_out() -> None:
    assert _phases(scale_out()) == [
        GroupPhase.EMPTY,
        GroupPhase.ASSIGNING,
        GroupPhase.RECONCILING,
        GroupPhase.RUNNING,
        GroupPhase.ASSIGNING,
        GroupPhase.RECONCILING,
        GroupPhase.RUNNING,
    ]


def test_S5_phases_have_the_documented_names() -> None:
    """Names of KIP-345, then of KIP-848."""
    assert [phase.value for phase in GroupPhase][2:] == [
        "IN_REBALANCE (ASSIGNING)",
        "SYNC (RECONCILING)",
        "RUNNING",
    ]


def test_S5_a_restart_of_a_static_member_makes_no_target() -> None:
    book = two_members()
    book.member("b", MemberPhase.GONE, rejoin_ms=60_000).released("0_1").released("0_3")
    assert fold_log(book.entries).phase is GroupPhase.RECONCILING
    book.member("b", MemberPhase.GONE).member("b", life=2).grant("0_1", "b", life=2)
    book.grant("0_3", "b", life=2)
    assert fold_log(book.entries).phase is GroupPhase.RUNNING
    assert GroupPhase.ASSIGNING not in _phases(book)[3:5]


def test_a_new_leader_changes_no_phase() -> None:
    assert _phases(two_members().leader("p2")) == _phases(two_members())


@pytest.mark.parametrize(
    "disturb",
    [
        lambda book: book.member("b", MemberPhase.FENCING),
        lambda book: book.member("b", MemberPhase.LEAVING),
        lambda book: book.revoke("0_1", "b", "a"),
        lambda book: book.step({"0_1": ("a-1", 3)}),
        lambda book: book.target(
            {"0_0": "a", "0_1": "b", "0_2": "a", "0_3": "b"}, standbys={"0_0": ("b",)}
        ),
    ],
)
def test_a_group_is_running_only_at_its_target(disturb: object) -> None:
    assert callable(disturb)
    book = two_members()
    disturb(book)
    assert fold_log(book.entries).phase not in {GroupPhase.RUNNING, GroupPhase.EMPTY}


def test_the_fold_records_the_time_of_each_phase() -> None:
    book = two_members()
    fold = fold_log(book.entries)
    assert fold.task_since[MOVED] == Since(at_ms=T + 310)
    assert fold.member_since["b-1"] == Since(at_ms=T + 10)
    planted_ms = book.now_ms + 500
    book.after(500).member("c").target({"0_1": "c"}).step({"0_1": ("c-1", 7)})
    book.after(500).step({"0_1": ("c-1", 7), "0_0": ("c-1", 8)})
    fold = fold_log(book.entries)
    assert fold.copy_since[MOVED, "c-1", 7] == Since(at_ms=planted_ms)
    assert fold.copy_since[TaskId(0, 0), "c-1", 8] == Since(at_ms=planted_ms + 500)
    assert task_phase_text(fold.group, MOVED) == "WARMING"


def test_times_from_a_snapshot_are_marked_as_lower_bounds() -> None:
    book = two_members().leader("p2")
    assert fold_log(book.entries).task_since[MOVED] == Since(at_ms=T + 310)
    last = [entry for entry in book.entries if entry.record.leader_epoch == book.leader_epoch]
    fold = fold_log(last)
    assert fold.group == book.group
    assert fold.task_since[MOVED] == Since(at_ms=book.now_ms, known=False)
    assert fold.phase is GroupPhase.RUNNING


def test_records_of_a_deposed_leader_do_not_count() -> None:
    book = two_members().leader("p2")
    fold = fold_log(book.entries)
    book.leader_epoch = 1
    assert not fold.add(book.after(10).revoke("0_1", "b").entries[-1])
    assert fold.task_since[MOVED] == Since(at_ms=T + 310)


@given(st.integers(0, 10**12))
def test_a_duration_keeps_its_size(milliseconds: int) -> None:
    sizes = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}
    words = duration_text(milliseconds).split()
    read = sum(
        float(number) * sizes[unit] for number, unit in zip(words[::2], words[1::2], strict=True)
    )
    smallest = 100 if "." in words[0] else sizes[words[-1]]
    assert read <= milliseconds + 0.001
    assert milliseconds - read < smallest + 0.001


def _leaves(table: RoundTable, worker: Worker) -> None:
    worker.member.report(WorkerLeaves(), table.now_ms)
    table.run(1_000)
    worker.member.report(WorkerClosed(), table.now_ms)
    table.run(1_000)


def _fold(table: RoundTable, leader_epoch: int = 0) -> LogFold:
    return fold_log(
        LogEntry(offset, offset, record)
        for offset, record in enumerate(table.log)
        if record.leader_epoch >= leader_epoch
    )


@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("new_leader", [False, True])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_S5_a_group_that_has_restarted_is_at_rest(
    standbys: int, new_leader: bool, names: str
) -> None:
    table = RoundTable(with_settings(num_standby_replicas=standbys))
    workers = [table.start(name) for name in names]
    table.run(20_000)
    for worker in workers:
        _leaves(table, worker)
    assert _fold(table).phase is GroupPhase.EMPTY
    if new_leader:
        table.lead("p1")
    for name in names:
        table.start(name, 2)
    table.run(20_000)
    assert set(table.phases().values()) == {"RUNNING"}
    assert _fold(table).phase is GroupPhase.RUNNING
    assert _fold(table, table.group.leader_epoch).phase is GroupPhase.RUNNING


def test_S5_a_group_without_tasks_is_at_rest() -> None:
    table = RoundTable()
    table.start("a", tasks=())
    table.run(10_000)
    assert _fold(table).phase is GroupPhase.RUNNING
    table.start("b", tasks=stateful(2))
    table.coordinator._assigning.again_ms = table.now_ms + 5_000
    table.run(1_000)
    assert _fold(table).phase is GroupPhase.ASSIGNING
    table.run(10_000)
    assert _fold(table).phase is GroupPhase.RUNNING


def test_a_target_of_an_earlier_version_is_accepted() -> None:
    book = two_members()
    target = TargetRecord(leader_epoch=1, group_epoch=2, owners={}, basis="0123456789abcdef")
    assert fold_log(book.write(target).entries).phase is GroupPhase.RECONCILING


def test_members_that_left_are_forgotten_eventually() -> None:
    book = LogBook().leader("p1").member("a")
    for number in range(100):
        name = f"visitor-{number}"
        book.member(name).member(name, MemberPhase.GONE)
    assert fold_log(book.entries).member_since.keys() == {"a-1"}


def test_a_snapshot_without_members_sets_the_times_of_its_tasks() -> None:
    task = TaskRecord(leader_epoch=2, task="0_0", phase="RELEASED", task_epoch=1)
    group = replay([LeaderClaim(leader_epoch=2, leader="p", previous_epoch=1), task])
    claim = LeaderClaim(leader_epoch=3, leader="q", previous_epoch=2)
    records = [claim, *snapshot(group, 3)]
    fold = fold_log(LogEntry(offset, 5, record) for offset, record in enumerate(records))
    assert fold.task_since.keys() == {TaskId(0, 0)}
