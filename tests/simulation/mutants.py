"""Mutants: each lacks one rule, and an invariant catches it at the given seed.

A mutant replaces a function of the product or a rule of the model worker. If no lifetime notices,
the rule is unnecessary or untested. `python -m tests.simulation --mutants` searches for seeds.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.simulation.model import leading
from tests.simulation.model.leading import LEADER_ID, Leading
from tests.simulation.model.model_tasks import Part, Rules
from tests.simulation.model.world import Violation
from tests.simulation.scenario import draw
from tests.simulation.simulator import Simulation
from tests.simulation.workload import TaskNames
from tidewheel.rebalance.assignors import sticky
from tidewheel.rebalance.leader import (
    compatibility,
    membership,
    observations,
    readiness,
    task_moves,
)
from tidewheel.rebalance.leader import coordinator as coordinator_module
from tidewheel.rebalance.leader.coordinator import Coordinator
from tidewheel.rebalance.leader.decision import Fence
from tidewheel.rebalance.leader.draft import Draft
from tidewheel.rebalance.leader.observations import Announced, Observations
from tidewheel.rebalance.model import MemberPhase, Positions, Shard, TaskId, TaskPhase
from tidewheel.rebalance.protocol import group as fold_rules
from tidewheel.rebalance.protocol import records as record_forms
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group, step_record
from tidewheel.rebalance.protocol.messages import GrantedOk, JoinGroup, Revoked
from tidewheel.rebalance.protocol.orders import RunTask
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    Copy,
    GroupRecord,
    MemberRecord,
    TaskRecord,
    record_key,
)
from tidewheel.rebalance.refine.refine import Refinement
from tidewheel.rebalance.refine.refine_input import Readiness
from tidewheel.state_stores.layout import restore
from tidewheel.streams.group import recovery
from tidewheel.tasks.kafka import internal_topics

#: Object, attribute, replacement.
Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A removed rule, with a seed that shows it."""

    rule: str  # Hole or invariant number.
    what: str
    seed: int
    more: tuple[str, ...] = ()  # Additional faults, for rules that rarely matter.
    rules: type[Rules] = Rules
    patches: tuple[Patch, ...] = ()
    shards: ShardCount = 1


@contextmanager
def removed(mutant: Mutant) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in mutant.patches]
    for owner, name, value in mutant.patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def caught(mutant: Mutant, seed: int) -> str:
    """Run a mutant's lifetime; return the violation, or ""."""
    with removed(mutant):
        try:
            Simulation(draw(seed, more=mutant.more, shards=mutant.shards), mutant.rules()).run()
        except Violation as error:
            return str(error)
    return ""


def search(lifetimes: int) -> int:
    """Print the first killing seed per mutant; return the number of survivors."""
    survivors = 0
    for mutant in MUTANTS:
        for seed in range(1, lifetimes + 1):
            found = caught(mutant, seed)
            if found:
                sys.stdout.write(f"{mutant.rule:14} seed {seed:5}: {found[:150]}\n")
                break
        else:
            survivors += 1
            sys.stdout.write(f"{mutant.rule:14} SURVIVES {lifetimes} lifetimes: {mutant.what}\n")
        sys.stdout.flush()
    return survivors


# The group log and its leaders.


def _claim_without_fencing(self: Leading) -> None:
    broker = self.world.broker

    def same_producer() -> int:
        epoch = broker.epochs.get(LEADER_ID)
        return broker.init(LEADER_ID, self.world.wall_ms()) if epoch is None else epoch

    self._ask(same_producer, self._inited)


_apply = fold_rules.apply


def _apply_any_epoch(group: Group, record: AnyRecord) -> Group:
    if 0 < record.leader_epoch < group.leader_epoch:
        record = msgspec.structs.replace(record, leader_epoch=group.leader_epoch)
    return _apply(group, record)


_record_keys = record_forms.record_keys


def _keys_without_epoch(records: list[AnyRecord]) -> list[bytes]:
    return [key.partition(b"/")[2] for key in _record_keys(records)]


def _one_key_per_record(records: list[AnyRecord]) -> list[bytes]:
    return [record_key(record) for record in records]


_coordinator_init = Coordinator.__init__


def _init_without_grace(self: Coordinator, group: Group, **given: Any) -> None:
    _coordinator_init(self, group, **given)
    self._observations.claimed_ms -= 60_000


