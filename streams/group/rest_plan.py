"""Rest of an application: whether it has come to rest, and the next step towards it. Pure.

At rest, all outputs of records below the committed offsets of external inputs are committed, and no
record at or above them has had any effect.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidewheel.rebalance.leader.resting import is_held_at_rest
from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TaskPhase, TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.tasks.kafka.internal_topics import is_internal
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RestFacts:
    """Facts about an application, in the order in which they must be read.

    Attributes:
        live_members: Members heard recently, or workers with a fixed assignment.
        statuses: Last status of each task at each incarnation.
        committed: Offsets of all its groups: those of whole partitions, and of all shards.
        ends: End of each internal input (log end, not the last stable offset). Without a group log
            of topics whose names show that they are internal inputs.
    """

    application_id: str
    group: Group
    live_members: tuple[str, ...] = ()
    statuses: Mapping[str, Mapping[TaskId, TaskStatus]] = field(
        default_factory=dict[str, Mapping[TaskId, TaskStatus]]
    )
    committed: Mapping[TopicPartition, CommittedOffset] = field(
        default_factory=dict[TopicPartition, CommittedOffset]
    )
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProgress:
    """Committed progress of one input partition: all its shards and key ranges.

    Attributes:
        lowest: All records below it are processed.
        highest: No record from it on is processed.
    """

    lowest: int
    highest: int


class RestStep(StrEnum):
    """Next step of `tidewheel group rest`.

    ORDER: write the order to rest. WAIT: members work on it. LEVEL: order them to read partitions
    up to where their fastest shards and key ranges are. HOLD: fence the members, check again, and
    hold the group. DONE: it is held at rest.
    """

    ORDER = "order"
    WAIT = "wait"
    LEVEL = "level"
    HOLD = "hold"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestPlan:
    """A step, with the reasons for it and the offsets of LEVEL by partition."""

    step: RestStep
    reasons: tuple[str, ...] = ()
    until: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


def inputs_of(group: Group, committed: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the input partitions of an application: those in its group log, else the committed."""
    listed = {
        TopicPartition(topic, number)
        for topic, count in group.about.partitions.items()
        for number in range(count)
    }
    return sorted(listed or {at.whole for at in committed})


def reasons_against_rest(facts: RestFacts) -> tuple[str, ...]:
    """Return why an application is not at rest; empty if it is.

    It is at rest if its group is held at rest, or no worker is alive, and all its internal topics
    are processed to their ends.
    """
    if facts.live_members and not is_held_at_rest(facts.group):
        return (
            f"workers are alive: {', '.join(facts.live_members)}; run `tidewheel group rest {facts.application_id}`, or stop them",
        )
    return unprocessed(facts)


def unprocessed(facts: RestFacts) -> tuple[str, ...]:
    """Return the input between the committed offsets and rest, as texts."""
    return (*_unfinished(facts), *_unlevel(facts))


def cut_of(facts: RestFacts) -> dict[TopicPartition, int]:
    """Return the committed offset of each external input: of all, if the application is at rest."""
    return {at: progress.lowest for at, progress in _external(facts).items()}


def plan_rest(facts: RestFacts) -> RestPlan:
    """Return the next step; the first row that applies counts.

    | group | step |
    |---|---|
    | held at rest | DONE |
    | held for another reason | WAIT |
    | without an order to rest | ORDER |
    | members are alive, and a task has not confirmed the order | WAIT |
    | shards or key ranges of an external input differ | LEVEL, once; then WAIT |
    | an internal topic has unprocessed records | WAIT |
    | else | HOLD |
    """
    rest = facts.group.about.rest
    if is_held_at_rest(facts.group):
        return RestPlan(step=RestStep.DONE)
    if facts.group.about.held:
        reason = f"the group decides nothing: {facts.group.about.held}"
        return RestPlan(step=RestStep.WAIT, reasons=(reason,))
    if rest is None:
        return RestPlan(step=RestStep.ORDER)
    waits = _unconfirmed(facts, rest.epoch) if facts.live_members else []
    if not waits and (unlevel := _unlevel(facts)):
        if not rest.until:
            return RestPlan(step=RestStep.LEVEL, reasons=tuple(unlevel), until=_highest(facts))
        waits = unlevel
    waits += _unfinished(facts)
    if waits and not facts.live_members:
        waits.insert(0, "no member is running: start the application, which finishes this")
    return RestPlan(step=RestStep.WAIT if waits else RestStep.HOLD, reasons=tuple(waits))


