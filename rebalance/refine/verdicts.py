"""One verdict per task: it stays, moves now, or waits for a copy on its target owner."""

import msgspec

from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.refine.refine_input import Index, Readiness


class Verdict(msgspec.Struct, frozen=True):
    """Decision for one task."""

    task: TaskId
    owner: str | None
    warmed: str | None = None  # Target owner that must catch up first, if any.
    staged: bool = False
    cold: bool = False  # True if the new owner must restore while the task is stopped.
    reason: str = ""


def analyse(index: Index, task: TaskId) -> Verdict:
    target, holder = index.given.owners.get(task), index.staying_owner(task)
    if holder is not None and target in (holder, None):
        return Verdict(task, holder)
    handed_over = _handed_over(index, task)
    if handed_over is not None:
        return handed_over
    if target is None or not index.can_receive(target):
        return _without_target(index, task, holder, target or "its next owner")
    if not index.given.tasks[task].stateful:
        return _stateless(index, task, holder, target)
    if holder is not None:
        return _owned(index, task, holder, target)
    return _unowned(index, task, target)


def _handed_over(index: Index, task: TaskId) -> Verdict | None:
    """Finish a revocation in progress; never reverse it, even if the target has changed since."""
    state = index.task(task)
    if state.phase == TaskPhase.RELEASED and index.can_receive(state.next_member):
        ready = _copies(index, task, Readiness.READY)
        if state.next_member in ready or not ready:
            return Verdict(task, state.next_member, reason="was revoked for it")
    if state.phase != TaskPhase.REVOKING:
        return None
    if index.can_receive(state.next_member):
        return Verdict(task, state.next_member, reason="is being revoked")
    if index.can_receive(state.owner):
        return Verdict(task, state.owner, reason="goes back: who was to have it is gone")
    return None


def _without_target(index: Index, task: TaskId, holder: str | None, target: str) -> Verdict:
    """Keep the task, or run it on a ready copy, until the next target names a usable owner."""
    if holder is not None:
        return Verdict(task, holder, staged=True, reason=f"{target} is gone; stays")
    ready = _copies(index, task, Readiness.READY)
    if ready:
        return Verdict(task, ready[0], staged=True, reason=f"{target} is gone; has a ready copy")
    waits = target in index.given.waiting
    return Verdict(task, None, staged=True, reason=f"waits for {target}" if waits else "no owner")


def _stateless(index: Index, task: TaskId, holder: str | None, target: str) -> Verdict:
    """Move without a learner, but never from a running member to an unsettled one (N11)."""
    if holder is None or _may_take(index, holder, target):
        return Verdict(task, target, reason="has no state to restore")
    return Verdict(task, holder, staged=True, reason=f"{target} has not settled")


def _owned(index: Index, task: TaskId, holder: str, target: str) -> Verdict:
    may_take = _may_take(index, holder, target)
    if not index.given.enabled:
        owner = target if may_take else holder
        return Verdict(task, owner, staged=not may_take, cold=may_take, reason="no learners")
    copy, owner_state = index.copy_on(task, target), index.task(task).owner_state
    if copy is not None and copy.readiness == Readiness.READY:
        if may_take:
            return Verdict(task, target, reason="its copy is ready")
        why = f"the copy is ready, {target} has not settled"
    else:
        why = f"stays until {target} has caught up"
        ready = _copies(index, task, Readiness.READY)
        if owner_state != Readiness.READY and ready:
            holder, why = ready[0], "its owner restores, this copy is ready"
        elif owner_state == Readiness.NOTHING and may_take:
            # No member has state: restore once, on the target owner, instead of twice.
            return Verdict(task, target, cold=True, reason="nobody has restored anything of it")
    return Verdict(task, holder, target, staged=True, reason=why)


def _unowned(index: Index, task: TaskId, target: str) -> Verdict:
    """Assign an unowned task where it can run soonest; the target owner wins ties.

    Unready or unknown state is no reason to wait, but better than none: its restore resumes there.
    """
    for readiness in (Readiness.READY, Readiness.PROGRESSING, Readiness.UNKNOWN):
        cold = readiness != Readiness.READY
        found = _with_state(index, task, readiness)
        if target in found:
            return Verdict(task, target, cold=cold, reason="nobody has it, its state is there")
        if found and index.given.enabled:
            why = "nobody has it, this member has the best copy"
            return Verdict(task, found[0], target, staged=True, cold=cold, reason=why)
    return Verdict(task, target, cold=True, reason="nobody has it or a copy of it")


def _with_state(index: Index, task: TaskId, readiness: Readiness) -> list[str]:
    """Return members with state of this readiness: open copies before disk state, best first."""
    disk = {
        name: lag if lag >= 0 else float("inf")
        for name, lag in index.task(task).on_disk.items()
        if index.can_receive(name)
    }
    fresh = {name for name, lag in disk.items() if lag <= index.given.acceptable_recovery_lag}
    on_disk = {Readiness.READY: fresh, Readiness.UNKNOWN: disk.keys() - fresh}
    closed = on_disk.get(readiness, set[str]())
    closed_first = sorted(closed, key=lambda name: (disk[name], index.load[name], name))
    return _copies(index, task, readiness) + closed_first


def _may_take(index: Index, holder: str, target: str) -> bool:
    return index.members[target].settled or index.members[holder].leaving


def _copies(index: Index, task: TaskId, readiness: Readiness) -> list[str]:
    """Return members with copies of this readiness, best first.

    Copies that the target does not want as standbys come first: its standbys stay in place.
    """
    wanted = index.given.standbys.get(task, ())
    found = [
        name
        for name, copy in index.copies_of(task).items()
        if copy.readiness == readiness and index.can_receive(name)
    ]
    return sorted(found, key=lambda name: (name in wanted, index.load[name], name))
