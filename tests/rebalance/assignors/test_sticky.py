"""Sticky assignor: minimal moves, none without a gain (L5, invariant 20)."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.assignors.requests import (
    STATEFUL,
    STATELESS,
    asked,
    loads,
    requests,
    tasks,
    with_answer,
)
from tidewheel.rebalance.assignors.sticky import StickyAssignor
from tidewheel.rebalance.assignors.task_assignor import AssignmentMember, AssignmentRequest
from tidewheel.rebalance.model import TaskId

ASSIGN = StickyAssignor().assign
T0, T1, T2, T3 = (TaskId(0, partition) for partition in range(4))


def balanced(request: AssignmentRequest) -> AssignmentRequest:
    return with_answer(request, ASSIGN(request))


def member(name: str, *owned: TaskId, copies: tuple[TaskId, ...] = ()) -> AssignmentMember:
    return AssignmentMember(name=name, owned=frozenset(owned), copies=frozenset(copies))


def sorted_loads(request: AssignmentRequest, owners: Mapping[TaskId, str]) -> list[list[float]]:
    threads = {member.name: member.threads for member in request.members}
    return [
        sorted(
            (
                count / threads[name]
                for name, count in loads(request, owners, stateful=kind).items()
            ),
            reverse=True,
        )
        for kind in (True, False)
    ]


@given(requests())
def test_L5_a_target_that_reduces_no_load_moves_no_task(request: AssignmentRequest) -> None:
    owners = {task: each.name for each in request.members for task in each.owned}
    for task in request.tasks:
        owners.setdefault(task, request.members[0].name)
    running = replace(
        request,
        members=tuple(
            replace(each, owned=frozenset(t for t in owners if owners[t] == each.name))
            for each in request.members
        ),
    )
    answer = ASSIGN(running).owners
    kinds = zip(
        (True, False), sorted_loads(running, owners), sorted_loads(running, answer), strict=True
    )
    for stateful, before, after in kinds:
        moved = [
            t for t in owners if running.tasks[t].stateful is stateful and answer[t] != owners[t]
        ]
        assert after < before if moved else after == before


@given(requests(threads=1), st.booleans())
def test_invariant_20_adding_a_member_moves_its_share_at_most(
    request: AssignmentRequest, first: bool
) -> None:
    before = balanced(request)
    newcomer = AssignmentMember(name="a" if first else "z")
    after = ASSIGN(replace(before, members=(*before.members, newcomer))).owners
    moved = {task for task, owner in ASSIGN(before).owners.items() if after[task] != owner}
    assert {after[task] for task in moved} <= {newcomer.name}
    assert len(moved) <= ceil(len(request.tasks) / (len(before.members) + 1))


@given(requests(), st.data())
def test_invariant_20_removing_a_member_moves_only_its_tasks(
    request: AssignmentRequest, data: st.DataObject
) -> None:
    before = balanced(request)
    if len(before.members) == 1:
        return
    gone = data.draw(st.sampled_from(before.members))
    left = tuple(each for each in before.members if each != gone)
    after = ASSIGN(replace(before, members=left)).owners
    for task, owner in ASSIGN(before).owners.items():
        assert after[task] == owner or owner == gone.name


@given(st.integers(1, 6), st.integers(1, 12), st.integers(2, 6), st.booleans())
def test_joining_members_get_tasks_of_all_sub_topologies(
    subtopologies: int, partitions: int, members: int, stateful: bool
) -> None:
    shape = STATEFUL if stateful else STATELESS
    shapes = {
        TaskId(subtopology, partition): shape
        for subtopology in range(subtopologies)
        for partition in range(partitions)
    }
    request = balanced(asked([member("m0")], shapes))
    for number in range(1, members):
        request = balanced(replace(request, members=(*request.members, member(f"m{number}"))))
        for subtopology in range(subtopologies):
            counts = [
                sum(task.subtopology == subtopology for task in each.owned)
                for each in request.members
            ]
            assert max(counts) - min(counts) <= 2


@given(requests(), st.data())
def test_S2_a_returning_member_gets_its_tasks_back(
    request: AssignmentRequest, data: st.DataObject
) -> None:
    before = balanced(request)
    back = data.draw(st.sampled_from(before.members))
    others = tuple(each for each in before.members if each != back)
    assert ASSIGN(replace(before, members=(*others, back))) == ASSIGN(before)


def test_a_task_without_an_owner_moves_to_a_copy() -> None:
    request = asked([member("a", T1, copies=(T0,)), member("b")], tasks(2))
    assert ASSIGN(request).owners == {T0: "b", T1: "a"}
    request = asked([member("a", copies=(T0, T1)), member("b")], tasks(2))
    assert ASSIGN(request).owners == {T0: "a", T1: "b"}


def test_members_with_fresher_state_come_first() -> None:
    behind = replace(member("a", copies=(T0,)), lags={T0: 10**6})
    ready = replace(member("b", copies=(T0,)), lags={T0: 10})
    on_disk = AssignmentMember(name="c", on_disk=frozenset({T0, T1}))
    assert ASSIGN(asked([behind, ready], tasks(1))).owners == {T0: "b"}
    assert ASSIGN(asked([on_disk, behind], tasks(1))).owners == {T0: "a"}
    assert ASSIGN(asked([member("a"), on_disk], tasks(1))).owners == {T0: "c"}
    fresh_on_disk = replace(on_disk, lags={T0: 10})
    assert ASSIGN(asked([behind, fresh_on_disk], tasks(1))).owners == {T0: "c"}
    stale_on_disk = replace(on_disk, lags={T0: 10**5})
    assert ASSIGN(asked([behind, stale_on_disk], tasks(1))).owners == {T0: "a"}


def test_learners_in_progress_are_kept() -> None:
    learning = asked([member("a", T0, T1, T2, T3), member("b", copies=(T0, T3))], tasks(4))
    assert ASSIGN(learning).owners == {T0: "b", T1: "a", T2: "a", T3: "b"}


def test_stateful_and_stateless_tasks_are_counted_apart() -> None:
    request = asked([member("a"), member("b")], tasks(3, 3))
    answer = ASSIGN(request).owners
    assert loads(request, answer, stateful=True) == {"a": 2, "b": 1}
    assert loads(request, answer, stateful=False) == {"a": 1, "b": 2}


def test_the_member_with_fewer_stateless_tasks_keeps_the_extra_stateful_task() -> None:
    stateless = [TaskId(1, partition) for partition in range(4)]
    request = asked(
        [member("a", T0, T1, *stateless[:2]), member("b", T2, *stateless[2:]), member("c", T3)],
        tasks(4, 4),
    )
    answer = ASSIGN(request).owners
    assert loads(request, answer, stateful=True) == {"a": 2, "b": 1, "c": 1}
    assert loads(request, answer, stateful=False) == {"a": 1, "b": 2, "c": 1}


def test_load_is_counted_per_thread() -> None:
    request = asked([AssignmentMember(name="a", threads=3), member("b")], tasks(8))
    assert loads(request, ASSIGN(request).owners, stateful=True) == {"a": 6, "b": 2}