def _unconfirmed(facts: RestFacts, epoch: int) -> list[str]:
    """Return the tasks whose owners have not confirmed that all is committed that they took."""
    group, reasons = facts.group, list[str]()
    for task in sorted(group.tasks):
        state = group.states.get(task)
        owner = None if state is None or state.owner is None else group.members.get(state.owner)
        if state is None or owner is None or state.phase != TaskPhase.RUNNING:
            reasons.append(f"task {task} has no owner at the moment")
            continue
        status = facts.statuses.get(owner.incarnation, {}).get(task)
        if status is None or (status.rest, status.epoch) != (epoch, state.task_epoch):
            reasons.append(f"task {task} of {display_name(owner)} has not come to rest")
    return reasons


def _unlevel(facts: RestFacts) -> list[str]:
    return [
        f"{at}: shards or key ranges are between offsets {progress.lowest} and {progress.highest}"
        for at, progress in _external(facts).items()
        if progress.lowest != progress.highest
    ]


def _highest(facts: RestFacts) -> dict[TopicPartition, int]:
    return {at: progress.highest for at, progress in _external(facts).items()}


def _external(facts: RestFacts) -> dict[TopicPartition, InputProgress]:
    return {
        at: progress
        for at in inputs_of(facts.group, facts.committed)
        if not is_internal(at.topic, facts.application_id)
        and (progress := _known_progress(facts, at)) is not None
    }


def _unfinished(facts: RestFacts) -> list[str]:
    """Return inputs without a committed offset, and internal topics with unprocessed records."""
    reasons: list[str] = []
    for at in inputs_of(facts.group, (*facts.committed, *facts.ends)):
        try:
            progress = _progress(facts, at)
        except ValueError as problem:
            reasons.append(f"{at}: {problem}")
            continue
        end = facts.ends.get(at, 0)
        if is_internal(at.topic, facts.application_id) and progress.lowest < end:
            behind = end - progress.lowest
            text = "1 offset is" if behind == 1 else f"{behind:,} offsets are"
            reasons.append(f"{at}: {text} not processed")
    return reasons


def _known_progress(facts: RestFacts, at: TopicPartition) -> InputProgress | None:
    try:
        return _progress(facts, at)
    except ValueError:
        return None


def _progress(facts: RestFacts, at: TopicPartition) -> InputProgress:
    """Return the progress of one partition; raise ValueError if offsets are missing."""
    own = facts.committed.get(at)
    if own is None:
        raise ValueError("no offset is committed")
    progress = _decoded(own)
    offsets = [own]
    if progress is not None and progress.shards > 1:
        shards = Shard.all_of(progress.shards)
        offsets = [
            offset for shard in shards if (offset := facts.committed.get(ShardInput.of(at, shard)))
        ]
        if len(offsets) < progress.shards:
            raise ValueError(
                f"{progress.shards - len(offsets)} of {progress.shards} shards have not committed"
            )
    decoded = [(offset.offset, _decoded(offset)) for offset in offsets]
    return InputProgress(
        lowest=min(offset for offset, _ in decoded),
        highest=max(
            offset if vector is None else vector.highest_offset for offset, vector in decoded
        ),
    )


def _decoded(offset: CommittedOffset) -> Progress | None:
    """Return our progress; None for an offset of another program, which has no key ranges."""
    return Progress.decode(offset.metadata, committed_offset=offset.offset)
