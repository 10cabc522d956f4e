"""Group program: new tasks, lost partitions, refused members (N6, N8, H26)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.round_table import APP, RoundTable, Worker, join, stateful
from tidewheel.rebalance.inspect.describe import (
    GroupPhase,
    LogEntry,
    describe_group,
    fold_log,
    phase_of,
)
from tidewheel.rebalance.leader.compatibility import is_parked, join_refusal, updated_program
from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.group import Group, replay, snapshot
from tidewheel.rebalance.protocol.messages import SeenTask
from tidewheel.rebalance.protocol.orders import TasksSeen, WorkerClosed, WorkerLeaves
from tidewheel.rebalance.protocol.records import GroupRecord, MemberRecord, TaskRow
from tidewheel.streams.group.recovery import GroupProgram, RecoveryFacts, recovered_log

CHANGELOG = f"{APP}-counts-changelog"


def report_partitions(table: RoundTable, worker: Worker, count: int, **partitions: int) -> None:
    topics = {name.replace("_", "-"): many for name, many in partitions.items()}
    worker.member.report(TasksSeen(tasks=stateful(count), partitions=topics), table.now_ms)
    table.run(500)


def test_N8_new_partitions_become_tasks() -> None:
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(1_000)
    before = table.owners()
    report_partitions(table, a, 6, orders=6)
    assert set(table.owners()) == {f"0_{n}" for n in range(6)}
    assert set(table.phases().values()) == {"RUNNING"}
    assert {task: owner for task, owner in table.owners().items() if task in before} == before
    assert table.group.about.partitions == {"orders": 6}


def test_N8_a_joiner_that_sees_more_partitions_adds_their_tasks() -> None:
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    table.start("b", tasks=stateful(5), partitions={"orders": 5})
    table.run(1_000)
    assert "0_4" in table.owners()


def test_old_metadata_of_one_member_removes_no_task() -> None:
    table = RoundTable()
    table.start("a", tasks=stateful(6), partitions={"orders": 6})
    table.run(1_000)
    table.start("b", tasks=stateful(4), partitions={"orders": 4})
    table.run(1_000)
    assert not table.group.about.held
    assert len(table.group.tasks) == 6


def test_H26_lost_partitions_hold_the_group_until_they_return() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(1_000)
    report_partitions(table, a, 4, orders=3)
    assert table.group.about.held.startswith(
        "partitions: topic orders has 3, the group has worked with 4"
    )
    table.start("b", partitions={"orders": 3})
    table.run(10_000)
    assert set(table.owners().values()) == {"a-1"}
    assert len(a.running) == 4
    report_partitions(table, a, 4, orders=4)
    table.run(8_000)
    assert not table.group.about.held
    assert set(table.owners().values()) == {"a-1", "b-1"}


def test_H26_a_changelog_with_too_few_partitions_holds_the_group() -> None:
    table = RoundTable()
    a = table.start("a", partitions={"orders": 4, CHANGELOG: 4})
    table.run(1_000)
    report_partitions(table, a, 6, **{"orders": 6, CHANGELOG: 4})
    assert f"changelog {CHANGELOG} has 4" in table.group.about.held
    assert len(table.group.tasks) == 4


def test_a_hold_set_for_another_reason_is_not_lifted() -> None:
    table = RoundTable()
    table.start("a")
    table.start("b")
    table.run(1_000)
    held = msgspec.structs.replace(table.group.about, held="SAFE_HOLD: the topic is another")
    table._append(held)
    table.lead("p1")
    table.run(2_000)
    table.kill("b-1")
    table.run(2_000)
    assert table.fenced == ["b-1"]
    assert sorted(table.phases().values()) == ["RELEASED", "RELEASED", "RUNNING", "RUNNING"]
    assert table.group.about.held.startswith("SAFE_HOLD")


def test_tasks_are_added_when_their_topics_appear() -> None:
    table = RoundTable()
    a = table.start("a", tasks=(), partitions={})
    table.run(1_000)
    assert not table.owners()
    report_partitions(table, a, 2, orders=2)
    assert set(table.owners()) == {"0_0", "0_1"}


def member(name: str, **given: object) -> MemberRecord:
    plain = MemberRecord(leader_epoch=1, member=name, incarnation=f"{name}-1", phase="ACTIVE")
    return msgspec.structs.replace(plain, **given)


@pytest.mark.parametrize(
    ("own", "others", "fits"),
    [
        ((1, 1), (1, 2), True),
        ((1, 2), (2, 3), True),
        ((1, 1), (2, 2), False),
        ((3, 4), (1, 2), False),
    ],
)
def test_N14_version_ranges_have_to_meet(
    own: tuple[int, int], others: tuple[int, int], fits: bool
) -> None:
    group = Group(members={"b-1": member("b", protocol=others)})
    found = join_refusal(join("a", protocol=own), group)
    assert (found is None) == fits
    if found is not None:
        assert found.code == "INCOMPATIBLE_VERSION"


def test_a_restarted_member_may_join_with_another_topology() -> None:
    group = Group(members={"a-1": member("a", topology_hash="t")})
    assert join_refusal(join("a", 2, topology_hash="u"), group) is None


def test_a_member_is_not_parked_by_its_own_former_epoch() -> None:
    about = GroupRecord(leader_epoch=1, topology_epoch=1)
    group = Group(about=about, members={"a-1": member("a", topology_epoch=1)})
    assert not is_parked(2, group, "a")
    assert is_parked(2, group, "b")
    assert not is_parked(1, group, "b")


def test_two_topologies_of_one_epoch_are_refused_even_if_parked() -> None:
    group = Group(
        members={
            "a-1": member("a"),
            "b-1": member("b", phase="PARKED", topology_epoch=2, topology_hash="u"),
        }
    )
    found = join_refusal(join("c", topology_epoch=2, topology_hash="v"), group)
    assert found is not None
    assert found.code == "INCOMPATIBLE_TOPOLOGY"


def test_seen_tasks_keep_their_order() -> None:
    table = RoundTable()
    table.start("a", tasks=tuple(SeenTask(task=f"0_{n}") for n in (10, 9, 1)), partitions={})
    table.run(1_000)
    assert list(map(str, table.group.tasks)) == ["0_1", "0_9", "0_10"]


def test_N12_tasks_that_no_member_sees_are_removed() -> None:
    table = RoundTable()
    a, b = table.start("a"), table.start("b")
    table.run(20_000)
    report_partitions(table, a, 2, orders=2)
    assert len(table.group.tasks) == 4
    report_partitions(table, b, 2, orders=2)
    table.run(2_000)
    # `orders` was not deleted, only shrunk: an operator must decide.
    assert table.group.about.held
    assert len(table.group.tasks) == 4

    report_partitions(table, a, 2, other=2)
    assert len(table.group.tasks) == 4
    report_partitions(table, b, 2, other=2)
    table.run(20_000)
    assert not table.group.about.held
    assert table.group.about.partitions == {"other": 2}
    assert list(map(str, table.group.tasks)) == ["0_0", "0_1"]
    assert table.phases() == {
        "0_0": "RUNNING",
        "0_1": "RUNNING",
        "0_2": "RELEASED",
        "0_3": "RELEASED",
    }
    assert set(a.running) | set(b.running) == {"0_0", "0_1"}
    assert not table.group.states[TaskId(0, 3)].input
    assert phase_of(table.group) is GroupPhase.RUNNING
    assert "0_3" not in describe_group(table.group)

    before = table.group.states[TaskId(0, 3)].task_epoch
    report_partitions(table, a, 4, other=4)
    table.run(20_000)
    assert set(table.phases().values()) == {"RUNNING"}
    assert table.group.states[TaskId(0, 3)].task_epoch == before + 1


def test_N12_tasks_missing_at_the_start_are_not_granted() -> None:
    table = RoundTable()
    a = table.start("a", partitions={"x": 2, "y": 4})
    table.run(10_000)
    a.member.report(WorkerLeaves(), table.now_ms)
    table.run(1_000)
    a.member.report(WorkerClosed(), table.now_ms)
    table.run(1_000)
    assert table.group.states[TaskId(0, 3)].input
    table.lead("p1")
    table.start("a", 2, tasks=stateful(2), partitions={"x": 2})
    table.run(10_000)
    assert table.owners() == {"0_0": "a-2", "0_1": "a-2", "0_2": "", "0_3": ""}
    assert not table.group.states[TaskId(0, 3)].input
    assert phase_of(table.group) is GroupPhase.RUNNING


def test_N12_the_last_topic_of_a_pattern_may_be_deleted() -> None:
    table = RoundTable()
    a = table.start("a")
    table.run(10_000)
    report_partitions(table, a, 0)
    table.run(2_000)
    assert not table.group.tasks
    assert not a.running
    assert phase_of(table.group) is GroupPhase.RUNNING
    assert not fold_log(LogEntry(n, n, each) for n, each in enumerate(table.log)).group.about.held


def test_N12_a_new_leader_removes_no_task_before_every_member_has_reported() -> None:
    table = RoundTable()
    a, b = table.start("a"), table.start("b")
    table.run(20_000)
    report_partitions(table, b, 2, other=2)
    table.lead("p1")
    table.run(10_000)
    assert len(table.group.tasks) == 4
    report_partitions(table, a, 2, other=2)
    table.run(10_000)
    assert len(table.group.tasks) == 2


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["h", "other"])), min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
    st.integers(0, 6),
)
def test_N12_a_task_is_removed_only_when_all_members_of_the_topology_lack_it(
    sights: list[tuple[int, str]], unheard: set[int], known: int
) -> None:
    members = {f"m{n}-1": member(f"m{n}", topology_hash=each) for n, (_, each) in enumerate(sights)}
    rows = {
        each.task: TaskRow(stateful=True, changelogs=each.changelogs) for each in stateful(known)
    }
    about = GroupRecord(leader_epoch=1, topology_hash="h", tasks=rows, partitions={"t": known})
    joins = [
        join(
            f"m{n}",
            topology_hash=each,
            tasks=stateful(count),
            partitions={"t": count} if count else {},
        )
        for n, (count, each) in enumerate(sights)
        if n not in unheard
    ]
    found = updated_program(Group(leader_epoch=1, about=about, members=members), joins)
    seen = {each.task for given in joins if given.topology_hash == "h" for each in given.tasks}
    doubt = any(each == "h" and n in unheard for n, (_, each) in enumerate(sights))
    if found.held or doubt:
        assert found.tasks.keys() >= rows.keys()
    elif any(each == "h" for _, each in sights):
        assert found.tasks.keys() == seen


def _set_up_again() -> Group:
    return replay(
        recovered_log(
            RecoveryFacts(
                application_id=APP,
                tasks={TaskId(0, n): TaskShape(stateful=True) for n in range(4)},
                inputs={},
                committed={},
                partitions={"orders": 4},
                program=GroupProgram(topology_hash=join("a").topology_hash, assignor="sticky"),
            ),
            7,
            {},
        )
    )


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"topology_hash": "another"}, "INCOMPATIBLE_TOPOLOGY"),
        ({"topology_epoch": -1}, "INCOMPATIBLE_TOPOLOGY"),
        ({"assignor": "round_robin"}, "INCOMPATIBLE_ASSIGNOR"),
        ({"protocol": (7, 9)}, "INCOMPATIBLE_VERSION"),
    ],
)
def test_invariant_17_a_recovered_group_waits_for_its_topology(
    other: dict[str, Any], code: str
) -> None:
    """Its own members wait and come later: the first stranger is refused (H24)."""
    group = _set_up_again()
    assert join_refusal(join("a"), group) is None
    assert join_refusal(join("a", topology_epoch=1, topology_hash="later"), group) is None
    found = join_refusal(join("b", **other), group)
    assert found is not None
    assert found.code == code
    assert "tidewheel group recover" in found.reason


def test_a_recovered_group_waits_only_for_the_first_member_of_its_topology() -> None:
    table = RoundTable()
    for record in snapshot(_set_up_again(), 1):
        table._append(record)
    table.lead("p1")
    stranger = table.start("b", topology_hash="another")
    table.run(500)
    assert not table.group.live()
    assert stranger.ended is not None
    a = table.start("a")
    table.run(1_000)
    assert set(table.owners().values()) == {"a-1"}
    assert not table.group.about.pinned
    a.member.report(WorkerLeaves(rejoin=False, drain_ms=0), table.now_ms)
    table.run(1_000)
    table.start("c", topology_hash="another")
    table.run(1_000)
    assert set(table.owners().values()) == {"c-1"}
