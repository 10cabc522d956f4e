"""Changelog and repartition topics of an application. Pure.

Names and settings are Kafka Streams' (InternalTopicManager), so its tools can read them.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import structs

from tidewheel.rebalance.model import WHOLE, Shard, ShardInput, TaskId, TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.tasks.errors import CopartitioningError, InternalTopicError, MissingSourceTopicError
from tidewheel.tasks.kafka.ports import NewTopic
from tidewheel.tasks.processing.api.topology_spec import (
    GlobalStoreSpec,
    SinkSpec,
    SubtopologySpec,
    TopologySpec,
    node_locations,
)

#: Suffixes of internal topic names.
_INTERNAL: Final = re.compile(
    r"-(changelog|repartition|group-state|group-inbox|subscription-(registration|response)-topic"
    r"|KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic)\Z"
)

#: Suffixes of internal topics that are no input of a task.
_NO_INPUT: Final = ("-changelog", "-group-state", "-group-inbox")

#: Extra retention (ms) of changelogs whose rows expire, for clock skew and late records (Kafka
#: Streams' windowstore.changelog.additional.retention.ms).
_ADDITIONAL_MS: Final = 86_400_000

_LONGEST_MS: Final = (1 << 63) - 1

HIDDEN_TOPICS: Final = "brokers also hide topics without a grant of READ or DESCRIBE"
MESSAGE_BYTES: Final = "max.message.bytes"
#: Settings that limit accepted records; an existing topic's must not be below the planned ones.
LIMITS: Final = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    MESSAGE_BYTES,
)
#: Accept all event times: Kafka's defaults refuse those over an hour ahead of now.
_EVERY_TIMESTAMP: Final = {
    "message.timestamp.before.max.ms": str(_LONGEST_MS),
    "message.timestamp.after.max.ms": str(_LONGEST_MS),
}
_MESSAGE_BYTES_DEFAULT: Final = 1_048_588
_MESSAGE_BYTES_MAX: Final = (1 << 31) - 1
#: Bytes added to the inputs' largest record limit: rows have longer keys, with window times.
_LONGER_BYTES: Final = 64 * 1024
_FIXED_OF_REPARTITION: Final = {
    "cleanup.policy": "records of one key are not versions of each other, and compaction would drop some",
    "message.timestamp.type": "records keep their event time",
}


def changelog_topic(application_id: str, store: str) -> str:
    return f"{application_id}-{store}-changelog"


def internal_prefix(application_id: str) -> str:
    return f"{application_id}-"


def offsets_group(application_id: str, shard: Shard) -> str:
    """Return the consumer group of a shard's committed offsets.

    Both bounds are in the name: after a change of the tiling no shard overwrites its source's offsets.

    >>> offsets_group("app", Shard(1, 4)), offsets_group("app", Shard())
    ('app~1of4', 'app')
    """
    return application_id if shard.is_whole else f"{application_id}~{shard}"


def offsets_groups_prefix(application_id: str) -> str:
    """Return the beginning of the names of all consumer groups of shards."""
    return f"{application_id}~"


def outputs_group(application_id: str) -> str:
    """Return the consumer group that counts the outputs of a backfill, by sink partition.

    No application and no shard has such a name.
    """
    return f"{application_id}:backfill"


def shard_of_group(application_id: str, group_id: str) -> Shard | None:
    """Return the shard that commits to a consumer group; None if it is no group of a shard.

    >>> shard_of_group("app", "app~1of4"), shard_of_group("app", "app~1of3"), shard_of_group("app", "app")
    (Shard(number=1, of=4), None, None)
    """
    prefix = offsets_groups_prefix(application_id)
    if not group_id.startswith(prefix):
        return None
    try:
        return TaskId.parse(f"0_0/{group_id.removeprefix(prefix)}").shard
    except ValueError:
        return None


class SubtopologyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-topology on a cluster; `shards`: tasks per partition."""

    spec: SubtopologySpec
    source_topics: Mapping[str, tuple[str, ...]]
    partitions: int
    topic_partitions: Mapping[str, int]
    shards: int = 1

    @property
    def external_topics(self) -> frozenset[str]:
        """Return the topics that it reads and the application does not write for itself."""
        return frozenset(
            topic
            for source in self.spec.sources
            if not source.internal
            for topic in self.source_topics[source.name]
        )

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(
            task for partition in range(self.partitions) for task in self.tasks_of(partition)
        )

    def tasks_of(self, partition: int) -> tuple[TaskId, ...]:
        """Return the tasks of one partition: one, or one for each shard."""
        return tuple(TaskId(self.spec.id, partition, shard) for shard in Shard.all_of(self.shards))

    def inputs(self, partition: int, shard: Shard = WHOLE) -> frozenset[TopicPartition]:
        """Return a task's inputs: this partition of each topic that has it."""
        return frozenset(
            ShardInput.of(TopicPartition(topic, partition), shard)
            for topic, count in self.topic_partitions.items()
            if partition < count
        )


class ApplicationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Sub-topologies with this cluster's partition counts, and their internal topics."""

    subtopologies: Mapping[int, SubtopologyPlan]
    repartition_topics: tuple[NewTopic, ...]
    changelog_topics: tuple[NewTopic, ...]
    global_stores: tuple[GlobalStoreSpec, ...] = ()
    global_partitions: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(task for _, plan in sorted(self.subtopologies.items()) for task in plan.tasks)

    def inputs(self, task_id: TaskId) -> frozenset[TopicPartition]:
        return self.subtopologies[task_id.subtopology].inputs(task_id.partition, task_id.shard)

    def locations(self) -> dict[str, str]:
        """Return the user's line that defined each node, as "shop.py:12"."""
        specs = [plan.spec for plan in self.subtopologies.values()]
        return node_locations(node for spec in specs for node in spec.nodes)


def plan_application(
    spec: TopologySpec,
    application_id: str,
    topics: Mapping[str, int],
    *,
    replication_factor: int = -1,
    factor: int = 1,
    repartition_config: Mapping[str, str] = MappingProxyType({}),
) -> ApplicationPlan:
    """Return the plan of a topology on a cluster with `topics` (name -> partition count).

    `factor`: maximum key ranges per task. Raises `MissingSourceTopicError` naming every missing
    topic, and `StreamsError` if an internal topic has the wrong partition count.
    """
    if factor > 1:
        spec = _with_longer_retention(spec)
    prefix = internal_prefix(application_id)
    matchable = {name for name in topics if not is_internal(name, application_id)}
    missing = sorted(missing_source_topics(spec, topics))
    if missing:
        raise MissingSourceTopicError(
            f"source topic{'s' if len(missing) > 1 else ''} {', '.join(missing)} not found; create "
            f"{'them' if len(missing) > 1 else 'it'}, or let `tidewheel run` wait for or create topics: --wait-for-topics, --create-topics; "
            + HIDDEN_TOPICS
        )
    repartition = _repartition_counts(spec, topics, matchable)
    subtopologies: dict[int, SubtopologyPlan] = {}
    for subtopology in spec.subtopologies:
        counts = {**topics, **{prefix + name: count for name, count in repartition.items()}}
        source_topics = topics_read(subtopology, application_id, matchable)
        read = {topic: counts[topic] for names in source_topics.values() for topic in names}
        _check_copartitioning(subtopology, read, prefix)
        subtopologies[subtopology.id] = SubtopologyPlan(
            spec=subtopology,
            source_topics=source_topics,
            partitions=max(read.values(), default=0),
            topic_partitions=read,
        )
    repartition_topics = tuple(
        _repartition_topic(
            prefix + name,
            count,
            replication_factor,
            {**repartition_config, **spec.repartition_configs.get(name, {})},
        )
        for name, count in sorted(repartition.items())
    )
    changelogs = tuple(
        _changelog(application_id, store, plan.partitions, replication_factor)
        for _, plan in sorted(subtopologies.items())
        for store in plan.spec.stores
        if store.logging
    )
    for topic in (*repartition_topics, *changelogs):
        _check_existing(topic, topics)
    return ApplicationPlan(
        subtopologies=subtopologies,
        repartition_topics=repartition_topics,
        changelog_topics=changelogs,
        global_stores=spec.global_stores,
        global_partitions={store.topic: topics[store.topic] for store in spec.global_stores},
    )


