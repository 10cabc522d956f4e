"""Membership passes: joins, deaths, fences, leaves (transitions of `model.MemberPhase`)."""

from collections.abc import Iterator
from typing import Final

import msgspec

from tidewheel.rebalance.leader.compatibility import (
    adopted_program,
    is_awaited,
    is_parked,
    join_refusal,
    runs_program,
    updated_program,
)
from tidewheel.rebalance.leader.decision import Fence
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.sharding import waits_for_release
from tidewheel.rebalance.model import MemberPhase, Positions, TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.protocol.group import LIVE, MEMBERS_MAX
from tidewheel.rebalance.protocol.messages import JoinGroup, JoinRefused, Leave
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import MemberRecord

FENCE_AGAIN_MS: Final = 15_000

#: A new leader fences a member that it has never heard after the member's session timeout, at most
#: the longer of these: a logged timeout may be forged.
UNHEARD_MAX_MS: Final = 60_000
_UNHEARD_HEARTBEATS: Final = 10
#: An earlier leader's wait for a member's return is cut to this plus the longest
#: `rejoin_timeout_ms` of the members heard: a logged wait may be forged.
REJOIN_INHERITED_MS: Final = 60_000


def admit_members(draft: Draft, *, app: str, leader: str) -> list[JoinRefused]:
    """Admit joining members; return refusals.

    A join fences a live incarnation of its name, or ends the wait for a restarted one.
    """
    refused: list[tuple[str, str, str]] = [
        (incarnation, "FENCED", "the group has continued without it")
        for incarnation in dict.fromkeys(draft.observations.returned)
    ]
    draft.observations.returned.clear()
    for join in draft.observations.pending(draft.group):
        problem = join_refusal(join, draft.group)
        if problem is None and waits_for_release(join, draft.group):
            continue
        if problem is None and len(draft.group.members) < MEMBERS_MAX:
            _admit(draft, join)
        elif problem is None:
            break  # The join waits until members have gone.
        elif not _must_wait(draft, join):
            del draft.observations.members[
                join.incarnation
            ]  # forgotten: a repeated join is refused again
            refused.append((join.incarnation, problem.code, problem.reason))
    return [
        JoinRefused(app=app, member=leader, incarnation=incarnation, code=code, reason=reason)
        for incarnation, code, reason in refused
    ]


def _must_wait(draft: Draft, join: JoinGroup) -> bool:
    """Return True if only unheard members refuse: the join waits until they are heard or fenced."""
    unheard = {
        incarnation for incarnation in draft.live() if draft.observations.is_unheard(incarnation)
    }
    if not unheard or join_refusal(join, draft.group, unheard) is not None:
        return False
    for incarnation in unheard:
        draft.observations.of(incarnation).awaited = True
    return True


def correct_members(draft: Draft) -> None:
    if draft.observations.corrected == (draft.group.members, draft.observations.joins_recorded):
        return
    for incarnation, record in draft.live().items():
        heard = draft.observations.members.get(incarnation)
        join = None if heard is None else heard.join
        if join is None or join.member != record.member:
            continue
        phase = MemberPhase(record.phase)
        if phase == MemberPhase.PARKED and join.topology_epoch <= draft.group.about.topology_epoch:
            phase = MemberPhase.ACTIVE
        from_join = _member_record(draft.epoch, join, phase)
        decided = {name: getattr(record, name) for name in _NOT_OF_JOIN}
        ids = tuple(dict.fromkeys((*join.transactional_ids, *record.transactional_ids)))
        corrected = msgspec.structs.replace(from_join, **decided, transactional_ids=ids)
        if corrected != msgspec.structs.replace(record, leader_epoch=draft.epoch):
            draft.write(corrected)
    draft.observations.corrected = (draft.group.members, draft.observations.joins_recorded)


#: The leader decides these fields; the others come from the join.
_NOT_OF_JOIN: Final = ("member_epoch", "reason", "rejoin_ms", "drain_ms", "shutdown")


