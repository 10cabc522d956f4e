"""Properties of member reconciliation; Kafka's own cases are in tests/golden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.leader.reconcile import (
    FencedMemberEpochError,
    MemberAssignment,
    MemberState,
    reconcile,
)
from tidewheel.rebalance.model import TaskId

TASKS = [TaskId(0, number) for number in range(6)]
task_sets = st.frozensets(st.sampled_from(TASKS))


@st.composite
def members(draw: st.DrawFn) -> MemberAssignment:
    """Draw a reachable member state."""
    assigned = draw(task_sets)
    pending = draw(task_sets) - assigned
    idle = draw(st.sampled_from([MemberState.STABLE, MemberState.UNRELEASED_TASKS]))
    return MemberAssignment(
        state=MemberState.UNREVOKED_TASKS if pending else idle,
        epoch=draw(st.integers(min_value=0, max_value=5)),
        assigned=assigned,
        pending_revocation=pending,
    )


@given(members(), task_sets, task_sets, st.booleans())
def test_no_task_is_granted_before_pending_revocations_end(
    member: MemberAssignment, target: frozenset[TaskId], held: frozenset[TaskId], says: bool
) -> None:
    owned = member.assigned | member.pending_revocation if says else None
    after = reconcile(
        member, target_epoch=6, target=target, unreleased=held.__contains__, owned=owned
    )
    granted = after.assigned - member.assigned
    assert not granted or not after.pending_revocation
    assert granted <= target - held
    assert after.assigned & member.assigned >= member.assigned & target
    if after.state == MemberState.UNREVOKED_TASKS:
        assert after.assigned <= member.assigned
        assert after.epoch <= 6


@given(members(), task_sets, task_sets)
def test_a_member_that_acknowledges_reaches_the_target(
    member: MemberAssignment, target: frozenset[TaskId], held: frozenset[TaskId]
) -> None:
    for _ in range(3):
        member = reconcile(
            member,
            target_epoch=9,
            target=target,
            unreleased=held.__contains__,
            owned=member.assigned,
        )
    free = target - (held - member.assigned)
    assert member.assigned == free
    assert member.state == (MemberState.STABLE if free == target else MemberState.UNRELEASED_TASKS)
    again = reconcile(
        member, target_epoch=9, target=target, unreleased=held.__contains__, owned=None
    )
    assert again == member


def test_a_member_in_an_unknown_state_must_rejoin_without_tasks() -> None:
    unknown = MemberAssignment(state=MemberState.UNKNOWN, epoch=1, assigned=frozenset(TASKS[:1]))
    for owned in (None, frozenset(TASKS[:1])):
        with pytest.raises(FencedMemberEpochError, match="has to join again"):
            reconcile(
                unknown,
                target_epoch=2,
                target=frozenset(),
                unreleased=lambda task: False,
                owned=owned,
            )