def _init_forgets_fences(self: Coordinator, group: Group, **given: Any) -> None:
    _coordinator_init(self, group, **given)
    self._observations.fenced |= _being_fenced(group)


def _being_fenced(group: Group) -> set[str]:
    return {each for each, record in group.members.items() if record.phase == MemberPhase.FENCING}


_bury = membership.fence_dead_members


def _bury_unfenced(draft: Draft) -> None:
    _bury(draft)
    draft.observations.fenced |= _being_fenced(draft.group)
    _bury(draft)


_fences_due = membership.pending_fences


def _fences_first_ids(draft: Draft) -> Iterator[Fence]:
    for fence in _fences_due(draft):
        yield Fence(incarnation=fence.incarnation, transactional_ids=fence.transactional_ids[:1])


def _release_unasked(draft: Draft) -> None:
    for task, state in draft.group.states.items():
        if state.phase == TaskPhase.REVOKING:
            draft.release_by_ack(task, {}, {})


_grant = Draft.grant


def _grant_same_epoch(self: Draft, task: TaskId, owner: MemberRecord, reason: str) -> None:
    _grant(self, task, owner, reason)
    record = self.group.states[task]
    if record.task_epoch > 1:
        del self.records[-1]
        self.write(msgspec.structs.replace(record, task_epoch=record.task_epoch - 1))


_read = Leading._read


def _claim_same_epoch(self: Leading, answer: tuple[Group, int]) -> None:
    group, offset = answer
    if group.leader_epoch > 0:
        group = msgspec.structs.replace(group, leader_epoch=group.leader_epoch - 1)
    _read(self, (group, offset))


_release_task = Draft._release


def _fence_forgets_floor(
    self: Draft, before: TaskRecord, source: str, committed: Positions, changelog_end: Positions
) -> None:
    if source == "fence":
        before = msgspec.structs.replace(before, input={})
    _release_task(self, before, source, committed, changelog_end)


_let_leave = membership.process_leaves


def _leave_immediately(draft: Draft) -> None:
    _let_leave(draft)
    for record in draft.live().values():
        if record.phase == MemberPhase.LEAVING:
            membership._forget(draft, record, "left")


def _leave_by_fence(draft: Draft) -> None:
    _let_leave(draft)
    for record in list(draft.live().values()):
        if record.phase == MemberPhase.LEAVING and draft.group.owned(record.incarnation):
            membership._begin_fence(draft, record, "it leaves")


def _expelled_immediately(draft: Draft) -> frozenset[str]:
    live = draft.live().values()
    return frozenset(each.member for each in live if each.phase == MemberPhase.LEAVING)


# Copies.


def _bury_with_owners(draft: Draft) -> None:
    _bury(draft)
    for task, copy in draft.group.step.learners.items():
        learner = draft.group.members.get(copy.incarnation)
        over = learner is None or learner.phase == MemberPhase.FENCING
        if over and draft.group.phase_of(task) == TaskPhase.RUNNING:
            draft.revoke(task, None, "its learner is over", draft.settings.revoke_timeout_ms)


def _same_epoch_continues(before: Announced, now: Announced) -> bool:
    return before.learn_epoch == now.learn_epoch


def _believed(draft: Draft, announced: Announced) -> bool:
    return True


def _any_copy_is_ready(draft: Draft, task: TaskId, copy: Copy) -> Readiness:
    return Readiness.READY


def _copy_of_any_epoch(group: Group, task: TaskId, incarnation: str, learn_epoch: int) -> bool:
    return any(copy.incarnation == incarnation for copy in group.step.copies(task))


def _announced_under_any_epoch(draft: Draft, task: TaskId, copy: Copy) -> Announced | None:
    return draft.observations.announced.get(task, {}).get(copy.incarnation)


# Targets.

_owned = sticky._Kind._owned


def _loses_a_task(self: sticky._Kind) -> dict[str, list[TaskId]]:
    """Drop one of a member's tasks."""
    owned = _owned(self)
    for tasks in owned.values():
        if len(tasks) > 1:
            tasks.pop()
            break
    return owned


_write_step = task_moves._write_step


