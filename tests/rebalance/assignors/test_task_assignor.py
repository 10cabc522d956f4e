"""Validation of a user's assignor, and lookup of the built-in ones."""

import pytest

from tests.rebalance.assignors.requests import asked, tasks
from tidewheel.rebalance.assignors.builtin import resolve
from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRefusedError,
    validated,
)
from tidewheel.rebalance.model import TaskId

REQUEST = asked([AssignmentMember(name="a"), AssignmentMember(name="b")], tasks(1, 1), 1)
T0, S0 = TaskId(0, 0), TaskId(1, 0)
OWNERS = {T0: "a", S0: "b"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Assignment(owners={T0: "a"}), "task 1_0 has no owner"),
        (Assignment(owners={**OWNERS, TaskId(7, 0): "a"}), "task 7_0 does not exist"),
        (
            Assignment(owners={T0: "c", S0: "b"}),
            "task 0_0 is given to 'c', which is not in the group",
        ),
        (
            Assignment(owners=OWNERS, standbys={TaskId(7, 0): ("a",)}),
            "there is a standby of task 7_0, which does not exist",
        ),
        (
            Assignment(owners=OWNERS, standbys={S0: ("a",)}),
            "there is a standby of task 1_0, which has no state",
        ),
        (
            Assignment(owners=OWNERS, standbys={T0: ("c",)}),
            "a standby of task 0_0 is given to 'c', which is not in the group",
        ),
        (
            Assignment(owners=OWNERS, standbys={T0: ("a",)}),
            "two copies of task 0_0 are given to one member",
        ),
        (
            Assignment(owners=OWNERS, standbys={T0: ("b", "b")}),
            "two copies of task 0_0 are given to one member",
        ),
    ],
)
def test_invalid_assignments_are_refused(answer: Assignment, problem: str) -> None:
    with pytest.raises(AssignmentRefusedError, match=f"^assignor 'sticky': {problem}$"):
        validated(REQUEST, answer)


def test_a_validated_assignment_is_sorted() -> None:
    answer = validated(
        REQUEST, Assignment(owners={S0: "b", T0: "a"}, standbys={S0: (), T0: ("b",)})
    )
    assert list(answer.owners) == [T0, S0]
    assert answer.standbys == {T0: ("b",)}


def test_a_group_without_members_has_no_owners() -> None:
    empty = asked([], tasks(1))
    assert validated(empty, Assignment(owners={})) == Assignment(owners={})


def test_the_error_of_an_unknown_assignor_lists_the_built_in_ones() -> None:
    with pytest.raises(
        ValueError, match="'stiky'; built in are high_availability, round_robin, sticky"
    ):
        resolve("stiky")
