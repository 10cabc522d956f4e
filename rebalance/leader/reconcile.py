"""One member's next step towards what it should have: the member machine of KIP-848 and KIP-1071, pure.

        STABLE, UNRELEASED_TASKS --nothing to give up--> STABLE, or UNRELEASED_TASKS while others still hold some of it
        STABLE, UNRELEASED_TASKS --something to give up--> UNREVOKED_TASKS (nothing new until that is acknowledged)
        UNREVOKED_TASKS --acknowledged--> as from STABLE
        UNKNOWN --reports that it owns nothing--> as from STABLE; else it is fenced

Nobody waits for a member whose tasks do not change. Kafka's name for the source: `CurrentAssignmentBuilder`.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.model import TaskId


class MemberState(StrEnum):
    """How far a member is on its way to the target.

    STABLE: it has what it should have. UNREVOKED_TASKS: it has to give something up first. UNRELEASED_TASKS: it waits for
    what others hold. UNKNOWN: written by a version that knew more states than this one.
    """

    STABLE = "STABLE"
    UNREVOKED_TASKS = "UNREVOKED_TASKS"
    UNRELEASED_TASKS = "UNRELEASED_TASKS"
    UNKNOWN = "UNKNOWN"


class FencedMemberEpochError(Exception):
    """A member in an unknown state owns, or may own, something: it has to come back empty-handed."""


class MemberAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a member has.

    Attributes:
        state: See there.
        epoch: Of the assignment it is at.
        assigned: What it owns and keeps.
        pending_revocation: What it may still own and has to give up.
    """

    state: MemberState
    epoch: int
    assigned: frozenset[TaskId] = frozenset()
    pending_revocation: frozenset[TaskId] = frozenset()


def reconcile(
    member: MemberAssignment,
    *,
    target_epoch: int,
    target: frozenset[TaskId],
    unreleased: Callable[[TaskId], bool],
    owned: frozenset[TaskId] | None,
) -> MemberAssignment:
    """Return a member's next assignment.

    Args:
        member: What it has.
        target_epoch: Epoch of the assignment it should reach.
        target: What it should have at that epoch.
        unreleased: Whether somebody may still own a task that this member has not.
        owned: What it says it owns; None: it did not say.

    Raises:
        FencedMemberEpochError: Its state is unknown and it does not say that it owns nothing.

    >>> tasks = [TaskId(0, number) for number in range(3)]
    >>> has = MemberAssignment(state=MemberState.STABLE, epoch=1, assigned=frozenset(tasks[:2]))
    >>> step = reconcile(
    ...     has, target_epoch=2, target=frozenset(tasks[1:]), unreleased=lambda task: False, owned=None
    ... )
    >>> step.state, [*map(str, step.pending_revocation)], step.epoch
    (<MemberState.UNREVOKED_TASKS: 'UNREVOKED_TASKS'>, ['0_0'], 1)
    """
    match member.state:
        case MemberState.STABLE if member.epoch == target_epoch:
            return member
        case MemberState.STABLE | MemberState.UNRELEASED_TASKS:
            epoch = member.epoch
        case MemberState.UNREVOKED_TASKS:
            if owned is None or owned & member.pending_revocation:
                return member
            epoch = member.epoch + 1
        case MemberState.UNKNOWN:
            if owned is None or owned:
                raise FencedMemberEpochError(
                    "the member's state is unknown and it may own tasks: it has to join again"
                )
            epoch = target_epoch
    return _towards(replace(member, epoch=epoch), target_epoch, target, unreleased, owned)


def _towards(
    member: MemberAssignment,
    target_epoch: int,
    target: frozenset[TaskId],
    unreleased: Callable[[TaskId], bool],
    owned: frozenset[TaskId] | None,
) -> MemberAssignment:
    """Revoke first, then grant what is free."""
    keep = member.assigned & target
    revoke = member.assigned - keep
    if revoke and (owned is None or owned & revoke):
        return replace(
            member, state=MemberState.UNREVOKED_TASKS, assigned=keep, pending_revocation=revoke
        )
    wanted = target - keep
    waiting = frozenset(filter(unreleased, wanted))
    return MemberAssignment(
        state=MemberState.UNRELEASED_TASKS if waiting else MemberState.STABLE,
        epoch=target_epoch,
        assigned=keep | (wanted - waiting),
    )
