"""Group log transactions of commands that change a group from outside."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from msgspec.structs import replace

from tidewheel.rebalance.model import TaskPhase
from tidewheel.rebalance.protocol.group import Group, IntermediateAssignment, snapshot
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim, TaskRecord

#: Command that claims the leadership to write a step.
Command = Literal["backfill", "bootstrap", "rest", "resume"]
_COMMANDS: Final = frozenset(get_args(Command))


def command_leader(command: Command, run_id: str) -> str:
    """Return the leader id of a command's run. Those of watchdogs begin with hexadecimal digits.

    >>> command_leader("rest", "4f0c")
    'rest-4f0c'
    """
    return f"{command}-{run_id}"


def is_command_leader(leader: str) -> bool:
    """Return true if a command has claimed the leadership under this id.

    >>> is_command_leader("rest-4f0c"), is_command_leader("4f0c8a2b9d3e7f61-8d3e7f61")
    (True, False)
    """
    command, _, run_id = leader.partition("-")
    return bool(run_id) and command in _COMMANDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """Content of the command's leadership claims: its own id, and the control topics' ids."""

    leader: str
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])


def log_step(group: Group, claimant: Claimant) -> list[AnyRecord]:
    """Return the transaction that claims the next leader epoch and writes a group."""
    epoch = group.leader_epoch + 1
    claim = LeaderClaim(
        leader_epoch=epoch,
        leader=claimant.leader,
        previous_epoch=group.leader_epoch,
        topic_ids=dict(claimant.topic_ids) or dict(group.topic_ids),
    )
    return [claim, *snapshot(group, epoch)]


def without_members(group: Group, reason: str) -> Group:
    """Return a group without its members, which the caller has fenced, and their copies.

    Tasks are released without the offsets that their next owner checks.
    """
    ended = tuple(dict.fromkeys((*group.ended, *group.members)))
    step = IntermediateAssignment(
        group_epoch=group.step.group_epoch, step_epoch=group.step.step_epoch
    )
    states = {task: _released(state, reason) for task, state in group.states.items()}
    return replace(group, members={}, ended=ended, step=step, states=states)


def _released(state: TaskRecord, reason: str) -> TaskRecord:
    if state.phase == TaskPhase.UNOWNED:
        return state
    return replace(
        state,
        phase=TaskPhase.RELEASED.value,
        owner=None,
        member=None,
        next_member=None,
        event="RELEASED",
        reason=reason,
        input={},
        changelog_end={},
        source="fence",
        deadline_ms=0,
    )
