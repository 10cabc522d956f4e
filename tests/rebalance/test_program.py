"""What the group runs: tasks that appear, partitions that shrink, who fits (N6, N8, H26)."""

import msgspec
import pytest

from rebalance.group import Group
from rebalance.messages import SeenTask
from rebalance.orders import TasksSeen
from rebalance.program import is_parked, refusal
from rebalance.records import GroupRecord, MemberRecord
from tests.rebalance.round_table import APP, RoundTable, Worker, join, stateful

CHANGELOG = f"{APP}-counts-changelog"


def sees(table: RoundTable, worker: Worker, count: int, **partitions: int) -> None:
    """Let a worker see so many tasks, and topics with so many partitions."""
    tasks = tuple((each.task, each.stateful, each.changelogs) for each in stateful(count))
    topics = {name.replace("_", "-"): many for name, many in partitions.items()}
    worker.member.report(TasksSeen(tasks=tasks, partitions=topics), table.now_ms)
    table.run(500)


def test_N8_new_partitions_become_tasks() -> None:
    """One member's sight is enough; everything that ran goes on."""
    table = RoundTable()
    a = table.start("a")
    table.start("b")
    table.run(1_000)
    before = table.owners()
    sees(table, a, 6, orders=6)
    assert set(table.owners()) == {f"0_{n}" for n in range(6)}
    assert set(table.phases().values()) == {"RUNNING"}
    assert {task: owner for task, owner in table.owners().items() if task in before} == before
    assert table.group.about.partitions == {"orders": 6}


def test_N8_a_joiner_that_sees_more_brings_it() -> None:
    """The same by its join."""
    table = RoundTable()
    table.start("a")
    table.run(1_000)
    table.start("b", tasks=stateful(5), partitions={"orders": 5})
    table.run(1_000)
    assert "0_4" in table.owners()


def test_old_metadata_of_one_member_takes_nothing_away() -> None:
    """Fewer partitions than the group knows are a problem only if nobody sees them."""
    table = RoundTable()
    table.start("a", tasks=stateful(6), partitions={"orders": 6})
    table.run(1_000)
    table.start("b", tasks=stateful(4), partitions={"orders": 4})
    table.run(1_000)
    assert not table.group.about.held
    assert len(table.group.tasks) == 6


def test_H26_partitions_that_vanish_hold_the_group_until_they_are_back() -> None:
    """Nothing moves, what runs goes on; the reason is in the log."""
    table = RoundTable()
    a = table.start("a")
    table.run(1_000)
    sees(table, a, 4, orders=3)
    assert table.group.about.held.startswith(
        "partitions: topic orders has 3, the group has worked with 4"
    )
    table.start("b", partitions={"orders": 3})
    table.run(10_000)
    assert set(table.owners().values()) == {"a-1"}
    assert len(a.running) == 4
    sees(table, a, 4, orders=4)
    table.run(8_000)
    assert not table.group.about.held
    assert set(table.owners().values()) == {"a-1", "b-1"}


def test_H26_a_changelog_with_too_few_partitions_holds_the_group() -> None:
    """The input has grown; state is kept by key and does not move by itself."""
    table = RoundTable()
    a = table.start("a", partitions={"orders": 4, CHANGELOG: 4})
    table.run(1_000)
    sees(table, a, 6, **{"orders": 6, CHANGELOG: 4})
    assert f"changelog {CHANGELOG} has 4" in table.group.about.held
    assert len(table.group.tasks) == 4


def test_a_hold_that_somebody_else_set_is_not_lifted_here() -> None:
    """SAFE_HOLD ends by `group recover` alone; the dead are fenced all the same."""
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


def test_tasks_that_nobody_knows_the_topics_of_yet_come_later() -> None:
    """A topology whose topics do not exist has no tasks; they come with the topics."""
    table = RoundTable()
    a = table.start("a", tasks=(), partitions={})
    table.run(1_000)
    assert not table.owners()
    sees(table, a, 2, orders=2)
    assert set(table.owners()) == {"0_0", "0_1"}


def member(name: str, **given: object) -> MemberRecord:
    """Return a live member."""
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
    """Neighbours understand each other."""
    group = Group(members={"b-1": member("b", protocol=others)})
    found = refusal(join("a", protocol=own), group)
    assert (found is None) == fits
    if found is not None:
        assert found.code == "INCOMPATIBLE_VERSION"


def test_who_replaces_itself_is_not_held_against_its_former_self() -> None:
    """A single member restarts with another program: nobody else is there to disagree."""
    group = Group(members={"a-1": member("a", topology_hash="t")})
    assert refusal(join("a", 2, topology_hash="u"), group) is None


def test_a_parked_member_is_parked_by_others_only() -> None:
    """Its own former incarnation does not park it."""
    about = GroupRecord(leader_epoch=1, topology_epoch=1)
    group = Group(about=about, members={"a-1": member("a", topology_epoch=1)})
    assert not is_parked(2, group, "a")
    assert is_parked(2, group, "b")
    assert not is_parked(1, group, "b")


def test_two_programs_of_one_epoch_are_refused_even_while_both_would_be_parked() -> None:
    """One hash per epoch."""
    group = Group(
        members={
            "a-1": member("a"),
            "b-1": member("b", phase="PARKED", topology_epoch=2, topology_hash="u"),
        }
    )
    found = refusal(join("c", topology_epoch=2, topology_hash="v"), group)
    assert found is not None
    assert found.code == "INCOMPATIBLE_TOPOLOGY"


def test_seen_tasks_keep_their_order() -> None:
    """Tasks are sorted as numbers, not as text."""
    table = RoundTable()
    table.start("a", tasks=tuple(SeenTask(task=f"0_{n}") for n in (10, 9, 1)), partitions={})
    table.run(1_000)
    assert list(map(str, table.group.tasks)) == ["0_1", "0_9", "0_10"]
