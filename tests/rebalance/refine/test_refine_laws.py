"""Properties of every refiner step, written without the refiner's own helpers."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.refine.refining import (
    STATEFUL,
    STATELESS,
    learner,
    members,
    reversed_input,
    running,
    step,
)
from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.refine.refine import Refinement, refine
from tidewheel.rebalance.refine.refine_input import (
    CurrentCopy,
    CurrentMember,
    CurrentTask,
    Readiness,
    RefineInput,
)

NAMES = ("a", "b", "c", "d", "e")
#: Names in target or states without a live member.
GHOSTS = ("x", "y")

T = TypeVar("T")


class Choices:
    """Choices from the digits of one number: faster than one strategy each."""

    def __init__(self, number: int) -> None:
        self._number = number

    def of(self, options: Sequence[T]) -> T:
        """Return one option; the first when the number is used up."""
        self._number, index = divmod(self._number, len(options))
        return options[index]

    def some(self, options: Sequence[T]) -> list[T]:
        return [each for each in options if self.of([False, True])]


CHOICES = st.integers(0, 2**64 - 1).map(Choices)


def task_state(choices: Choices) -> CurrentTask:
    """Draw a task in any phase: copies off the owner, one per member, at most one learner."""
    phase = choices.of([*TaskPhase])
    owned = phase in (TaskPhase.RUNNING, TaskPhase.REVOKING)
    owner = choices.of(NAMES) if owned else None
    free = [name for name in NAMES if name != owner]
    learner = choices.of([None, *free])
    copies = tuple(
        CurrentCopy(
            member=name,
            role=TaskRole.LEARNER if name == learner else TaskRole.STANDBY,
            readiness=choices.of([*Readiness]),
        )
        for name in free
        if name == learner or choices.of([False, False, True])
    )
    closed = choices.some([name for name in free if name not in {copy.member for copy in copies}])
    return CurrentTask(
        phase=phase,
        owner=owner,
        next_member=choices.of([*free, *GHOSTS, None]) if phase == TaskPhase.REVOKING else None,
        owner_state=choices.of([*Readiness]),
        copies=copies,
        on_disk={name: choices.of([-1, 0, 10**6]) for name in closed},
    )


@st.composite
def inputs(draw: st.DrawFn) -> RefineInput:
    numbers = draw(st.lists(CHOICES, min_size=1, max_size=8))
    tasks = {
        TaskId(index % 2, index // 2): STATELESS if index % 2 else STATEFUL
        for index in range(len(numbers))
    }
    states: dict[TaskId, CurrentTask] = {}
    owners: dict[TaskId, str] = {}
    standbys: dict[TaskId, tuple[str, ...]] = {}
    for (task, shape), choices in zip(tasks.items(), numbers, strict=True):
        owners[task] = choices.of(NAMES + GHOSTS)
        state = task_state(choices)
        if not shape.stateful:
            state = msgspec.structs.replace(
                state, copies=(), on_disk={}, owner_state=Readiness.READY
            )
        else:
            wanted = choices.some([name for name in NAMES + GHOSTS if name != owners[task]])
            standbys[task] = tuple(wanted[:2])
        if choices.of([True, True, True, False]):
            states[task] = state
    choices = draw(CHOICES)
    members = tuple(
        CurrentMember(
            name=name,
            threads=choices.of([1, 2]),
            settled=choices.of([True, False]),
            leaving=choices.of([False, False, False, True]),
            expelled=choices.of([False] * 6 + [True]),
        )
        for name in choices.some(NAMES) or NAMES
    )
    learners = Counter(copy.role for state in states.values() for copy in state.copies)
    return RefineInput(
        tasks=tasks,
        owners=owners,
        standbys=standbys,
        members=members,
        states=states,
        waiting=choices.of([frozenset[str](), frozenset({"x"})]),
        max_warmup_replicas=max(choices.of([0, 1, 2, 3]), learners[TaskRole.LEARNER]),
    )


def current_owner(case: RefineInput, task: TaskId) -> str | None:
    owner = case.states.get(task, CurrentTask()).owner
    return owner if owner in {member.name for member in case.members} else None


def copies_of(answer: Refinement, task: TaskId) -> list[str]:
    learner = answer.learners.get(task)
    return ([] if learner is None else [learner]) + list(answer.standbys.get(task, ()))


@given(inputs())
def test_no_member_ever_has_two_copies_of_a_task(case: RefineInput) -> None:
    answer = refine(case)
    alive = {member.name for member in case.members}
    for task in case.tasks:
        copies = copies_of(answer, task)
        assert len(copies) == len(set(copies))
        assert current_owner(case, task) not in copies
        assert set(copies) <= alive
        assert answer.owners.get(task) in {*alive, None}
    assert {*answer.owners, *answer.learners, *answer.standbys} <= case.tasks.keys()


@given(inputs())
def test_a_running_task_moves_only_to_a_ready_copy(case: RefineInput) -> None:
    answer = refine(case)
    flags = {member.name: member for member in case.members}
    for task, state in case.states.items():
        owner = current_owner(case, task)
        if state.phase != TaskPhase.RUNNING or owner is None or flags[owner].expelled:
            continue
        now = answer.owners.get(task)
        assert now is not None
        if now == owner or not case.tasks[task].stateful or state.owner_state == Readiness.NOTHING:
            continue
        ready = {copy.member for copy in state.copies if copy.readiness == Readiness.READY}
        assert now in ready
        if state.owner_state == Readiness.READY:
            assert now == case.owners[task]


@given(inputs())
def test_N11_a_running_task_never_moves_to_an_unsettled_member(case: RefineInput) -> None:
    answer = refine(case)
    flags = {member.name: member for member in case.members}
    for task, state in case.states.items():
        owner, now = current_owner(case, task), answer.owners.get(task)
        if state.phase != TaskPhase.RUNNING or owner is None or now in (owner, None):
            continue
        going = flags[owner].leaving or flags[owner].expelled
        assert flags[now].settled or going or state.owner_state != Readiness.READY


@given(inputs())
def test_the_number_of_learners_stays_within_the_limit(case: RefineInput) -> None:
    leaving = any(member.leaving for member in case.members)
    answer = refine(case)
    assert len(answer.learners) <= max(case.max_warmup_replicas, 2 if leaving else 0)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_learners_beyond_the_limit_belong_to_leaving_members(
    moves: list[tuple[str, str, bool]], allowed: int
) -> None:
    """While `a` leaves, two may learn; tasks of staying `b` keep the configured limit.

    No usable place stays empty.
    """
    tasks = [TaskId(0, number) for number in range(len(moves))]
    leavers = {task for task, (owner, _, _) in zip(tasks, moves, strict=True) if owner == "a"}
    answer = step(
        {
            task: running(owner, *([learner(target)] if begun else []))
            for task, (owner, target, begun) in zip(tasks, moves, strict=True)
        },
        {task: target for task, (_, target, _) in zip(tasks, moves, strict=True)},
        present=(CurrentMember(name="a", leaving=True), *members("b c d")),
        warmups=allowed,
    )
    stayers = min(allowed, len(moves) - len(leavers))
    assert len(answer.learners.keys() - leavers) <= allowed
    assert len(answer.learners) == min(max(allowed, 2), len(leavers) + stayers)


@given(inputs())
def test_leaving_members_get_no_tasks_or_copies(case: RefineInput) -> None:
    going = {member.name for member in case.members if member.leaving or member.expelled}
    answer = refine(case)
    for task, owner in answer.owners.items():
        assert owner not in going or owner == current_owner(case, task)
    assert going.isdisjoint(answer.learners.values())
    for task, standbys in answer.standbys.items():
        had = {copy.member for copy in case.states.get(task, CurrentTask()).copies}
        assert going & set(standbys) <= had


@given(inputs())
def test_invariant_21_no_task_is_left_without_an_owner_while_its_target_owner_lives(
    case: RefineInput,
) -> None:
    able = {each.name for each in case.members if not (each.leaving or each.expelled)}
    answer = refine(case)
    for task, target in case.owners.items():
        if target in able:
            assert answer.owners.get(task) in able | {current_owner(case, task)}
            assert answer.owners.get(task) is not None


@given(inputs())
def test_L5_every_learner_serves_a_planned_move(case: RefineInput) -> None:
    answer = refine(case)
    for task, name in answer.learners.items():
        assert name in (case.owners[task], answer.owners.get(task))
        assert name != current_owner(case, task)


@given(inputs())
def test_an_intermediate_step_keeps_the_copy_it_will_promote(case: RefineInput) -> None:
    answer = refine(case)
    for task, owner in answer.owners.items():
        had = {copy.member for copy in case.states.get(task, CurrentTask()).copies}
        if owner in had and owner != current_owner(case, task):
            assert owner in copies_of(answer, task)


@given(inputs())
def test_every_move_that_waits_is_parked_or_warmed_up(case: RefineInput) -> None:
    answer = refine(case)
    for task, target in case.owners.items():
        now = answer.owners.get(task)
        if now == target:
            continue
        assert answer.reasons[task]
        on_its_way = case.states.get(task, CurrentTask()).phase == TaskPhase.REVOKING
        if case.tasks[task].stateful and not on_its_way:
            assert (task in answer.parked) != (target in copies_of(answer, task))


@given(inputs())
def test_the_order_of_the_input_does_not_matter(case: RefineInput) -> None:
    assert refine(case) == refine(reversed_input(case))


@given(inputs())
def test_a_group_at_its_target_does_not_change(case: RefineInput) -> None:
    alive = sorted(member.name for member in case.members)
    owners = {task: alive[index % len(alive)] for index, task in enumerate(sorted(case.tasks))}
    standbys = {
        task: tuple(name for name in alive if name != owners[task])[:2]
        for task, shape in case.tasks.items()
        if shape.stateful and len(alive) > 1
    }
    states = {
        task: CurrentTask(
            phase=TaskPhase.RUNNING,
            owner=owners[task],
            copies=tuple(
                CurrentCopy(member=name, role=TaskRole.STANDBY, readiness=Readiness.READY)
                for name in standbys.get(task, ())
            ),
        )
        for task in case.tasks
    }
    answer = refine(
        RefineInput(
            tasks=case.tasks,
            owners=owners,
            standbys=standbys,
            members=tuple(CurrentMember(name=name) for name in alive),
            states=states,
        )
    )
    assert answer == Refinement(
        owners=owners,
        learners={},
        standbys=standbys,
        kept=frozenset(),
        parked=frozenset(),
        reasons={},
    )