def _admit(draft: Draft, join: JoinGroup) -> None:
    heard = draft.observations.of(join.incarnation)
    namesakes = [record for record in draft.group.members.values() if record.member == join.member]
    parked = is_parked(join.topology_epoch, draft.group, join.member)
    draft.write(
        _member_record(draft.epoch, join, MemberPhase.PARKED if parked else MemberPhase.ACTIVE)
    )
    for record in namesakes:
        if record.phase in LIVE:
            reason = f"another process with group_instance_id {join.member} has joined"
            _begin_fence(draft, record, reason, replaced=True)
        elif is_awaited(record):
            _forget(draft, record, "it is back")
        elif record.rejoin_ms:
            draft.write(msgspec.structs.replace(record, leader_epoch=draft.epoch, rejoin_ms=0))
    if not namesakes:
        heard.admitted_ms = draft.now_ms
    draft.observations.last_join_ms = draft.now_ms
    draft.observations.first_join_ms = draft.observations.first_join_ms or draft.now_ms
    draft.observations.news.append(f"{display_name(join)} joined")


def _member_record(epoch: int, join: JoinGroup, phase: MemberPhase) -> MemberRecord:
    return MemberRecord(
        leader_epoch=epoch,
        member=join.member,
        incarnation=join.incarnation,
        phase=phase.value,
        transactional_ids=join.transactional_ids,
        host=join.host,
        process_id=join.process_id,
        endpoint=join.endpoint,
        rack=join.rack,
        tags=join.tags,
        threads=join.threads,
        static=join.static,
        slot=join.slot,
        pid=join.pid,
        protocol=join.protocol,
        topology_epoch=join.topology_epoch,
        topology_hash=join.topology_hash,
        assignor=join.assignor,
        shards=join.shards,
        session_timeout_ms=join.session_timeout_ms,
        rejoin_timeout_ms=join.rejoin_timeout_ms,
        reason="joined",
    )


def update_program(draft: Draft) -> None:
    """Log the members' program, tasks and protocol version.

    Parked members become active when no live member runs an older topology.
    """
    live = draft.live()
    looked_at = (draft.group.members, draft.observations.joins_recorded)
    if not live or draft.observations.program_checked == looked_at:
        return
    about = draft.group.about
    joins = {
        incarnation: heard.join
        for incarnation in live
        if (heard := draft.observations.members.get(incarnation))
    }
    if not any(
        runs_program(record, about) and record.assignor == about.assignor
        for record in live.values()
    ):
        _adopt_program(draft, joins)
    changed = updated_program(draft.group, [join for join in joins.values() if join is not None])
    if changed != msgspec.structs.replace(draft.group.about, leader_epoch=draft.epoch):
        draft.observations.news.append("program or tasks changed")
        before = draft.group.tasks
        draft.write(changed)
        for task in [task for task in before if task not in draft.group.tasks]:
            draft.forget_input(task)
    draft.observations.program_checked = (draft.group.members, draft.observations.joins_recorded)


def _adopt_program(draft: Draft, joins: dict[str, JoinGroup | None]) -> None:
    """Replace the logged program, which no member runs now, by that with the oldest topology."""
    candidates = [
        (join.topology_epoch, record.member, join)
        for incarnation, record in draft.live().items()
        if (join := joins.get(incarnation)) is not None
    ]
    if not candidates:
        return  # a new leader has not received their joins yet
    epoch, _, join = min(candidates, key=lambda candidate: candidate[:2])
    draft.write(adopted_program(join, draft.group))
    for record in list(draft.group.members.values()):
        is_other = (record.topology_hash, record.shards) != (join.topology_hash, join.shards)
        if is_awaited(record) and is_other:
            _forget(draft, record, "the group runs another topology now")
        elif record.phase == MemberPhase.PARKED and record.topology_epoch == epoch:
            draft.move_member(record, MemberPhase.ACTIVE, "members of older topologies have left")
            draft.observations.last_join_ms = draft.now_ms


def release_acknowledged(draft: Draft) -> None:
    for task, message in list(draft.observations.revoked.items()):
        state = draft.group.states.get(task)
        del draft.observations.revoked[task]
        if state is None or state.phase != TaskPhase.REVOKING:
            continue
        if (state.owner, state.task_epoch) == (message.incarnation, message.task_epoch):
            draft.release_by_ack(task, message.input, message.changelog_end)
            if task not in draft.group.tasks:
                draft.forget_input(task)


