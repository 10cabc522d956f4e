"""Application reset: offsets, internal topics and local state return to the initial state.

The groups of all shards are reset too, whatever their number. With a topology the next start has
the number of its configuration; without one, the number that has committed.

Each step may be repeated, so an interrupted reset can run again.

A reset is refused while the application runs: members heard recently, subscribed consumers, live
workers with a fixed assignment, or locked slots on this machine. `force` ignores fixed workers: the
reset fences their producers before they commit again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.rebalance.producer_ids import output_id, own_ids
from tidewheel.state_stores.errors import StoreLockedError
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.state_stores.user_code import located
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.inbox import with_hosts
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.commit_facts import CommitFacts
from tidewheel.tasks.kafka.internal_topics import (
    changelog_topic,
    internal_prefix,
    is_internal,
    offsets_group,
    outputs_group,
)
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import by_group, committed_by_shards
from tidewheel.tasks.key_ranges.keyed_analysis import reason_against_shards
from tidewheel.tasks.key_ranges.progress_vector import TOPOLOGY_HASH_BYTES, Progress
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.api.sink import Sink
from tidewheel.tasks.processing.api.topology_spec import TopologySpec

#: Suffixes of internal topics, in the order of a reset plan; foreign-key joins use "-topic".
_SUFFIXES: Final = ("-repartition", "-topic", "-changelog", "-group-state", "-group-inbox")

#: An int is a time in ms since the epoch.
ResetPosition = Literal["earliest", "latest"] | int


class ResetAdmin(Admin, Protocol):
    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]: ...

    def fixed_workers(self, application_id: str) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetScope:
    """Topics of the application to reset.

    Attributes:
        source_topics: Source topics of the topology; topics with committed offsets are added.
        internal_topics: Internal topics of the topology; None finds them by name.
        sinks: Sinks outside Kafka, which may store positions.
        shards_in: Number of shards by source topic, given the partition counts of topics; None
            leaves the numbers that have committed.
    """

    application_id: str
    source_topics: frozenset[str] = frozenset()
    internal_topics: frozenset[str] | None = None
    sinks: tuple[Sink, ...] = ()
    shards_in: Callable[[Mapping[str, int]], Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSlot:
    """State folder of a worker on this machine; `problem`: error if a process has locked it."""

    slot: int
    path: Path
    tasks: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetFacts:
    """Facts before a reset.

    Attributes:
        members: Live consumers of the group.
        others: Applications with offsets whose names start with this one's and a dash.
        live_members: Members that were heard recently, on any machine.
        fixed: Host by transactional id of live workers with a fixed assignment.
        shard_groups: Consumer groups of shards, of any number of shards.
        outputs: Sink partitions to which a backfill has written; empty if its group does not exist.
    """

    topics: Mapping[str, int]
    committed: Mapping[TopicPartition, CommittedOffset]
    targets: Mapping[TopicPartition, int]
    members: tuple[str, ...] = ()
    slots: tuple[LocalSlot, ...] = ()
    others: frozenset[str] = frozenset()
    live_members: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])
    shard_groups: tuple[str, ...] = ()
    outputs: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMove:
    partition: TopicPartition
    before: int | None
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedPlan:
    """Steps of a change of an application that does not run.

    Attributes:
        topics: Topics to delete.
        slots: State folders on this machine, with the tasks to delete.
        transactional_ids: Producers to fence.
        refusals: Reasons against it; empty if it may run.
    """

    application_id: str
    topics: tuple[str, ...] = ()
    slots: tuple[LocalSlot, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    @contextmanager
    def locked(self, state_dir: Path) -> Iterator[list[StateDirectory]]:
        """Lock the state folders, so that no worker of this machine starts meanwhile.

        Raises `StreamsError` for a plan with refusals.
        """
        if self.refusals:
            raise StreamsError("; ".join(self.refusals))
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    StateDirectory.acquire(state_dir, self.application_id, slot=slot.slot)
                )
                for slot in self.slots
            ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan(StoppedPlan):
    """Steps of a reset.

    Attributes:
        offsets: Offsets to commit, also those of shards; all others of the groups are deleted.
        outputs_group: Consumer group of a backfill's outputs to delete; "" if there is none.
    """

    offsets: tuple[OffsetMove, ...] = ()
    shard_groups: tuple[str, ...] = ()
    outputs_group: str = ""
    sinks: tuple[Sink, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (
            self.offsets
            or self.topics
            or self.shard_groups
            or self.outputs_group
            or self.sinks
            or any(slot.tasks for slot in self.slots)
        )


def scope_of(
    application_id: str, topology: Topology | None = None, config: StreamsConfig | None = None
) -> ResetScope:
    if topology is None:
        return ResetScope(application_id=application_id)
    prefix = internal_prefix(application_id)
    spec = topology.spec(config)
    changelogs = {
        changelog_topic(application_id, store.name)
        for subtopology in spec.subtopologies
        for store in subtopology.stores
        if store.logging
    }
    coordination = {state_topic(application_id), inbox_topic(application_id)}
    repartitions = {prefix + name for name in spec.repartition_topics}
    return ResetScope(
        application_id=application_id,
        source_topics=frozenset(topology.source_topics),
        internal_topics=frozenset(changelogs | coordination | repartitions),
        sinks=tuple(
            subtopology.external_sink.make()
            for subtopology in spec.subtopologies
            if subtopology.external_sink is not None
        ),
        shards_in=None if config is None else partial(_configured_shards, spec, config),
    )


def _configured_shards(
    spec: TopologySpec, config: StreamsConfig, topics: Mapping[str, int]
) -> dict[str, int]:
    shards: dict[str, int] = {}
    for subtopology in spec.subtopologies:
        names = {topic for source in subtopology.sources for topic in source.topics}
        counts = {topic: topics[topic] for topic in names & topics.keys()}
        extractor = config.default_timestamp_extractor
        is_whole = bool(reason_against_shards(subtopology, counts, extractor))
        shards |= dict.fromkeys(names, 1 if is_whole else config.partition_shards)
    return shards


def _committed_shards(committed: Mapping[TopicPartition, CommittedOffset]) -> dict[str, int]:
    """Return the number of shards by topic: that of the floor, else the largest that committed."""
    shards: dict[str, int] = {}
    floors: dict[str, int] = {}
    for at, offset in committed.items():
        progress = Progress.decode(offset.metadata, committed_offset=offset.offset)
        if not at.shard.is_whole:
            shards[at.topic] = max(shards.get(at.topic, 1), at.shard.of)
        elif progress is not None:
            floors[at.topic] = max(floors.get(at.topic, 1), progress.shards)
    return shards | floors


def input_partitions(
    scope: ResetScope, topics: Mapping[str, int], committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    internal = scope.internal_topics or frozenset()
    read = {
        partition.topic
        for partition in committed
        if partition.topic not in internal and not _looks_internal(partition.topic, scope)
    }
    return [
        TopicPartition(topic, partition)
        for topic in sorted(scope.source_topics | read)
        for partition in range(topics.get(topic, 0))
    ]


def plan_reset(scope: ResetScope, facts: ResetFacts, *, force: bool = False) -> ResetPlan:
    foreign = tuple(internal_prefix(other) for other in sorted(facts.others))
    alike = sorted(
        topic
        for topic in facts.topics
        if _looks_internal(topic, scope) and not topic.startswith(foreign)
    )
    if scope.internal_topics is None:
        doomed, left = alike, []
    else:
        doomed = sorted(scope.internal_topics.intersection(facts.topics))
        left = [topic for topic in alike if topic not in scope.internal_topics]
    return ResetPlan(
        application_id=scope.application_id,
        offsets=tuple(
            OffsetMove(
                partition=partition, before=_offset(facts.committed.get(partition)), after=after
            )
            for partition, after in sorted(facts.targets.items())
        ),
        topics=tuple(sorted(doomed, key=_by_suffix)),
        slots=tuple(slot for slot in facts.slots if slot.tasks or slot.problem),
        shard_groups=facts.shard_groups,
        outputs_group=outputs_group(scope.application_id) if facts.outputs else "",
        transactional_ids=own_producers(scope.application_id, facts),
        sinks=scope.sinks,
        notes=_notes(scope, facts, doomed, left, force=force),
        refusals=running_refusals(
            scope.application_id,
            facts,
            force=force,
            forced=". --force resets all the same, and ends them with FencedError",
        ),
    )


def gather_facts(
    scope: ResetScope, admin: ResetAdmin, state_dir: Path, position: ResetPosition
) -> ResetFacts:
    topics = admin.list_topics()
    unlisted = (scope.source_topics | (scope.internal_topics or frozenset())).difference(topics)
    admin.describe_topics(sorted(unlisted))  # raises if hidden
    counts = {} if scope.shards_in is None else scope.shards_in(topics)
    committed = _committed(scope.application_id, admin, set(counts.values()))
    partitions = input_partitions(scope, topics, committed)
    match position:
        case "earliest":
            targets = admin.beginning_offsets(partitions)
        case "latest":
            targets = admin.stable_offsets(partitions)  # skips no record of an open transaction
        case int():
            targets = admin.offsets_at(partitions, position)
    if scope.shards_in is None:
        counts = _committed_shards(committed)
    shards = sorted({at.shard for at in committed if not at.shard.is_whole})
    return ResetFacts(
        topics=topics,
        committed=committed,
        targets=targets
        | {
            ShardInput.of(partition, shard): offset
            for partition, offset in targets.items()
            for shard in Shard.all_of(counts.get(partition.topic, 1))
        },
        members=admin.group_members(scope.application_id),
        slots=local_slots(state_dir, scope.application_id),
        others=_other_applications(scope, topics, admin),
        fixed=admin.fixed_workers(scope.application_id),
        shard_groups=tuple(offsets_group(scope.application_id, shard) for shard in shards),
        outputs=_outputs(scope.application_id, admin),
    )


def _committed(
    application_id: str, admin: ResetAdmin, counts: AbstractSet[int]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets of whole partitions, or floors, and those of shards of any number.

    `counts`: numbers of shards whose groups are read even if the brokers do not list them, as they
    do without the rights on them.
    """
    committed = dict(admin.committed(application_id, None, stable=False))
    used = counts | set(_committed_shards(committed).values())
    shards = [shard for count in used for shard in Shard.all_of(count)]
    return committed | committed_by_shards(admin, application_id, shards=shards)


