"""Placement invariants (20, 22), on values alone."""

from collections.abc import Mapping

from tidewheel.rebalance.protocol.records import (
    Copy,
    MemberRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

#: Phases in which the process still works.
_LIVES = ("ACTIVE", "LEAVING", "PARKED")


def needless_moves(
    before: TargetRecord,
    after: TargetRecord,
    tasks: Mapping[str, TaskRecord],
    threads: Mapping[str, int],
) -> str:
    """Return excess moves between two targets that differ by one member, or "" (20).

    An added member gets at most its share, ceil(tasks / members) for equal threads. A removed one
    loses only its tasks. Unreached targets do not count: tasks stay where they are, and those of a
    restarting member are elsewhere meanwhile.
    """
    old, new = set(before.all_owners.values()), set(after.all_owners.values())
    if before.all_owners.keys() != after.all_owners.keys() or len(old ^ new) != 1 or not old:
        return ""
    if not all(_is_at_home(tasks.get(task), owner) for task, owner in before.all_owners.items()):
        return ""
    moved = {task for task, owner in after.all_owners.items() if before.all_owners[task] != owner}
    (other,) = old ^ new
    if other in old:
        strays = sorted(task for task in moved if before.all_owners[task] != other)
        return f"{strays} move although {other} is gone, whose they were not" if strays else ""
    share = threads.get(other, 1) * len(after.all_owners)
    most = -(-share // sum(threads.get(name, 1) for name in new))
    return f"{len(moved)} tasks move for {other}, {most} are its share" if len(moved) > most else ""


def _is_at_home(state: TaskRecord | None, owner: str) -> bool:
    return state is not None and {state.next_member, state.member} <= {owner, None}


def has_twice(
    step: StepRecord, tasks: Mapping[str, TaskRecord], members: Mapping[str, MemberRecord]
) -> str:
    """Return a member with two roles for one task, or "" (invariant 22).

    A process has one directory per task, for all its incarnations and in every phase of the owner.
    A copy that an owner keeps after release is written with its REVOKE.
    """
    for task in step.all_learners.keys() | step.all_standbys.keys():
        copies = [step.all_learners[task]] if task in step.all_learners else []
        copies += step.all_standbys.get(task, ())
        holders = [_place(copy, members) for copy in copies]
        if len(set(holders)) != len(holders):
            return f"{task} has two copies in one place: {copies}"
        state = tasks.get(task)
        if state is None or state.owner is None or state.phase == "REVOKING":
            continue
        owner = Copy(incarnation=state.owner, learn_epoch=0)
        if _place(owner, members) in holders:
            return f"{state.owner} owns {task} ({state.phase}) and there is a copy of it in its process: {copies}"
    return ""


def _place(copy: Copy, members: Mapping[str, MemberRecord]) -> str:
    """Return the process of an incarnation; an ended one has only its name."""
    record = members.get(copy.incarnation)
    if record is None or record.phase not in _LIVES:
        return copy.incarnation
    return record.process_id
