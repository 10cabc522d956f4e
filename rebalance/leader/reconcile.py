"""Member reconciliation (KIP-848, KIP-1071): one member's next step to its assignment.

        STABLE, UNRELEASED_TASKS --nothing to revoke--> STABLE, or UNRELEASED_TASKS while others own some
        STABLE, UNRELEASED_TASKS --tasks to revoke--> UNREVOKED_TASKS (nothing new until acknowledged)
        UNREVOKED_TASKS --acknowledged--> as from STABLE
        UNKNOWN --reports that it owns nothing--> as from STABLE; else it is fenced

Members whose tasks do not change never wait. Source in Kafka: `CurrentAssignmentBuilder`.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.model import TaskId


class MemberState(StrEnum):
    """Reconciliation state of a member.

    STABLE: at its target. UNREVOKED_TASKS: must revoke first. UNRELEASED_TASKS: waits for tasks of
    others. UNKNOWN: written by a later version.
    """

    STABLE = "STABLE"
    UNREVOKED_TASKS = "UNREVOKED_TASKS"
    UNRELEASED_TASKS = "UNRELEASED_TASKS"
    UNKNOWN = "UNKNOWN"


class FencedMemberEpochError(Exception):
    """Raised if a member in an unknown state may own tasks: it must join again."""


class MemberAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Current assignment of a member at `epoch`; it may still own `pending_revocation`."""

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

    `unreleased` returns True if another member may still own a task. `owned` is the member's own
    report, None without one.

    Raises:
        FencedMemberEpochError: The state is unknown and the member does not report owning nothing.

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