def _outputs(application_id: str, admin: ResetAdmin) -> tuple[TopicPartition, ...]:
    """Return the sink partitions to which a backfill has written.

    Without rights on its group, brokers do not list it; few applications have one.
    """
    group_id = outputs_group(application_id)
    if group_id not in admin.groups(group_id):
        return ()
    return tuple(sorted(admin.committed(group_id, None, stable=False)))


def execute_reset(plan: ResetPlan, admin: Admin, state_dir: Path) -> None:
    with plan.locked(state_dir) as directories:
        admin.fence(plan.transactional_ids)
        admin.delete_topics(plan.topics)
        for directory in directories:
            for task_id in directory.tasks():
                directory.remove_task_directory(task_id)
        for group_id in (*plan.shard_groups, plan.application_id):
            admin.delete_group(group_id)
        if plan.outputs_group:
            admin.delete_group(plan.outputs_group)
        for sink in plan.sinks:
            _reset_sink(sink, plan.application_id)
        _commit(plan, admin)


def _reset_sink(sink: Sink, application_id: str) -> None:
    try:
        sink.reset(application_id)
    except Exception as error:
        raise StreamsError(
            f"the positions of {sink.target} can't be deleted: {located(error)}; correct the cause and run the reset again"
        ) from error


def _commit(plan: ResetPlan, admin: Admin) -> None:
    """Commit the offsets as the application's own: workers reject any others at start."""
    described = admin.describe_topics(sorted({move.partition.topic for move in plan.offsets}))
    sharded = [move.partition for move in plan.offsets if not move.partition.shard.is_whole]
    shards = {at.whole: at.shard.of for at in sharded}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for move in plan.offsets:
        topic = described[move.partition.topic]
        shard = move.partition.shard
        progress = Progress(
            task_epoch=0,
            transactional_id=f"{internal_prefix(plan.application_id)}reset",
            topic_id=topic.topic_id,
            topology_hash=bytes(TOPOLOGY_HASH_BYTES),
            vector=Vector.at(move.after, shard.first_hash, shard.end_hash),
            shards=shards.get(move.partition.whole, 1),
            facts=CommitFacts(first_partitions=topic.partitions).encode(),
        )
        offsets[move.partition] = CommittedOffset(move.after, progress.encode())
    # The floor last: a start with another number of shards is refused by it.
    for group_id, committed in sorted(by_group(plan.application_id, offsets).items(), reverse=True):
        admin.alter_committed(group_id, committed)