def _keeps_while_fenced(draft: Draft, intermediate: Refinement) -> None:
    """Give fenced owners a copy of their tasks."""
    _write_step(draft, intermediate)
    step = draft.group.step
    standbys = dict(step.standbys)
    for task, state in draft.group.states.items():
        if state.phase == TaskPhase.FENCE_WAIT and state.owner is not None:
            own = Copy(incarnation=state.owner, learn_epoch=step.step_epoch + 1)
            if own.incarnation not in {each.incarnation for each in standbys.get(task, ())}:
                standbys[task] = (*standbys.get(task, ()), own)
    if standbys != step.standbys:
        fresh = msgspec.structs.replace(step, standbys=standbys)
        draft.write(step_record(fresh, draft.epoch, step.step_epoch + 1))


# Messages.


def _record_task_of_any_member(
    self: Observations, message: Revoked | GrantedOk, group: Group
) -> bool:
    task = TaskId.parse(message.task)
    if isinstance(message, Revoked):
        self.revoked[task] = message
    else:
        self.running[task] = message.task_epoch
    return True


def _accept_any_acks(draft: Draft) -> None:
    for task, message in list(draft.observations.revoked.items()):
        state = draft.group.states.get(task)
        if state is not None and state.phase == TaskPhase.REVOKING:
            del draft.observations.revoked[task]
            draft.release_by_ack(task, message.input, message.changelog_end)


# Recovery.


def _no_epoch(*found: Any) -> int:
    return 0


def _any_member(join: JoinGroup, about: GroupRecord) -> None:
    return None


# Workers.


class _CarriesOnFenced(Rules):
    @staticmethod
    def fenced_ends_incarnation() -> bool:
        return False


class _NeverRetires(Rules):
    @staticmethod
    def retire(*, suspicious: bool) -> bool:
        return False


class _DoesNotReadOn(Rules):
    @staticmethod
    def read_until(order: RunTask, names: TaskNames, end_at_open: int) -> int:
        return 0


class _AcceptsPendingOffsets(Rules):
    @staticmethod
    def stable_offsets() -> bool:
        return False


class _TrustsItsConsumer(Rules):
    @staticmethod
    def start(explicit: int, remembered: int | None) -> int:
        return explicit if remembered is None else remembered


class _WaitsForTheLastRecord(Rules):
    @staticmethod
    def restored(position: int, until: int, last_record: int) -> bool:
        return last_record >= until - 1


class _ContinuesAfterRelease(Rules):
    @staticmethod
    def stops_after_release() -> bool:
        return False


class _NeedsNoLease(Rules):
    @staticmethod
    def may_read_input(lease_left: int | None) -> bool:
        return True


class _WaitsForOthers(Rules):
    @staticmethod
    def runs_independently(*, others_restore: bool) -> bool:
        return not others_restore


class _KeepsTheCopyItRuns(Rules):
    @staticmethod
    def promotes_in_place() -> bool:
        return False


class _CommitsWhereItWas(Rules):
    @staticmethod
    def offset_to_commit(part: Part) -> int:
        return max(part.active.committed - 3, 0)


class _ReleasesUncommitted(Rules):
    @staticmethod
    def commits_before_release() -> bool:
        return False


class _AppliesBeforeCommit(Rules):
    @staticmethod
    def applies_after_commit() -> bool:
        return False


# Shards.


def _any_shards(*given: Any) -> str:
    return ""


