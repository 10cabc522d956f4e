"""Repair of a contradictory group log before a new leader writes its snapshot.

Leaders write no contradiction, but anyone with write access to the state topic can. Rules for the
repair: release no task without a fence, lower no epoch.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.leader.bootstrapping import BOOTSTRAP_HOLD
from tidewheel.rebalance.leader.compatibility import PARTITIONS_HOLD
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase
from tidewheel.rebalance.producer_ids import group_id, is_group_id, own_ids
from tidewheel.rebalance.protocol.group import LIVE, Group
from tidewheel.rebalance.protocol.records import MemberRecord, TaskRecord

#: If an incarnation has no logged transactional ids, the leader fences its ids numbered below this.
#: A worker uses the next number only after a commit of unknown outcome.
_IDS_FENCED: Final = 8

#: Leaders start `GroupRecord.held` with one of these; the repair removes any other text.
_HOLD_PREFIXES: Final = (PARTITIONS_HOLD, BOOTSTRAP_HOLD, "SAFE_HOLD")


class RepairedGroup(msgspec.Struct, frozen=True):
    group: Group
    contradictions: tuple[str, ...] = ()


def repair_group(group: Group, *, app: str, heard: Collection[str] = ()) -> RepairedGroup:
    """Return a consistent group: for example, the owner of a task must be a member.

    `heard` lists incarnations, the last heard at the end. `app` forms the transactional ids of
    members whose records are lost, to fence them.
    """
    contradictions: list[str] = []
    members = dict(_with_ids(group.members, app, contradictions))
    fences = _doubtful_owners(group, members, heard, contradictions)
    for incarnation, name in fences.items():
        members[incarnation] = _to_fence(members.get(incarnation), incarnation, name, app)
    states = {
        task: _with_phase(task, state, members, contradictions)
        for task, state in group.states.items()
    }
    about = group.about
    if contradictions:
        group = replace(group, members=members, states=states)
    if about.held and not about.held.startswith(_HOLD_PREFIXES):
        contradictions.append("the group was held for a reason that no leader writes")
        about = replace(about, held="")
    if about.pinned and (group.members or group.target.group_epoch):
        contradictions.append(
            "the group waits for the first member of a program, but has had members"
        )
        about = replace(about, pinned=False)
    if about is not group.about:
        group = replace(group, about=about)
    return RepairedGroup(group, tuple(contradictions))


def _with_ids(
    members: Mapping[str, MemberRecord], app: str, contradictions: list[str]
) -> Iterator[tuple[str, MemberRecord]]:
    """Yield all members. Those without transactional ids get derived ones: fencing needs ids."""
    for incarnation, record in members.items():
        if any(
            is_group_id(transactional_id, app, incarnation)
            for transactional_id in record.transactional_ids
        ):
            yield incarnation, record
        else:
            if not own_ids(app, record.transactional_ids):
                contradictions.append(f"member {record.member} is logged without transactional ids")
            yield incarnation, _with_first_ids(record, app)


def _with_first_ids(record: MemberRecord, app: str) -> MemberRecord:
    ids = (group_id(app, record.incarnation, number) for number in range(_IDS_FENCED))
    return replace(
        record, transactional_ids=tuple(dict.fromkeys((*record.transactional_ids, *ids)))
    )


def _doubtful_owners(
    group: Group,
    members: Mapping[str, MemberRecord],
    heard: Collection[str],
    contradictions: list[str],
) -> dict[str, str]:
    fences: dict[str, str] = {}
    for incarnation, record in members.items():
        if record.phase in (MemberPhase.JOINING, MemberPhase.FENCED):
            contradictions.append(
                f"member {record.member} is logged as {record.phase}, a phase that no transaction leaves behind"
            )
            fences[incarnation] = record.member
    contradictions += _namesakes(members, heard, fences)
    for task, state in group.states.items():
        owner = state.owner
        if owner is None or owner in fences:
            continue
        owner_record = members.get(owner)
        if owner_record is None:
            contradictions.append(
                f"task {task} is {state.phase} at an incarnation that is no member"
            )
            fences[owner] = state.member or owner
        elif owner_record.phase in LIVE:
            if state.phase == TaskPhase.FENCE_WAIT:
                contradictions.append(
                    f"task {task} waits for a fence of {owner_record.member}, which is {owner_record.phase}"
                )
                fences[owner] = owner_record.member
        elif owner_record.phase != MemberPhase.FENCING:
            contradictions.append(
                f"task {task} is {state.phase} at {owner_record.member}, which is {owner_record.phase}"
            )
            fences[owner] = owner_record.member
    return fences


def _namesakes(
    members: Mapping[str, MemberRecord], heard: Collection[str], fences: dict[str, str]
) -> Iterator[str]:
    """Fence live incarnations that share a name, except the one heard last; yield contradictions."""
    by_name: dict[str, list[str]] = {}
    for incarnation, record in members.items():
        if record.phase in LIVE:
            by_name.setdefault(record.member, []).append(incarnation)
    last = {incarnation: at for at, incarnation in enumerate(heard)}
    for name, incarnations in by_name.items():
        if len(incarnations) == 1:
            continue
        yield f"member {name} is logged with {len(incarnations)} live incarnations"
        last_heard = max(incarnations, key=lambda incarnation: last.get(incarnation, -1))
        fences |= {
            incarnation: name
            for incarnation in incarnations
            if incarnation != last_heard or incarnation not in last
        }


def _to_fence(record: MemberRecord | None, incarnation: str, name: str, app: str) -> MemberRecord:
    if record is None:
        lost = MemberRecord(leader_epoch=0, member=name, incarnation=incarnation, phase="FENCING")
        record = _with_first_ids(lost, app)
    return replace(
        record,
        phase=MemberPhase.FENCING.value,
        rejoin_ms=0,
        drain_ms=0,
        reason="the group log contradicts itself about it",
    )


def _with_phase(
    task: TaskId, state: TaskRecord, members: Mapping[str, MemberRecord], contradictions: list[str]
) -> TaskRecord:
    if state.owner is None:
        return state
    owner = members[state.owner]
    if owner.phase == MemberPhase.FENCING and state.phase != TaskPhase.FENCE_WAIT:
        contradictions.append(
            f"task {task} is {state.phase} at {owner.member}, which is being fenced"
        )
        state = replace(state, phase=TaskPhase.FENCE_WAIT.value, event="FENCE_WAIT")
    if state.member != owner.member:
        contradictions.append(f"task {task} names another member than its owner's, {owner.member}")
        state = replace(state, member=owner.member)
    return state
