"""Targets: when to ask the assignor, with which request, and how to use its answer."""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRefusedError,
    AssignmentRequest,
    validated,
)
from tidewheel.rebalance.leader.compatibility import is_assignable, is_returning
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.observations import DISK_FRESH_MS, changelog_keys, lag_of
from tidewheel.rebalance.model import TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.protocol.group import Group, Target, target_record
from tidewheel.rebalance.protocol.records import MemberRecord

#: Pause after the assignor failed; doubles per failure.
REQUEST_RETRY_MS = 1_000
REQUEST_RETRY_MAX_MS = 60_000

#: Separates digest and standby count in `TargetRecord.basis`.
_STANDBYS = "/"


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Unanswered request to the assignor; `basis` is the digest of its inputs."""

    request: AssignmentRequest
    basis: str


class AssignorRequests(msgspec.Struct, kw_only=True):
    pending: OpenRequest | None = None
    answer: Assignment | None = None  # Valid, not yet the target.
    number: int = 0
    #: Consecutive failures of the assignor, and the earliest time of the next request.
    failures: int = 0
    again_ms: int = 0
    alarm: str = ""  # Reason why the last answer was rejected, or "".
    _based_on: tuple[object, object] | None = None
    _basis: str = ""
    _possible_of: tuple[object, object, object] | None = None
    _is_possible: bool = False

    def basis_of(self, group: Group, num_standby_replicas: int) -> str:
        cached = self._based_on
        if cached is None or cached[0] is not group.members or cached[1] is not group.about:
            self._based_on = (group.members, group.about)
            self._basis = basis_of(group, num_standby_replicas)
        return self._basis

    def has_current_target(self, group: Group, num_standby_replicas: int) -> bool:
        """Return True if the target fits the current members and program.

        An equal digest is not enough: anyone can log a target of unknown members or tasks.
        """
        if self.basis_of(group, num_standby_replicas) != group.target.basis:
            return False
        cached, now = self._possible_of, (group.target, group.members, group.about)
        if cached is None or any(a is not b for a, b in zip(cached, now, strict=True)):
            self._possible_of, self._is_possible = now, _is_possible(group)
        return self._is_possible

    def accept(
        self, request: AssignmentRequest, answer: Assignment | None, error: str, now_ms: int
    ) -> None:
        if self.pending is None or self.pending.request.number != request.number:
            return
        if answer is not None:
            try:
                self.answer = validated(self.pending.request, answer)
            except AssignmentRefusedError as refused:
                error = str(refused)
        if self.answer is not None:
            self.failures, self.alarm = 0, ""
            return
        self.pending = None
        self.alarm = error or "the assignor gave no answer"
        pause_ms = min(REQUEST_RETRY_MS << min(self.failures, 10), REQUEST_RETRY_MAX_MS)
        self.failures += 1
        self.again_ms = now_ms + pause_ms


def write_target(draft: Draft, assigning: AssignorRequests) -> None:
    """Write the assignor's answer as the target, unless a member of its request has gone."""
    pending, answer = assigning.pending, assigning.answer
    if pending is None or answer is None:
        return
    assigning.pending = assigning.answer = None
    names = {record.member for record in _assignable(draft.group)}
    if not names.issuperset(member.name for member in pending.request.members):
        return
    reason = "; ".join(dict.fromkeys(draft.observations.news)) or "first check by a new leader"
    draft.observations.news.clear()
    draft.observations.first_join_ms = None
    draft.write(
        target_record(
            Target(
                group_epoch=draft.group.target.group_epoch + 1,
                owners=answer.owners,
                standbys=answer.standbys,
                basis=pending.basis,
            ),
            draft.epoch,
            reason[:500],
        )
    )


def request_target(draft: Draft, assigning: AssignorRequests) -> AssignmentRequest | None:
    """Return a request if the target is outdated and no further join is expected."""
    members = _assignable(draft.group)
    if not members or not draft.group.tasks or draft.group.about.held:
        return None
    basis = assigning.basis_of(draft.group, draft.settings.num_standby_replicas)
    if assigning.pending is not None:
        return None
    if assigning.has_current_target(draft.group, draft.settings.num_standby_replicas):
        # The changes since the target did not affect its inputs.
        draft.observations.news.clear()
        draft.observations.first_join_ms = None
        return None
    if not draft.due_or_schedule(assigning.again_ms) or not _is_quiet(draft, members):
        return None
    assigning.number += 1
    homes, copies = _homes(draft.group), _copies(draft.group)
    request = AssignmentRequest(
        number=assigning.number,
        members=tuple(
            _member(
                draft,
                record,
                frozenset(homes.get(record.member, ())),
                frozenset(copies.get(record.incarnation, ())),
            )
            for record in members
        ),
        tasks=draft.group.tasks,
        num_standby_replicas=draft.settings.num_standby_replicas,
        acceptable_recovery_lag=draft.settings.acceptable_recovery_lag,
        # This process's own setting first: anyone may have written the name in the log.
        assignor=draft.settings.assignor or draft.group.about.assignor,
    )
    assigning.pending = OpenRequest(request=request, basis=basis)
    return request