def local_slots(state_dir: Path, application_id: str) -> tuple[LocalSlot, ...]:
    root = state_dir / application_id
    if not root.is_dir():
        return ()
    numbers = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdecimal())
    return tuple(_local_slot(state_dir, application_id, number) for number in numbers)


def _local_slot(state_dir: Path, application_id: str, number: int) -> LocalSlot:
    path = state_dir / application_id / str(number)
    try:
        with StateDirectory.acquire(state_dir, application_id, slot=number) as directory:
            return LocalSlot(slot=number, path=path, tasks=tuple(directory.tasks()))
    except StoreLockedError as error:
        return LocalSlot(slot=number, path=path, problem=str(error))


def _other_applications(scope: ResetScope, topics: Iterable[str], admin: Admin) -> frozenset[str]:
    """Return other applications whose names start with ours and a dash: `shop-eu` for `shop`."""
    if scope.internal_topics is not None:
        return frozenset()
    start = len(internal_prefix(scope.application_id))
    names = {
        topic[:end]
        for topic in topics
        if _looks_internal(topic, scope)
        for end in range(start, len(topic))
        if topic[end] == "-"
    }
    return frozenset(name for name in sorted(names) if admin.committed(name, None, stable=False))


def _looks_internal(topic: str, scope: ResetScope) -> bool:
    return is_internal(topic, scope.application_id)


