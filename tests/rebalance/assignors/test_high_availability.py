"""High-availability assignor beyond the golden cases."""

import time

import pytest

from tests.rebalance.assignors.requests import asked, loads, tasks
from tidewheel.rebalance.assignors.builtin import BUILT_IN, resolve
from tidewheel.rebalance.assignors.high_availability import HighAvailabilityAssignor
from tidewheel.rebalance.assignors.movement import Freshness, Plan, move_standbys
from tidewheel.rebalance.assignors.task_assignor import AssignmentMember, validated
from tidewheel.rebalance.model import TaskId

T0, T1, T2, T3 = (TaskId(0, partition) for partition in range(4))
HA = HighAvailabilityAssignor()


def test_the_plan_does_not_depend_on_current_owners() -> None:
    request = asked([AssignmentMember(name=name) for name in "ab"], tasks(4))
    running = asked(
        [AssignmentMember(name="a", owned=frozenset({T0, T1, T2, T3})), AssignmentMember(name="b")],
        tasks(4),
    )
    assert HA.assign(request) == HA.assign(running)
    assert HA.assign(request).owners == {T0: "a", T1: "b", T2: "a", T3: "b"}


def test_members_with_more_threads_get_more_tasks() -> None:
    request = asked([AssignmentMember(name="a"), AssignmentMember(name="b", threads=3)], tasks(8))
    assert loads(request, HA.assign(request).owners, stateful=True) == {"a": 2, "b": 6}


def test_stateless_tasks_fill_up_the_members_that_run_fewest() -> None:
    request = asked([AssignmentMember(name=name) for name in "abc"], tasks(1, 5), 2)
    owners = HA.assign(request).owners
    assert sorted(owners.values()) == ["a", "a", "b", "b", "c", "c"]


def test_round_robin_continues_with_stateless_tasks_after_the_last_stateful_one() -> None:
    request = asked(
        [AssignmentMember(name="a", threads=2), AssignmentMember(name="b")], tasks(2, 4)
    )
    owners = resolve("round_robin").assign(request).owners
    assert [owners[task] for task in sorted(owners)] == ["a", "b", "a", "a", "b", "a"]


def plan(standby: dict[str, set[TaskId]], warmups: int) -> Plan:
    return Plan(
        threads=dict.fromkeys(standby, 1),
        active={name: set() for name in standby},
        standby=standby,
        warmups_left=warmups,
    )


def test_a_fresh_copy_is_kept_while_the_planned_copy_warms_up() -> None:
    fresh = Freshness({T0: {"b": 5}, T1: {"b": 5}}, {T0: frozenset("b"), T1: frozenset("b")})
    moved = plan({"a": {T0, T1}, "b": set()}, warmups=1)
    assert move_standbys(moved, fresh, {T0, T1}) == 2
    assert moved.standby == {"a": {T0}, "b": {T0, T1}}


def test_tasks_with_the_fewest_caught_up_members_come_first() -> None:
    fresh = Freshness(
        {T0: {"b": 5, "c": 5}, T1: {"b": 5}}, {T0: frozenset("bc"), T1: frozenset("b")}
    )
    moved = plan({"a": {T0, T1}, "b": set(), "c": set()}, warmups=1)
    assert move_standbys(moved, fresh, {T0, T1}) == 2
    assert moved.standby == {"a": {T1}, "b": {T1}, "c": {T0}}


def test_a_copy_that_was_planned_to_warm_up_is_not_moved_again() -> None:
    moved = plan({"a": {T0}, "b": set()}, warmups=1)
    moved.warmups.add(("a", T0))
    assert move_standbys(moved, Freshness({T0: {"b": 5}}, {T0: frozenset("b")}), {T0}) == 0
    assert moved.standby == {"a": {T0}, "b": set()}


def test_without_a_caught_up_member_the_copy_moves_to_the_freshest() -> None:
    known = Freshness({T0: {"a": 90, "b": 50, "c": 70}}, {T0: frozenset()})
    moved = plan({"a": {T0}, "b": set(), "c": set()}, warmups=0)
    assert move_standbys(moved, known, {T0}) == 1
    assert moved.standby == {"a": set(), "b": {T0}, "c": set()}
    assert move_standbys(moved, known, {T0}) == 0


def test_a_copy_stays_if_every_fresher_member_owns_the_task() -> None:
    known = Freshness({T0: {"b": 0}}, {T0: frozenset("b")})
    moved = plan({"a": {T0}, "b": set()}, warmups=1)
    moved.active["b"].add(T0)
    assert move_standbys(moved, known, {T0}) == 0
    assert moved.standby == {"a": {T0}, "b": set()}


@pytest.mark.parametrize("assignor", BUILT_IN)
def test_a_thousand_tasks_and_two_hundred_members_take_a_fraction_of_a_second(
    assignor: str,
) -> None:
    names = [f"m{index:03}" for index in range(200)]
    members = [
        AssignmentMember(name=name, host=f"h{index // 2}", rack=f"r{index % 3}")
        for index, name in enumerate(names)
    ]
    request = asked(members, tasks(500, 500), 1)
    spent: list[float] = []
    for _ in range(3):
        start = time.process_time()
        answer = resolve(assignor).assign(request)
        spent.append(time.process_time() - start)
        validated(request, answer)
    assert min(spent) < 0.2
