"""Readiness of copies, and the requests for end offsets that prove it."""

from typing import Final

from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.observations import DISK_FRESH_MS, Announced, changelog_keys
from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.protocol.messages import JoinGroup
from tidewheel.rebalance.protocol.records import Copy, TaskRecord
from tidewheel.rebalance.refine.refine_input import CurrentCopy, Readiness

_ACTIVE: Final = TaskRole.ACTIVE
_LEARNER: Final = TaskRole.LEARNER
_STANDBY: Final = TaskRole.STANDBY
_FENCE_WAIT: Final = TaskPhase.FENCE_WAIT
_READY: Final = Readiness.READY
_PROGRESSING: Final = Readiness.PROGRESSING
_NOTHING: Final = Readiness.NOTHING
_UNKNOWN: Final = Readiness.UNKNOWN

#: Maximum age of the end offsets that prove a copy caught up when its move starts.
CHECK_FRESH_MS: Final = 1_000

ENDS_AGAIN_MS: Final = 2_000

#: Wait for the check of a copy before an unowned task goes to a member that must restore it.
CHECK_WAIT_MS: Final = 1_000


def current_copies(draft: Draft, task: TaskId) -> tuple[CurrentCopy, ...]:
    group = draft.group
    copies = group.step.copies(task)
    if not copies:
        return ()
    learner = group.step.learners.get(task)
    live = draft.live()
    state = group.states.get(task)
    # A copy that the owner keeps after its release does not exist yet.
    owner = None if state is None else state.owner
    live_copies: list[CurrentCopy] = []
    for copy in copies:
        record = live.get(copy.incarnation)
        if record is None or copy.incarnation == owner or has_failed(draft, task, copy):
            continue
        role = _LEARNER if copy == learner else _STANDBY
        readiness = _readiness(draft, task, copy)
        live_copies.append(CurrentCopy(member=record.member, role=role, readiness=readiness))
    return tuple(live_copies)


def has_failed(draft: Draft, task: TaskId, copy: Copy) -> bool:
    failed = draft.observations.failed_copies
    return bool(failed) and failed.get((task, copy.incarnation)) == copy.learn_epoch


def find_announcement(draft: Draft, task: TaskId, copy: Copy) -> Announced | None:
    announced = draft.observations.announced.get(task, {}).get(copy.incarnation)
    return (
        announced if announced is not None and announced.learn_epoch == copy.learn_epoch else None
    )


def is_caught_up(draft: Draft, announced: Announced) -> bool:
    return (
        announced.checked_ms is not None
        and 0 <= announced.lag <= draft.settings.acceptable_recovery_lag
    )


def _readiness(draft: Draft, task: TaskId, copy: Copy) -> Readiness:
    announced = find_announcement(draft, task, copy)
    if announced is not None:
        return _READY if is_caught_up(draft, announced) else _PROGRESSING
    heard = draft.observations.members.get(copy.incarnation)
    row = heard.rows.get(task) if heard is not None else None
    if row is None or row.epoch != copy.learn_epoch or row.role == _ACTIVE:
        return _UNKNOWN
    return _PROGRESSING if any(row.changelog.values()) else _NOTHING


def request_checks(draft: Draft) -> None:
    for task, copies in draft.observations.announced.items():
        state = draft.group.states.get(task)
        orphaned = state is not None and state.phase == _FENCE_WAIT
        for announced in copies.values():
            checked_ms = announced.checked_ms
            if checked_ms is None:
                wanted = True
            elif not is_caught_up(draft, announced):
                wanted = announced.heard_ms > checked_ms
            else:
                wanted = orphaned and draft.now_ms - checked_ms > CHECK_FRESH_MS
            if wanted:
                request_ends(draft, task, announced.since_ms)
    for heard in draft.observations.members.values():
        if heard.join is not None and not draft.due_or_schedule(heard.joined_ms + DISK_FRESH_MS):
            _request_disk_ends(draft, heard.join, heard.joined_ms)


def _request_disk_ends(draft: Draft, join: JoinGroup, joined_ms: int) -> None:
    for copy in join.on_disk:
        for key in copy.positions:
            end = draft.observations.ends.get(key)
            is_read = end is not None and end.requested_ms >= joined_ms
            if not is_read and not _is_requested(draft, key, joined_ms):
                draft.ends_wanted.add(key)


def request_ends(draft: Draft, task: TaskId, not_before_ms: int) -> None:
    for key in changelog_keys(task, draft.group.tasks.get(task)):
        if not _is_requested(draft, key, not_before_ms):
            draft.ends_wanted.add(key)


def _is_requested(draft: Draft, key: str, not_before_ms: int) -> bool:
    requested_ms = draft.observations.ends_requested_ms.get(key)
    if requested_ms is None or requested_ms < not_before_ms:
        return False
    return not draft.due_or_schedule(requested_ms + ENDS_AGAIN_MS)


def waits_for_checks(draft: Draft, task: TaskId, state: TaskRecord | None) -> bool:
    """Return True if an unowned task should wait briefly for a copy that may be caught up.

    Either the check of a copy that announced READY is in progress, or this leader is too new to
    have heard it.
    """
    copies = draft.group.step.copies(task)
    if state is None or not copies:
        return False
    live = draft.live()
    copies = tuple(copy for copy in copies if copy.incarnation in live)
    waits = False
    for copy in copies:
        announced = find_announcement(draft, task, copy)
        if announced is not None:
            if is_caught_up(draft, announced):
                return False
            open_check = announced.checked_ms is None
            waits = waits or (
                open_check and not draft.due_or_schedule(announced.since_ms + CHECK_WAIT_MS)
            )
        else:
            hearing_ms = draft.observations.claimed_ms + 2 * draft.settings.heartbeat_interval_ms
            waits = waits or not draft.due_or_schedule(hearing_ms)
    return waits


def is_fresh(draft: Draft, task: TaskId, incarnation: str) -> bool:
    """Return False, and request a new check, if the new owner's copy was checked too long ago.

    A move without a check needs no ready copy.
    """
    announced = draft.observations.announced.get(task, {}).get(incarnation)
    if announced is None or announced.checked_ms is None:
        return True
    if draft.now_ms - announced.checked_ms <= CHECK_FRESH_MS:
        return True
    request_ends(draft, task, draft.now_ms - CHECK_FRESH_MS)
    return False