def _by_suffix(topic: str) -> tuple[int, str]:
    kind = next((i for i, suffix in enumerate(_SUFFIXES) if topic.endswith(suffix)), len(_SUFFIXES))
    return kind, topic


def _offset(committed: CommittedOffset | None) -> int | None:
    return None if committed is None else committed.offset


def own_producers(application_id: str, facts: ResetFacts) -> tuple[str, ...]:
    """Return the transactional ids of the application's workers and of a backfill's, to fence."""
    named = {
        progress.transactional_id
        for entry in facts.committed.values()
        if (progress := Progress.decode(entry.metadata, committed_offset=entry.offset)) is not None
    }
    writers = {output_id(application_id, *at) for at in facts.outputs}
    return tuple(own_ids(application_id, {*named, *facts.fixed, *writers}))


def _notes(
    scope: ResetScope, facts: ResetFacts, doomed: Sequence[str], left: Sequence[str], *, force: bool
) -> tuple[str, ...]:
    notes: list[str] = []
    exists = facts.committed or facts.outputs or doomed or any(slot.tasks for slot in facts.slots)
    if scope.internal_topics is None and not exists:
        notes.append(
            f"nothing of an application {scope.application_id} was found: no offsets, no internal topics, no local state "
            "here; is the name right?"
        )
    if facts.fixed and force:
        notes.append(f"live workers that will end with FencedError: {with_hosts(facts.fixed)}")
    if left:
        notes.append(
            f"left alone, as this topology has no such topics: {', '.join(left)}; "
            f"`tidewheel reset {scope.application_id}` finds topics by name and deletes them too"
        )
    if scope.internal_topics is None and doomed:
        notes.append(
            "internal topics were found by their names; give MODULE:TOPOLOGY to have only those of the topology deleted"
        )
    if scope.internal_topics is None and doomed:
        notes.append(
            "sinks outside Kafka keep their positions, and skip rows below them; give MODULE:TOPOLOGY to delete these too"
        )
    if facts.others:
        notes.append(
            f"left alone, as other applications have these names: {', '.join(sorted(facts.others))}"
        )
    missing = sorted(scope.source_topics.difference(facts.topics))
    if missing:
        notes.append(f"source topics that do not exist: {', '.join(missing)}")
    return tuple(notes)


def running_refusals(
    application_id: str, facts: ResetFacts, *, force: bool = False, forced: str = ""
) -> tuple[str, ...]:
    """Return the reasons against a change of an application that still runs.

    `force` ignores workers with a fixed assignment; `forced` says what it would do.
    """
    refusals = [slot.problem for slot in facts.slots if slot.problem]
    if facts.members:
        refusals.append(
            f"group {application_id} has {len(facts.members)} live members ({', '.join(facts.members)}); stop the application first"
        )
    if facts.live_members:
        refusals.append(
            f"members of {application_id} were alive a few seconds ago: {', '.join(facts.live_members)}; stop the "
            "application everywhere first"
        )
    if facts.fixed and not force:
        refusals.append(
            f"workers of {application_id} with a fixed assignment are alive: {with_hosts(facts.fixed)}; stop them "
            f"first (a killed one disappears after a few seconds){forced}"
        )
    return tuple(refusals)