def _shards_left_out(values: Mapping[TaskId, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {str(task): value for task, value in values.items() if task.shard.is_whole}, {}


class _LastShardMissing(Shard):
    @staticmethod
    def all_of(count: int) -> tuple[Shard, ...]:
        return Shard.all_of(count)[: max(count - 1, 1)]


_snapshot = fold_rules.snapshot


def _snapshot_of_whole_tasks(group: Group, leader_epoch: int) -> list[AnyRecord]:
    states = {task: state for task, state in group.states.items() if task.shard.is_whole}
    return _snapshot(msgspec.structs.replace(group, states=states), leader_epoch)


def _group_of_all_shards(application_id: str, shard: Shard) -> str:
    return application_id


def _whole_task(text: str) -> TaskId:
    return TaskId.parse(text).whole


class _RestoresAllRows(Rules):
    @staticmethod
    def restores(names: TaskNames, key: int) -> bool:
        return True


_restore_start = restore.restore_start


def _any_age(position: Any, *, now_ms: int, **given: Any) -> Any:
    return _restore_start(
        position, now_ms=now_ms if position is None else position.written_at_ms, **given
    )


def _patch(owner: Any, name: str, value: Callable[..., Any]) -> Patch:
    return (owner, name, value)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "H1", "a new leader fences the old one", 1, more=("stop_leader",) * 3,
        patches=(_patch(Leading, "claim", _claim_without_fencing),),
    ),
    Mutant(
        "H1-reader", "readers ignore records of lower epochs", 2, more=("forged_record",) * 4,
        patches=(_patch(fold_rules, "apply", _apply_any_epoch),),
    ),
    Mutant(
        "H4", "keys begin with the leader epoch", 8, more=("forged_record",) * 6 + ("compact",) * 2,
        patches=(_patch(record_forms, "record_keys", _keys_without_epoch),),
    ),
    Mutant(
        "H4-snapshot", "each record of a snapshot has its own key", 1,
        patches=(_patch(record_forms, "record_keys", _one_key_per_record),),
    ),
    Mutant(
        "H5", "a new leader gives everybody a full session", 1,
        patches=(_patch(Coordinator, "__init__", _init_without_grace),),
    ),
    Mutant(
        "H6", "a dead owner's tasks wait for its fence", 1,
        patches=(_patch(coordinator_module, "fence_dead_members", _bury_unfenced),),
    ),
    Mutant(
        "H6-takeover", "a new leader fences FENCING members again", 7, more=("kill_leader_at_a_bad_time",) * 3 + ("kill_worker",) * 3,
        patches=(_patch(Coordinator, "__init__", _init_forgets_fences),),
    ),
    Mutant("H7", "a fence ends the incarnation", 32, more=("stop_host",) * 8, rules=_CarriesOnFenced),
    Mutant("H8", "a producer with a suspicious commit is retired", 13, more=("repeat_end",) * 4, rules=_NeverRetires),
    Mutant(
        "H13", "the leader reads end offsets itself", 1,
        patches=(_patch(readiness, "is_caught_up", _believed),),
    ),
    Mutant(
        "H13-epoch", "a READY counts for its learn epoch only", 2, more=("replay_messages",) * 4 + ("damage",) * 2,
        patches=(
            _patch(observations, "_is_copy", _copy_of_any_epoch),
            _patch(readiness, "find_announcement", _announced_under_any_epoch),
        ),
    ),
    Mutant("H14", "a new owner reads the changelog to its end", 1, rules=_DoesNotReadOn),
    Mutant("H15", "a pending offset is waited for", 3, more=("slow_network",) * 2 + ("bounce",) * 2, rules=_AcceptsPendingOffsets),
    Mutant(
        "H15-floor", "a fence keeps the offsets that were left before", 2,
        patches=(_patch(Draft, "_release", _fence_forgets_floor),),
    ),
    Mutant("H16", "a partition is assigned with an explicit offset", 6, rules=_TrustsItsConsumer),
    Mutant(
        "H20", "an acknowledgement counts for its incarnation and epoch only", 3, more=("replay_messages",) * 8 + ("join",) * 2,
        patches=(
            _patch(Observations, "_task", _record_task_of_any_member),
            _patch(coordinator_module, "release_acknowledged", _accept_any_acks),
        ),
    ),
    Mutant(
        "H27", "a position older than the tombstones is not followed", 1, more=("long_night",) * 2 + ("kill_host",) * 3,
        patches=(_patch(restore, "restore_start", _any_age),),
    ),
    Mutant("H29", "a position ends a restore", 1, rules=_WaitsForTheLastRecord),
    Mutant(
        "invariant 1", "all transactional ids of an incarnation are fenced", 1, more=("lose_reply",) * 4 + ("kill_host",) * 4,
        patches=(_patch(coordinator_module, "pending_fences", _fences_first_ids),),
    ),
    Mutant("invariant 2", "an owner stops after its release", 1, rules=_ContinuesAfterRelease),
    Mutant(
        "invariant 3", "a task is released when its owner says so", 1,
        patches=(_patch(coordinator_module, "release_acknowledged", _release_unasked),),
    ),
    Mutant(
        "invariant 4", "every grant has a new epoch", 1,
        patches=(_patch(Draft, "grant", _grant_same_epoch),),
    ),
    Mutant(
        "invariant 5", "every claim has a new epoch", 1,
        patches=(_patch(Leading, "_read", _claim_same_epoch),),
    ),
    Mutant(
        "invariant 7", "a task continues while another task of its worker restores", 1,
        more=("join",) * 3 + ("slow_restore",) * 4 + ("kill_worker",) * 4, rules=_WaitsForOthers,
    ),
    Mutant(
        "invariant 8", "a copy without a report is not ready", 1,
        patches=(_patch(readiness, "_readiness", _any_copy_is_ready),),
    ),
    Mutant(
        "invariant 8-store", "an observation of one store does not count for the next", 3,
        more=("swap_stores",) * 30 + ("join",) * 3,
        patches=(_patch(observations, "_continues", _same_epoch_continues),),
    ),
    Mutant(
        "invariant 9", "a learner's death changes nothing for the owner", 8, more=("join",) * 2 + ("kill_worker",) * 4,
        patches=(_patch(coordinator_module, "fence_dead_members", _bury_with_owners),),
    ),
    Mutant("invariant 11", "committed offsets follow the outputs", 1, rules=_CommitsWhereItWas),
    Mutant("invariant 12", "an owner commits before it releases", 1, rules=_ReleasesUncommitted),
    Mutant("invariant 14", "stores are written after the commit", 3, more=("kill_worker",) * 3 + ("cut_off",) * 2, rules=_AppliesBeforeCommit),
    Mutant(
        "invariant 16", "a leaving member stays until its tasks are released", 1,
        patches=(_patch(coordinator_module, "process_leaves", _leave_immediately),),
    ),
    Mutant(
        "invariant 16-fence", "who leaves is drained, not fenced", 1, more=("drain",) * 2,
        patches=(_patch(coordinator_module, "process_leaves", _leave_by_fence),),
    ),
    Mutant(
        "invariant 16-cold", "who drains keeps its tasks until others are ready", 1, more=("drain",) * 2,
        patches=(_patch(task_moves, "_expelled", _expelled_immediately),),
    ),
    Mutant(
        "invariant 17", "a group that was set up again waits for its program", 15, more=("lose_topics",),
        patches=(_patch(compatibility, "_pin_refusal", _any_member),),
    ),
    Mutant(
        "invariant 20", "what makes no load smaller is not moved", 1, more=("join",) * 2 + ("leave",) * 2,
        patches=(_patch(sticky._Kind, "_owned", _loses_a_task),),
    ),
    Mutant("invariant 22", "a copy is promoted in place", 1, rules=_KeepsTheCopyItRuns),
    Mutant(
        "invariant 22-fence", "an owner that is being fenced keeps no copy", 1,
        patches=(_patch(task_moves, "_write_step", _keeps_while_fenced),),
    ),
    Mutant("invariant 24", "without a lease no input is taken", 1, more=("lose_topics",), rules=_NeedsNoLease),
    Mutant(
        "invariant 24-epoch", "a recovery begins above every epoch that has committed", 1, more=("lose_topics",),
        patches=(_patch(recovery, "_highest_epoch", _no_epoch),),
    ),
    Mutant(
        "shards-admission", "all members share partitions in one way", 1, more=("misfit",) * 6, shards=2,
        patches=(_patch(compatibility, "shards_problem", _any_shards),),
    ),
    Mutant(
        "shards-target", "a target has the shards", 1, shards=2,
        patches=(_patch(fold_rules, "whole_and_shards", _shards_left_out),),
    ),
    Mutant(
        "shards-tiling", "the shards of a task tile all hashes", 1, shards=4,
        patches=(_patch(fold_rules, "Shard", _LastShardMissing),),
    ),
    Mutant(
        "shards-snapshot", "a new leader writes the shards again", 1, shards=2,
        patches=(_patch(leading, "snapshot", _snapshot_of_whole_tasks),),
    ),
    Mutant(
        "shards-offsets", "each shard commits to a group of its own", 1, shards=2,
        patches=(_patch(internal_topics, "offsets_group", _group_of_all_shards),),
    ),
    Mutant(
        "shards-messages", "a message counts for its shard", 1, shards=2,
        patches=(_patch(observations, "_task_id", _whole_task),),
    ),
    Mutant("shards-rows", "a shard restores its own rows", 1, shards=2, rules=_RestoresAllRows),
)  # fmt: skip