def topics_read(
    spec: SubtopologySpec, application_id: str, topics: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    return {
        source.name: tuple(internal_prefix(application_id) + topic for topic in source.topics)
        if source.internal
        else _matching(source.topics, source.pattern, topics)
        for source in spec.sources
    }


def missing_source_topics(spec: TopologySpec, topics: Iterable[str]) -> set[str]:
    wanted = {
        topic
        for subtopology in spec.subtopologies
        for source in subtopology.sources
        if not source.internal
        for topic in source.topics
    }
    return (wanted | {store.topic for store in spec.global_stores}).difference(topics)


def missing_output_topics(spec: TopologySpec, topics: Iterable[str]) -> set[str]:
    """Return output topics that don't exist; those that a function chooses are not known."""
    wanted = {
        node.topic
        for subtopology in spec.subtopologies
        for node in subtopology.nodes
        if isinstance(node, SinkSpec) and not node.internal and isinstance(node.topic, str)
    }
    return wanted.difference(topics)


def is_matched(plan: ApplicationPlan, topic: str) -> bool:
    """Return True if a pattern selects the topic: other tasks continue after its deletion."""
    sources = (source for planned in plan.subtopologies.values() for source in planned.spec.sources)
    return any(source.pattern is not None and source.pattern.fullmatch(topic) for source in sources)


def is_internal(topic: str, application_id: str) -> bool:
    """Return True if the name is an internal topic's.

    >>> is_internal("app-counts-changelog", "app"), is_internal("app-news-topic", "app")
    (True, False)
    """
    return topic.startswith(internal_prefix(application_id)) and bool(_INTERNAL.search(topic))


def absence(noun: str, topics: Collection[str]) -> str:
    """Return the text that one or several topics do not exist.

    >>> absence("topic", ["b"]), absence("output topic", ["b", "a"])
    ('topic b does not exist', 'output topics a, b do not exist')
    """
    names = ", ".join(sorted(topics))
    return f"{noun} {names} does not exist" if len(topics) == 1 else f"{noun}s {names} do not exist"


def is_repartition(topic: str, application_id: str) -> bool:
    """Return True if the name is that of an internal topic that tasks read as input.

    >>> is_repartition("app-counts-changelog", "app"), is_repartition("app-by-user-repartition", "app")
    (False, True)
    """
    return is_internal(topic, application_id) and not topic.endswith(_NO_INPUT)


def _matching(
    names: tuple[str, ...], pattern: re.Pattern[str] | None, topics: Iterable[str]
) -> tuple[str, ...]:
    if pattern is None:
        return names
    return tuple(sorted(topic for topic in topics if pattern.fullmatch(topic)))


def _repartition_counts(
    spec: TopologySpec, topics: Mapping[str, int], matchable: AbstractSet[str]
) -> dict[str, int]:
    """Return the partition count of each repartition topic (name without prefix).

    Default: the count of topics joined with it; otherwise the largest among the sources of the
    writing sub-topology. These may be repartition topics too. In a cycle, the known sources decide.
    """
    counts = {name: count for name, count in spec.repartition_topics.items() if count is not None}
    pending = set(spec.repartition_topics).difference(counts)
    groups = [
        group for subtopology in spec.subtopologies for group in subtopology.copartition_groups
    ]
    while pending:
        counts_so_far = (topics, matchable, counts)
        derived = _counts_of_partners(groups, {**topics, **counts}, pending)
        for partly in (False, True):
            derived = derived or _levelled(
                groups,
                _next_counts(spec, *counts_so_far, pending, partly=partly),
                pending,
                partly=partly,
            )
        if not derived:
            raise StreamsError(
                f"the partition counts of {', '.join(sorted(pending))} depend on each other; "
                "give one of them partitions=... in repartition()"
            )
        counts.update(derived)
        pending.difference_update(derived)
    return counts


def _counts_of_partners(
    groups: Iterable[frozenset[str]], counts_so_far: Mapping[str, int], pending: AbstractSet[str]
) -> dict[str, int]:
    derived: dict[str, int] = {}
    for group in groups:
        counts = [counts_so_far[topic] for topic in group - pending if topic in counts_so_far]
        if counts:
            derived.update(dict.fromkeys(group & pending, max(counts)))
    return derived


def _levelled(
    groups: Iterable[frozenset[str]],
    derived: dict[str, int],
    pending: AbstractSet[str],
    *,
    partly: bool,
) -> dict[str, int]:
    """Raise the counts of joined topics to their largest, once all of them are known.

    `partly`: use the known counts instead of waiting for the others.
    """
    for group in groups:
        partners = group & pending
        if partly or partners <= derived.keys():
            largest = max((derived[topic] for topic in partners if topic in derived), default=0)
            derived.update(dict.fromkeys(partners & derived.keys(), largest))
        else:
            derived = {topic: count for topic, count in derived.items() if topic not in partners}
    return derived


def _next_counts(
    spec: TopologySpec,
    topics: Mapping[str, int],
    matchable: AbstractSet[str],
    counts: Mapping[str, int],
    pending: set[str],
    *,
    partly: bool,
) -> dict[str, int]:
    """Return counts derived from known sources; `partly`: other sources may be unknown."""
    derived: dict[str, int] = {}
    for subtopology in spec.subtopologies:
        written = {
            sink.topic
            for sink in subtopology.sinks
            if sink.internal and isinstance(sink.topic, str) and sink.topic in pending
        }
        sizes = [
            counts.get(topic) if source.internal else topics[topic]
            for source in subtopology.sources
            for topic in (source.topics or _matching((), source.pattern, matchable))
        ]
        known_sizes = [size for size in sizes if size is not None]
        if written and ((partly and known_sizes) or len(known_sizes) == len(sizes)):
            largest = max(known_sizes, default=1)
            derived.update({topic: max(largest, derived.get(topic, 0)) for topic in written})
    return derived


def _check_copartitioning(
    subtopology: SubtopologySpec, read: Mapping[str, int], prefix: str
) -> None:
    for group in subtopology.copartition_groups:
        sizes = {topic: read.get(topic, read.get(prefix + topic)) for topic in sorted(group)}
        if len(set(sizes.values())) > 1:
            described = ", ".join(f"{topic} has {count}" for topic, count in sizes.items())
            raise CopartitioningError(
                f"sub-topology {subtopology.id} needs topics with equal partition counts, but {described}; "
                "give them equal counts, or repartition() one of the streams"
            )


def _with_longer_retention(spec: TopologySpec) -> TopologySpec:
    """Return the spec with expired window and session rows kept as long as in changelogs.

    The slowest key range may need rows that expired for faster ranges. Copies of the task know its
    time with a delay, and snapshots are older, so they keep such rows too.
    """
    return replace(
        spec,
        subtopologies=tuple(
            replace(
                subtopology,
                stores=tuple(
                    replace(store, kept_longer_ms=_ADDITIONAL_MS)
                    if store.kind in SEGMENTED_KINDS
                    else store
                    for store in subtopology.stores
                ),
            )
            for subtopology in spec.subtopologies
        ),
    )


def fault_of_repartition_config(config: object) -> str:
    """Return the fault of a repartition topic's settings; empty if they are valid.

    >>> fault_of_repartition_config({"cleanup.policy": "compact"})
    "can't set 'cleanup.policy': records of one key are not versions of each other, and compaction would drop some"
    """
    if not isinstance(config, Mapping):
        return "must be a table of topic settings, as {'retention.ms': '86400000'}"
    for name, value in config.items():  # pyright: ignore[reportUnknownVariableType] - a mapping of anything, checked here
        if not isinstance(name, str) or not isinstance(value, str):
            return f"must have text for {name!r}, as in {{'retention.ms': '86400000'}}"
        if name in _FIXED_OF_REPARTITION:
            return f"can't set {name!r}: {_FIXED_OF_REPARTITION[name]}"
    return ""


def with_message_bytes(plan: ApplicationPlan, largest: int) -> ApplicationPlan:
    """Return the plan with internal topics that accept input records of `largest` bytes."""
    if largest <= _MESSAGE_BYTES_DEFAULT:
        return plan
    limit = str(min(largest + _LONGER_BYTES, _MESSAGE_BYTES_MAX))

    def raised(topic: NewTopic) -> NewTopic:
        return structs.replace(topic, config={MESSAGE_BYTES: limit, **topic.config})

    return structs.replace(
        plan,
        repartition_topics=tuple(map(raised, plan.repartition_topics)),
        changelog_topics=tuple(map(raised, plan.changelog_topics)),
    )


def configure_command(topic: str, settings: str, servers: str = "HOST:PORT") -> str:
    """Return the command that sets a topic's configuration.

    >>> configure_command("orders", "max.message.bytes=BYTES")
    'kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name orders --add-config max.message.bytes=BYTES'
    """
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {settings}"
    )