def fence_dead_members(draft: Draft) -> None:
    for record in draft.live().values():
        reason = _death_reason(draft, record)
        if reason:
            _begin_fence(draft, record, reason)
    _fence_slow_owners(draft)
    for record in list(draft.group.members.values()):
        done = record.incarnation in draft.observations.fenced or record.phase == MemberPhase.FENCED
        if record.phase in (MemberPhase.FENCING, MemberPhase.FENCED) and done:
            _end_fence(draft, record)
        elif is_awaited(record):
            since_ms = draft.observations.phase_ms.get(
                record.incarnation, draft.observations.claimed_ms
            )
            rejoin_ms = _rejoin_ms(draft, record)
            if draft.due_or_schedule(since_ms + rejoin_ms):
                _forget(draft, record, f"did not come back within {rejoin_ms} ms")


def _rejoin_ms(draft: Draft, record: MemberRecord) -> int:
    if record.incarnation in draft.observations.phase_ms:
        return record.rejoin_ms
    rejoin_times = [
        member.rejoin_timeout_ms
        for incarnation, member in draft.live().items()
        if not draft.observations.is_unheard(incarnation)
    ]
    return min(record.rejoin_ms, max(rejoin_times, default=0) + REJOIN_INHERITED_MS)


def _fence_slow_owners(draft: Draft) -> None:
    revoking, revoked_ms = TaskPhase.REVOKING, draft.observations.revoked_ms
    for task, state in draft.group.states.items():
        if state.phase != revoking:
            revoked_ms.pop(task, None)
            continue
        since_ms = revoked_ms.setdefault(task, draft.now_ms)
        owner = draft.group.members.get(state.owner or "")
        if not owner or owner.phase not in LIVE:
            continue
        # During a long call the worker can't release; `max_call_ms` limits such calls.
        since_ms = max(since_ms, draft.observations.of(owner.incarnation).in_call_ms)
        deadline_ms = min(state.deadline_ms, draft.settings.revoke_timeout_ms)
        if draft.due_or_schedule(since_ms + deadline_ms):
            limit = f"did not release {task} within {deadline_ms} ms"
            _begin_fence(draft, owner, limit)


def _death_reason(draft: Draft, record: MemberRecord) -> str:
    heard = draft.observations.of(record.incarnation)
    if heard.died:
        return heard.died
    timeout_ms = record.session_timeout_ms
    if draft.observations.is_unheard(record.incarnation):
        heartbeats_ms = _UNHEARD_HEARTBEATS * draft.settings.heartbeat_interval_ms
        timeout_ms = min(timeout_ms, max(UNHEARD_MAX_MS, heartbeats_ms))
    if draft.due_or_schedule(heard.heard_ms + timeout_ms):
        return f"no beat for {timeout_ms} ms"
    return ""


def _begin_fence(
    draft: Draft, record: MemberRecord, reason: str, *, replaced: bool = False
) -> None:
    """Write FENCING before the fence starts: if this leader dies, the next one repeats it."""
    rejoin_ms = record.rejoin_ms
    if record.static and record.phase == MemberPhase.ACTIVE:
        rejoin_ms = record.rejoin_timeout_ms
    fencing = msgspec.structs.replace(record, rejoin_ms=0 if replaced else rejoin_ms)
    draft.move_member(fencing, MemberPhase.FENCING, reason)
    draft.observations.phase_ms[record.incarnation] = draft.now_ms
    draft.observations.news.append(f"{display_name(record)} died")
    for task in draft.group.owned(record.incarnation):
        committed = _reported_offsets(draft, record, task)
        draft.await_fence(task, f"{display_name(record)}: {reason}", committed)


def _end_fence(draft: Draft, record: MemberRecord) -> None:
    fenced = draft.move_member(record, MemberPhase.FENCED, record.reason)
    for task in draft.group.owned(record.incarnation):
        draft.release_by_fence(task)
    if not record.rejoin_ms:
        _forget(draft, fenced, record.reason)
    else:
        _await_return(draft, fenced, record.reason)


def _reported_offsets(draft: Draft, owner: MemberRecord, task: TaskId) -> Positions:
    row = draft.observations.of(owner.incarnation).rows.get(task)
    if row is None or (row.role, row.epoch) != (
        TaskRole.ACTIVE,
        draft.group.states[task].task_epoch,
    ):
        return {}
    return row.committed


