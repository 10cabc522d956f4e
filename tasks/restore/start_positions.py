"""Start positions of tasks, from committed offsets and the log."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Final, TypeGuard

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.producer_ids import own_ids, own_ids_outside_groups
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.commit_facts import CommitFacts
from tidewheel.tasks.errors import MissingSourceTopicError, OutdatedGrantError, StartRefusedError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, absence
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import committed_by_shards, committed_inputs, of_inputs
from tidewheel.tasks.key_ranges.key_ranges import KEY_HASH
from tidewheel.tasks.key_ranges.progress_vector import Progress, partition_time_of_kafka_streams
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.api.topology_spec import OffsetReset
from tidewheel.tasks.restore.offset_origin import (
    GroupOffsets,
    Origin,
    StartRules,
    check_names,
    floor_text,
    lost_text,
    origin_of_commit,
    origin_of_foreign,
    origin_without_offset,
)

_log = logging.getLogger(__name__)

#: Maximum partitions named in one log line.
_NAMED: Final = 5


class StartPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Start offset of one input partition, and the stream time there (-1 if unknown)."""

    offset: int
    partition_time_ms: int = -1
    committed: bool = False
    #: Progress of the last commit; None without a commit of ours.
    progress: Progress | None = None
    by_kafka_streams: bool = False
    origin: Origin = Origin()


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Terms under which a worker owns a task.

    Attributes:
        task_epoch: Number of the task's owners so far; 0 under fixed assignment.
        input: The last owner's offsets: lower bounds of the start.
        changelog_end: Offsets to restore to; by default the log's end.
    """

    task_epoch: int = 0
    input: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict[TopicPartition, int])
    changelog_end: Mapping[TopicPartition, int] = msgspec.field(
        default_factory=dict[TopicPartition, int]
    )

    @property
    def is_exact(self) -> bool:
        """Return False if a fenced owner may have committed more."""
        return bool(self.changelog_end)


def find_starts(
    plan: ApplicationPlan,
    assigned: Iterable[TaskId],
    *,
    admin: Admin,
    rules: StartRules,
    transactional_id: str,
    appeared: AbstractSet[TopicPartition] = frozenset(),
) -> tuple[dict[TopicPartition, StartPosition], dict[str, bytes]]:
    """Fence earlier workers of these tasks; return each input's start and topic id.

    Raises `StreamsError` if the group has subscribed members, and `StartRefusedError` where an
    input must not start.
    """
    group_id = rules.group_id
    members = admin.group_members(group_id)
    if members:
        raise StreamsError(
            f"consumer group {group_id} has {len(members)} subscribed members ({', '.join(members)}); the group belongs to this application: "
            "stop those consumers, or choose another application_id. Instances of Kafka Streams that were stopped stay "
            "members until their session.timeout.ms (45 s) is over, unless they were closed with LEAVE_GROUP"
        )
    assigned = list(assigned)
    inputs = inputs_of(plan, assigned)
    foreign = earlier_transactional_ids(
        group_id, committed_inputs(admin, group_id, inputs, stable=False), {transactional_id}
    )
    if foreign:
        _log.info("fencing earlier producers of these partitions: %s", ", ".join(foreign))
        admin.fence(foreign)
    committed = committed_inputs(admin, group_id, inputs, stable=True)
    _check_shards(inputs, committed, admin=admin, rules=rules)
    starts = of_inputs(admin.beginning_offsets, inputs)
    ends = of_inputs(admin.end_offsets, inputs)
    topic_ids = topic_ids_of(inputs, admin)
    tasks = dict.fromkeys(assigned, Grant())
    origins = _origins(plan, tasks, committed, admin=admin, rules=rules, appeared=appeared)
    positions = _positions(
        plan, inputs, committed, starts, ends, topic_ids, origins, rules=rules, admin=admin
    )
    return positions, topic_ids


def topic_ids_of(partitions: Iterable[TopicPartition], admin: Admin) -> dict[str, bytes]:
    topics = admin.describe_topics(sorted({partition.topic for partition in partitions}))
    return {name: topic.topic_id for name, topic in topics.items()}


def find_granted_starts(
    plan: ApplicationPlan,
    grants: Mapping[TaskId, Grant],
    *,
    admin: Admin,
    rules: StartRules,
    topic_ids: Mapping[str, bytes],
    appeared: AbstractSet[TopicPartition] = frozenset(),
) -> dict[TopicPartition, StartPosition]:
    """Return the start of each input of granted tasks; `topic_ids` has all their topics.

    The group has fenced earlier owners, except producers of fixed assignment (epoch 0), fenced
    here. Requests are few, because the task pauses meanwhile; so only the first fetch detects a
    committed offset outside the log. Raises `StartRefusedError` for a committed offset below the
    last owner's.
    """
    inputs = inputs_of(plan, grants)
    missing = sorted({partition.topic for partition in inputs}.difference(topic_ids))
    if missing:
        raise MissingSourceTopicError(
            f"{absence('source topic', missing)} (any more); create what is missing again and run `tidewheel reset`"
        )
    committed = committed_inputs(admin, rules.group_id, inputs, stable=True)
    fixed = own_ids_outside_groups(
        rules.group_id,
        (
            progress.transactional_id
            for progress in map(rules.own, committed.values())
            if progress is not None and not progress.task_epoch
        ),
    )
    if fixed:
        _log.info("fencing producers of fixed assignment: %s", ", ".join(fixed))
        admin.fence(fixed)
        committed = committed_inputs(admin, rules.group_id, inputs, stable=True)
    _check_shards(inputs, committed, admin=admin, rules=rules)
    for task, grant in grants.items():
        _check_grant(grant, plan.inputs(task), committed, rules)
    origins = _origins(plan, grants, committed, admin=admin, rules=rules, appeared=appeared)
    fresh = [partition for partition in inputs if not is_committed(committed.get(partition))]
    offsets = {partition: offset.offset for partition, offset in committed.items()}
    starts = of_inputs(admin.beginning_offsets, fresh) if fresh else {}
    without_end = [
        *fresh,
        *(partition for partition in inputs if _is_uneven(committed.get(partition))),
    ]
    ends = of_inputs(admin.end_offsets, without_end) if without_end else {}
    return _positions(
        plan,
        inputs,
        committed,
        {**offsets, **starts},
        {**offsets, **ends},
        topic_ids,
        origins,
        rules=rules,
        admin=admin,
    )


def _origins(
    plan: ApplicationPlan,
    grants: Mapping[TaskId, Grant],
    committed: Mapping[TopicPartition, CommittedOffset],
    *,
    admin: Admin,
    rules: StartRules,
    appeared: AbstractSet[TopicPartition],
) -> dict[TopicPartition, Origin]:
    inputs = inputs_of(plan, grants)
    progress_by_input = {partition: rules.own(committed.get(partition)) for partition in inputs}
    any_committed = any(map(is_committed, committed.values()))
    if not all(progress_by_input.values()):
        # Commits of other tasks show that the application ran before.
        other_inputs = sorted({*inputs_of(plan, plan.tasks)}.difference(inputs))
        other_offsets = committed_inputs(admin, rules.group_id, other_inputs, stable=False)
        progress_by_input |= {
            partition: rules.own(offset) for partition, offset in other_offsets.items()
        }
        any_committed = any_committed or any(map(is_committed, other_offsets.values()))
    offsets = GroupOffsets(
        plan=plan,
        facts={
            partition: CommitFacts.decode(offset.facts)
            for partition, offset in progress_by_input.items()
            if offset
        },
        appeared=appeared,
    )
    lost = [partition for partition in inputs if not is_committed(committed.get(partition))]
    if lost and not any_committed and not rules.accept_offsets:
        _check_changelogs(plan, lost[0], admin)
    origins: dict[TopicPartition, Origin] = {}
    for partition in inputs:
        if partition in offsets.facts:
            check_names(offsets.facts[partition], rules.operators)
    for task, grant in grants.items():
        task_inputs = plan.inputs(task)
        for partition in sorted(task_inputs):
            offset = committed.get(partition)
            progress = progress_by_input[partition]
            if progress is not None:
                origins[partition] = origin_of_commit(partition, progress, task_inputs, offsets)
            elif is_committed(offset):
                origins[partition] = origin_of_foreign(
                    partition,
                    offset,
                    task_inputs,
                    offsets,
                    rules,
                    grant.input.get(partition.whole),
                    is_exact=grant.is_exact,
                )
            else:
                origins[partition] = origin_without_offset(partition, task_inputs, offsets, rules)
    return origins


def _check_changelogs(plan: ApplicationPlan, lost: TopicPartition, admin: Admin) -> None:
    """Raise `StartRefusedError` if a changelog has records although no offset of ours is committed.

    Else tasks without state would start and repeat output.
    """
    partitions = [
        TopicPartition(topic.name, partition)
        for topic in plan.changelog_topics
        for partition in range(topic.partitions)
    ]
    ends = admin.end_offsets(partitions) if partitions else {}
    written = next((partition for partition in partitions if ends[partition] > 0), None)
    if written is not None:
        raise StartRefusedError(lost_text(lost, f"changelog {written} has records"))


def appeared_in(plan: ApplicationPlan, before: ApplicationPlan) -> set[TopicPartition]:
    return {*inputs_of(plan, plan.tasks)}.difference(inputs_of(before, before.tasks))


def inputs_of(plan: ApplicationPlan, tasks: Iterable[TaskId]) -> list[TopicPartition]:
    return sorted(partition for task in tasks for partition in plan.inputs(task))


def _check_shards(
    inputs: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    *,
    admin: Admin,
    rules: StartRules,
) -> None:
    """Raise `StartRefusedError` for an input that was processed with another number of shards.

    The application's own group tells it: it has the offsets of whole partitions, and the floor of
    sharded ones once every shard has committed. Before that, any commit of a shard does; later,
    groups of shards may be left from another number.
    """
    inputs = list(inputs)
    sharded = [at.whole for at in inputs if not at.shard.is_whole]
    own = admin.committed(rules.group_id, sharded, stable=False) if sharded else {}
    fresh: list[TopicPartition] = []
    for at in inputs:
        offset = committed.get(at) if at.shard.is_whole else own.get(at.whole)
        if is_committed(offset):
            progress = progress_of(offset)
            _check_number(at, 1 if progress is None else progress.shards)
            is_lost = not at.shard.is_whole and not is_committed(committed.get(at))
            if is_lost and not rules.accept_offsets:
                raise StartRefusedError(lost_text(at, "all its shards have committed before"))
        elif not is_committed(committed.get(at)):
            fresh.append(at)
    if fresh and not rules.accept_offsets:
        partitions = list(dict.fromkeys(at.whole for at in fresh))
        begun = committed_by_shards(admin, rules.group_id, partitions)
        counts = {at.whole: at.shard.of for at in begun}
        for at in fresh:
            _check_number(at, counts.get(at.whole, at.shard.of))


def _check_number(at: TopicPartition, before: int) -> None:
    if before == at.shard.of:
        return
    pieces = "one piece" if before == 1 else f"{before} shards"
    raise StartRefusedError(
        f"{at.whole} was processed in {pieces} and this program has partition_shards={at.shard.of}. "
        f"Stop all workers and run `tidewheel reshard MODULE:TOPOLOGY --shards {at.shard.of} --execute`; or start with "
        f"partition_shards={before}"
    )


def _check_grant(
    grant: Grant,
    inputs: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    rules: StartRules,
) -> None:
    """Raise `StartRefusedError` for an offset below the last owner's, or of a later task epoch.

    Granted offsets of topics that only an earlier topology read are ignored.
    """
    for partition in sorted(inputs):
        floor = grant.input.get(partition.whole)
        if floor is None:
            continue
        offset = committed.get(partition)
        progress = rules.own(offset)
        if progress is not None and progress.task_epoch > grant.task_epoch:
            raise OutdatedGrantError(
                f"{partition}: was committed under epoch {progress.task_epoch} of its task, which is granted here under "
                f"epoch {grant.task_epoch}: the group's log was lost or recreated. Run `tidewheel group recover`"
            )
        is_accepted = progress is not None and CommitFacts.decode(progress.facts).accepted
        if is_accepted or rules.accept_offsets:
            continue
        if not is_committed(offset) or offset.offset < floor:
            present = f"offset {offset.offset}" if is_committed(offset) else "nothing"
            left = floor_text(floor, is_exact=grant.is_exact)
            raise StartRefusedError(
                f"{partition}: the last owner left it at {left}, but {present} is committed: the offsets of "
                "this group were changed, the topic was deleted, or the offsets expired while the group was stopped. No "
                "worker starts there, however often it is started: run once with --accept-offsets (or accept_offsets=True) to "
                "start there all the same; or stop all workers and run `tidewheel reset` to process the input again"
            )


def progress_of(committed: CommittedOffset | None) -> Progress | None:
    if not is_committed(committed):
        return None
    return Progress.decode(committed.metadata, committed_offset=committed.offset)


def _is_uneven(committed: CommittedOffset | None) -> bool:
    """Return True if a key range processed records beyond the committed offset."""
    progress = progress_of(committed)
    return progress is not None and progress.highest_offset > progress.committed_offset


def _positions(
    plan: ApplicationPlan,
    inputs: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, bytes],
    origins: Mapping[TopicPartition, Origin],
    *,
    rules: StartRules,
    admin: Admin,
) -> dict[TopicPartition, StartPosition]:
    resets = _resets(plan, inputs, committed, origins, rules.auto_offset_reset, admin)
    positions = {
        partition: msgspec.structs.replace(
            start_position(
                partition,
                committed=committed.get(partition),
                log_start=starts[partition],
                log_end=ends[partition],
                topic_id=topic_ids[partition.topic],
                reset=resets[partition],
            ),
            origin=origins[partition],
        )
        for partition in inputs
    }
    _log_kafka_streams(positions)
    _log_accepted(positions)
    return positions


def _log_accepted(positions: Mapping[TopicPartition, StartPosition]) -> None:
    accepted = {
        partition: start for partition, start in positions.items() if start.origin.is_accepted
    }
    if accepted:
        _log.warning(
            "accept_offsets: starting at offsets that this application did not commit: %s%s. Remove the option after this start",
            ", ".join(
                f"{partition}@{start.offset}" for partition, start in [*accepted.items()][:_NAMED]
            ),
            f" and {len(accepted) - _NAMED} more" if len(accepted) > _NAMED else "",
        )


def _log_kafka_streams(positions: Mapping[TopicPartition, StartPosition]) -> None:
    partitions = [partition for partition, start in positions.items() if start.by_kafka_streams]
    if partitions:
        _log.info(
            "continuing where Kafka Streams left off, in %s%s: it commits the time of each partition, but not those of "
            "windows and joins, so records may count as on time there that were late before",
            ", ".join(map(str, partitions[:_NAMED])),
            f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else "",
        )


def _resets(
    plan: ApplicationPlan,
    inputs: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    origins: Mapping[TopicPartition, Origin],
    auto_offset_reset: str,
    admin: Admin,
) -> dict[TopicPartition, str | int]:
    """Return the reset policy or offset of each input without a committed offset.

    Partitions created after the first start are read from their beginning, unless the source has
    offset_reset="none".
    """
    resets: dict[TopicPartition, str | int] = {}
    ages_ms: dict[TopicPartition, int] = {}
    latest: list[TopicPartition] = []
    for partition in inputs:
        reset = _reset_of(plan, partition.topic) or auto_offset_reset
        if origins[partition].is_new and reset != "none":
            resets[partition] = "earliest"
        elif is_committed(committed.get(partition)):
            resets[partition] = "none"  # not used: an offset is committed
        elif isinstance(reset, timedelta):
            ages_ms[partition] = reset // timedelta(milliseconds=1)
        elif reset == "latest":
            latest.append(partition)
        else:
            resets[partition] = reset
    # "latest" is the stable offset: records of open transactions count as later ones.
    stable = of_inputs(admin.stable_offsets, latest) if latest else {}
    ages_of_partitions = {at.whole: age_ms for at, age_ms in ages_ms.items()}
    aged = of_inputs(lambda _: admin.offsets_of_age(ages_of_partitions), ages_ms)
    return {**resets, **aged, **stable}


def is_committed(committed: CommittedOffset | None) -> TypeGuard[CommittedOffset]:
    """Return True for a committed offset; clients report a missing one as None or below 0."""
    return committed is not None and committed.offset >= 0


def _reset_of(plan: ApplicationPlan, topic: str) -> OffsetReset | None:
    for subtopology in plan.subtopologies.values():
        for source in subtopology.spec.sources:
            if topic in subtopology.source_topics[source.name]:
                return "earliest" if source.internal else source.offset_reset
    raise AssertionError(f"{topic} belongs to no source")


def start_position(
    partition: TopicPartition,
    *,
    committed: CommittedOffset | None,
    log_start: int,
    log_end: int,
    topic_id: bytes,
    reset: str | int,
) -> StartPosition:
    """Return the start of one input partition; `reset`: policy or offset if none is committed.

    Raises `StartRefusedError` where records would be lost or repeated: the committed offset is
    outside the log, a key range was beyond the log's end, or the topic was recreated.
    """
    if not is_committed(committed):
        if reset == "none":
            first = (
                "commit an offset for the group first"
                if partition.shard.is_whole
                else "run `tidewheel reset MODULE:TOPOLOGY`, which commits a start for every shard"
            )
            raise StartRefusedError(
                f'nothing is committed for {partition}, and its source has offset_reset="none": {first}, or choose '
                "another offset_reset"
            )
        if isinstance(reset, int):
            return StartPosition(offset=reset)
        return StartPosition(offset=log_end if reset == "latest" else log_start)
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    if progress is not None and progress.topic_id != topic_id:
        raise StartRefusedError(
            f"topic {partition.topic} was deleted and created again since offset {committed.offset} of partition "
            f"{partition.partition} was committed; run `tidewheel reset` if its new content is to be processed"
        )
    if not log_start <= committed.offset <= log_end:
        raise StartRefusedError(
            f"the committed offset {committed.offset} of {partition} is outside the log, which has {log_start} to "
            f"{log_end}: records were deleted before they were processed. Run `tidewheel reset` to accept the gap, or "
            "raise the topic's retention"
        )
    if progress is not None and progress.highest_offset > log_end:
        raise StartRefusedError(
            f"key ranges of {partition} had processed up to offset {progress.highest_offset}, but its log ends at {log_end}: "
            "records were deleted, and new ones with their offsets would count as done. Run `tidewheel reset` to accept "
            "the gap"
        )
    theirs = partition_time_of_kafka_streams(committed.metadata) if progress is None else None
    stream_time_ms = theirs if progress is None else progress.stream_time_ms
    return StartPosition(
        offset=committed.offset,
        committed=True,
        partition_time_ms=-1 if stream_time_ms is None else stream_time_ms,
        progress=progress,
        by_kafka_streams=theirs is not None,
    )


def earlier_transactional_ids(
    application_id: str,
    committed: Mapping[TopicPartition, CommittedOffset],
    known_ids: AbstractSet[str],
) -> list[str]:
    """Return this application's earlier ids in commit metadata: producers to fence before a start.

    Their open transactions could still commit. `known`: our own id and those of live siblings,
    which have fenced their predecessors.
    """
    progress_of_inputs = (
        Progress.decode(offset.metadata, committed_offset=offset.offset)
        for offset in committed.values()
        if offset.offset >= 0
    )
    named = {progress.transactional_id for progress in progress_of_inputs if progress is not None}
    ids = own_ids(application_id, named)
    if len(ids) < len(named):
        _log.warning(
            "the committed offsets of group %s name %d transactional ids that this application does not use; they are not fenced",
            application_id,
            len(named) - len(ids),
        )
    return [transactional_id for transactional_id in ids if transactional_id not in known_ids]


def old_maps(starts: Mapping[TopicPartition, StartPosition]) -> dict[TopicPartition, Vector]:
    """Return the progress of each input's key ranges at its last commit.

    Ranges by an unknown hash function are ignored. Records from the lowest offset are then
    processed again, even those that faster ranges had finished.
    """
    maps: dict[TopicPartition, Vector] = {}
    for partition, start in sorted(starts.items()):
        progress = start.progress
        if progress is None or progress.highest_offset == progress.committed_offset:
            continue  # a shard makes its own
        if progress.key_hash != KEY_HASH:
            _log.warning(
                "%s was committed with key ranges by the hash %s, which this version does not know: what faster ranges "
                "had done is done again",
                partition,
                progress.key_hash,
            )
            continue
        maps[partition] = progress.vector
    return maps


def operator_times(
    starts: Mapping[TopicPartition, StartPosition], topology_hash: bytes
) -> tuple[int, ...]:
    """Return the stream times of a task's operators at its last commit; () if unknown.

    Each input's commit has all times. If commits differ, each operator's largest time counts.
    """
    times_by_input: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, start in sorted(starts.items()):
        if start.progress is None or not start.progress.operator_times_ms:
            continue
        if start.progress.topology_hash != topology_hash:
            _log.warning(
                "%s was committed by another version of the topology: its operators' stream times are not used, so "
                "records may count as on time that were late before",
                partition,
            )
            continue
        times_by_input[partition] = start.progress.operator_times_ms
    if len({len(times) for times in times_by_input.values()}) > 1:
        _log.warning(
            "%s were committed with different numbers of operators' stream times; none is used, so records may count "
            "as on time that were late before",
            ", ".join(map(str, times_by_input)),
        )
        return ()
    return tuple(map(max, zip(*times_by_input.values(), strict=True)))