def limits_too_low(topic: NewTopic, config: Mapping[str, str]) -> dict[str, str]:
    """Return the planned limits that an existing topic's settings (`config`) fall below.

    >>> planned = NewTopic(name="a-b-changelog", partitions=1, config={"max.message.bytes": "5000000"})
    >>> limits_too_low(planned, {"max.message.bytes": "1048588"})
    {'max.message.bytes': '5000000'}
    """
    return {
        name: topic.config[name]
        for name in LIMITS
        if name in topic.config and name in config and int(config[name]) < int(topic.config[name])
    }


def _repartition_topic(
    name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
) -> NewTopic:
    return NewTopic(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        config={
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "segment.bytes": str(50 * 1024 * 1024),
            "message.timestamp.type": "CreateTime",
            **_EVERY_TIMESTAMP,
            **config,
        },
    )


def _changelog(
    application_id: str, store: StoreSpec, partitions: int, replication_factor: int
) -> NewTopic:
    return NewTopic(
        name=changelog_topic(application_id, store.name),
        partitions=partitions,
        replication_factor=replication_factor,
        config={
            **_changelog_config(store),
            "message.timestamp.type": "CreateTime",
            **_EVERY_TIMESTAMP,
            **store.changelog_config,
        },
    )


def _changelog_config(store: StoreSpec) -> dict[str, str]:
    if store.kind in SEGMENTED_KINDS:
        retention_ms = min(store.retention_ms + _ADDITIONAL_MS, _LONGEST_MS)
        return {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms)}
    if store.kind is StoreKind.VERSIONED:
        lag_ms = min(store.history_retention_ms + _ADDITIONAL_MS, _LONGEST_MS)
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(lag_ms)}
    return {"cleanup.policy": "compact"}


def _check_existing(topic: NewTopic, topics: Mapping[str, int]) -> None:
    count = topics.get(topic.name)
    if count is not None and count != topic.partitions:
        raise InternalTopicError(
            f"internal topic {topic.name} has {count} partitions but the application needs {topic.partitions} (did an "
            "input topic grow?); run `tidewheel reset`, or give the topic its old shape back"
        )