def pending_fences(draft: Draft) -> Iterator[Fence]:
    """Yield fences to start now, task owners first, at most `fences_at_once` in flight."""
    requested = draft.observations.fence_requested_ms
    waiting: list[tuple[bool, str]] = []
    in_flight = 0
    for incarnation, record in draft.group.members.items():
        if record.phase != MemberPhase.FENCING:
            continue
        since_ms = requested.get(incarnation)
        if since_ms is not None and not draft.due_or_schedule(since_ms + FENCE_AGAIN_MS):
            in_flight += 1
        else:
            waiting.append((not draft.group.owned(incarnation), incarnation))
    for _, incarnation in sorted(waiting)[: max(draft.settings.fences_at_once - in_flight, 0)]:
        requested[incarnation] = draft.now_ms
        ids = draft.group.members[incarnation].transactional_ids
        yield Fence(incarnation=incarnation, transactional_ids=ids)


def process_leaves(draft: Draft) -> None:
    for record in draft.live().values():
        wish = _pending_leave(draft, record)
        if wish is not None:
            _begin_leave(draft, record, wish)
    for record in draft.live().values():
        if record.phase == MemberPhase.LEAVING and not draft.group.owned(record.incarnation):
            if record.rejoin_ms:
                _await_return(draft, record, "restarts")
            else:
                _forget(draft, record, "left")


def shut_down(draft: Draft) -> None:
    """Order a shutdown for all current incarnations once one asks; later joins are unaffected."""
    for asking in draft.live().values():
        wanted = draft.observations.of(asking.incarnation).shutdown
        if not wanted or asking.shutdown:
            continue
        reason = f"{asking.member}: {wanted}"
        for record in draft.live().values():
            if not record.shutdown:
                draft.write(
                    msgspec.structs.replace(record, leader_epoch=draft.epoch, shutdown=reason)
                )


def _pending_leave(draft: Draft, record: MemberRecord) -> Leave | None:
    heard = draft.observations.of(record.incarnation)
    drain = draft.observations.drains.get(record.incarnation)
    wish = heard.leave
    if wish is None and drain is not None and record.phase != MemberPhase.LEAVING:
        wish = Leave(
            app=drain.app,
            member=record.member,
            incarnation=record.incarnation,
            drain_ms=max(drain.drain_ms, 1),
        )
    if wish is None or record.phase != MemberPhase.LEAVING:
        return wish
    # Only a more urgent request changes a leaving member.
    is_immediate = wish.rejoin or not wish.drain_ms
    return wish if is_immediate and record.drain_ms else None


def _begin_leave(draft: Draft, record: MemberRecord, wish: Leave) -> None:
    leaving = msgspec.structs.replace(
        record,
        drain_ms=0 if wish.rejoin else wish.drain_ms,
        rejoin_ms=record.rejoin_timeout_ms if wish.rejoin else 0,
    )
    reason = "restarts" if wish.rejoin else "drains" if wish.drain_ms else "leaves"
    if record.phase != MemberPhase.LEAVING:
        draft.observations.phase_ms[record.incarnation] = draft.now_ms
        draft.observations.news.append(f"{display_name(record)} {reason}")
    draft.move_member(leaving, MemberPhase.LEAVING, reason)
    draft.observations.drains.pop(record.incarnation, None)


def log_transactional_ids(draft: Draft) -> None:
    """Log transactional ids before their first use: only logged ones are fenced."""
    for incarnation, record in draft.live().items():
        wanted = draft.observations.of(incarnation).ids_wanted
        new = [
            transactional_id
            for _, transactional_id in sorted(wanted.items())
            if transactional_id not in record.transactional_ids
        ]
        wanted.clear()
        if new:
            ids = (*record.transactional_ids, *new)
            draft.write(
                msgspec.structs.replace(record, leader_epoch=draft.epoch, transactional_ids=ids)
            )


def _await_return(draft: Draft, record: MemberRecord, reason: str) -> None:
    draft.move_member(record, MemberPhase.GONE, reason)
    draft.observations.phase_ms[record.incarnation] = draft.now_ms
    draft.observations.forget(record.incarnation)


def _forget(draft: Draft, record: MemberRecord, reason: str) -> None:
    record_gone = msgspec.structs.replace(record, rejoin_ms=0, drain_ms=0)
    draft.move_member(record_gone, MemberPhase.GONE, reason)
    draft.observations.phase_ms.pop(record.incarnation, None)
    draft.observations.forget(record.incarnation)
    if record.phase != MemberPhase.FENCED:
        draft.observations.news.append(f"{display_name(record)} {reason}")