def basis_of(group: Group, num_standby_replicas: int) -> str:
    """Return a digest of all inputs of a target, followed by the standby count.

    Readers need the count to compute the digest.
    """
    members = [
        (member.member, member.threads, member.host, member.rack, sorted(member.tags.items()))
        for member in _assignable(group)
    ]
    tasks = {
        task: (row.stateful, row.changelogs, *((row.shards,) if row.shards > 1 else ()))
        for task, row in group.about.tasks.items()
    }
    parts = (members, sorted(tasks.items()), group.about.assignor, num_standby_replicas)
    digest = blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest()
    return f"{digest}{_STANDBYS}{num_standby_replicas}"


def is_outdated(group: Group) -> bool:
    if not group.tasks or not _assignable(group):
        return False
    if not group.target.group_epoch:
        return True
    return has_basis(group.target) and basis_of(group, _standbys(group.target)) != (
        group.target.basis
    )


def has_basis(target: Target) -> bool:
    """Return False for targets of earlier versions without the standby count: they stay current."""
    return target.basis.rpartition(_STANDBYS)[2].isdecimal()


def _standbys(target: Target) -> int:
    return int(target.basis.rpartition(_STANDBYS)[2])


def _is_possible(group: Group) -> bool:
    target = group.target
    members = tuple(AssignmentMember(name=member.member) for member in _assignable(group))
    request = AssignmentRequest(number=0, members=members, tasks=group.tasks)
    try:
        validated(request, Assignment(owners=target.owners, standbys=target.standbys))
    except AssignmentRefusedError:
        return False
    return target.group_epoch > 0


def _assignable(group: Group) -> list[MemberRecord]:
    members = [record for record in group.members.values() if is_assignable(record)]
    return sorted(members, key=lambda record: record.member)


def _is_quiet(draft: Draft, members: list[MemberRecord]) -> bool:
    """Return True if joins have ceased, or if a target owner is gone: its tasks must not wait."""
    settings, observations = draft.settings, draft.observations
    if observations.last_join_ms is None:
        return True
    names = {record.member for record in members}
    owners = draft.group.target.owners
    first = not names.intersection(owners.values())
    if not first and not names.issuperset(owners.values()):
        return True
    quiet_ms = settings.first_join_quiet_ms if first else settings.join_quiet_ms
    until_ms = observations.last_join_ms + quiet_ms
    if observations.first_join_ms is not None:
        until_ms = min(until_ms, observations.first_join_ms + settings.join_wait_max_ms)
    return draft.due_or_schedule(until_ms)


def _member(
    draft: Draft, record: MemberRecord, owned: frozenset[TaskId], copies: frozenset[TaskId]
) -> AssignmentMember:
    on_disk = dict(disk_lags(draft, record.incarnation))
    heard = draft.observations.members.get(record.incarnation)
    rows = heard.rows if heard is not None else {}
    lags = {task: lag for task, lag in on_disk.items() if lag >= 0}
    lags |= {
        task: row.lag
        for task in copies
        if (row := rows.get(task)) is not None and row.role != TaskRole.ACTIVE and row.lag >= 0
    }
    lags |= dict.fromkeys(owned, 0)
    return AssignmentMember(
        name=record.member,
        threads=record.threads,
        host=record.host,
        rack=record.rack,
        tags=record.tags,
        owned=owned,
        copies=copies - owned,
        on_disk=frozenset(on_disk) - owned - copies,
        lags=lags,
    )


def _homes(group: Group) -> dict[str, set[TaskId]]:
    """Return tasks by member name: running there, moving there, or waiting for its return."""
    homes: dict[str, set[TaskId]] = {}
    for task in group.tasks:
        state = group.states.get(task)
        name = group.target.owners.get(task)
        if state is not None:
            owner = group.members.get(state.owner or "")
            if state.phase in (TaskPhase.REVOKING, TaskPhase.RELEASED) and state.next_member:
                name = state.next_member
            elif state.phase == TaskPhase.RUNNING and owner is not None and is_assignable(owner):
                name = owner.member
        if name is not None:
            homes.setdefault(name, set()).add(task)
    return homes


def _copies(group: Group) -> dict[str, set[TaskId]]:
    copies: dict[str, set[TaskId]] = {}
    for task in group.step.learners.keys() | group.step.standbys.keys():
        for copy in group.step.copies(task):
            copies.setdefault(copy.incarnation, set()).add(task)
    return copies


def disk_lags(draft: Draft, incarnation: str) -> Iterator[tuple[TaskId, int]]:
    """Yield tasks on a member's disk at its join, with their lag; -1 if unknown or stale."""
    heard = draft.observations.members.get(incarnation)
    if heard is None or heard.join is None:
        return
    ends = draft.observations.ends
    is_known = not draft.due_or_schedule(heard.joined_ms + DISK_FRESH_MS)
    for copy in (*heard.join.on_disk, *heard.join.shards_on_disk):
        try:
            task = TaskId.parse(copy.task)
        except ValueError:
            continue
        keys = changelog_keys(task, draft.group.tasks.get(task))
        if not keys:
            continue
        ends_since_join = {
            key: ends[key].offset
            for key in keys
            if is_known and key in ends and ends[key].requested_ms >= heard.joined_ms
        }
        checked = copy.positions and len(ends_since_join) == len(keys)
        yield task, lag_of(copy.positions, ends_since_join, keys) if checked else -1


def awaited_names(group: Group) -> frozenset[str]:
    return frozenset(record.member for record in group.members.values() if is_returning(record))
