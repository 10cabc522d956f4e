"""Stores for bulk jobs and the cluster's facts about their changelogs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.state_stores.bulk_restore.manifest import ChangelogFacts
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError, MissingSourceTopicError, StreamsError
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, changelog_topic, offsets_group
from tidewheel.tasks.kafka.ports import Admin
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.key_ranges.progress_vector import slowest_position_ms
from tidewheel.tasks.restore.start_positions import progress_of
from tidewheel.tasks.restore.store_restore import RESTORE_SETTINGS, tombstone_retention_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStore:
    """Store with a changelog; `inputs` are the inputs per partition, empty if unknown."""

    spec: StoreSpec
    topic: str
    subtopology: int
    partitions: int
    inputs: tuple[frozenset[TopicPartition], ...] = ()
    topology_hash: bytes = b""
    shards: int = 1

    @property
    def name(self) -> str:
        return self.spec.name

    def tasks(self, partition: int) -> tuple[TaskId, ...]:
        """Return the tasks that write a partition's changelog: one, or one for each shard."""
        return tuple(
            TaskId(self.subtopology, partition, shard) for shard in Shard.all_of(self.shards)
        )

    def task_of_key(self, partition: int, raw_key: bytes) -> TaskId:
        return TaskId(self.subtopology, partition, shard_of(raw_key, self.shards))

    def changelog(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)


def application_plan(topology: Topology, config: StreamsConfig, admin: Admin) -> ApplicationPlan:
    return configured_plan(topology.spec(config), config, admin.list_topics())


def bulk_stores(
    topology: Topology, config: StreamsConfig, admin: Admin, names: Sequence[str] | None = None
) -> list[BulkStore]:
    """Return the stores that have a changelog: all, or those named.

    Raises:
        ConfigError: A named store does not exist or has no changelog.
        StreamsError: Topics are missing or do not fit the topology.
    """
    plan = application_plan(topology, config, admin)
    topology_hash = bytes.fromhex(topology.hash())
    stores_by_name: dict[str, BulkStore] = {}
    without: dict[str, str] = {}
    custom: set[str] = set()
    for number, subtopology in sorted(plan.subtopologies.items()):
        for spec in subtopology.spec.stores:
            if spec.kind is StoreKind.CUSTOM:
                custom.add(spec.name)
            elif spec.logging:
                stores_by_name[spec.name] = BulkStore(
                    spec=spec,
                    topic=changelog_topic(config.application_id, spec.name),
                    subtopology=number,
                    partitions=subtopology.partitions,
                    inputs=tuple(map(subtopology.inputs, range(subtopology.partitions))),
                    topology_hash=topology_hash,
                    shards=subtopology.shards,
                )
            else:
                without[spec.name] = spec.source_topic or ""
    if names is None:
        return list(stores_by_name.values())
    for name in names:
        if name not in stores_by_name:
            raise ConfigError(_why_not(name, without, list(stores_by_name), custom=name in custom))
    return [stores_by_name[name] for name in dict.fromkeys(names)]


def check_no_headers(stores: Iterable[BulkStore], what: str) -> None:
    """Raise `StreamsError` if a store keeps headers, which run files can't hold."""
    with_headers = sorted(store.name for store in stores if store.spec.keeps_headers)
    if with_headers:
        raise StreamsError(
            f"store {', '.join(with_headers)} keeps headers (dsl_store_format, headers=), which {what} would lose; leave it out by "
            "naming the other stores: workers restore it from its changelog"
        )


def _why_not(name: str, without: dict[str, str], names: list[str], *, custom: bool) -> str:
    if custom:
        return (
            f"store {name!r} is a custom one: only its own class can interpret the records of its changelog, so it "
            "can't be read or made here; leave it out, its task restores it from the changelog"
        )
    if without.get(name):
        return (
            f"store {name!r} has no changelog of its own: it is restored from topic {without[name]}, up to what the "
            'application has committed; leave it out, or build with topology_optimization="none"'
        )
    if name in without:
        return f"store {name!r} has no changelog (logging=False), so there is nothing to make it from; leave it out"
    hint = did_you_mean(name, names) or f"there is {', '.join(sorted(names)) or 'none'}"
    return f"there is no store {name!r} with a changelog; {hint}"


def changelog_facts(
    stores: Sequence[BulkStore], admin: Admin, now_ms: int
) -> dict[TopicPartition, ChangelogFacts]:
    """Return the cluster's facts about all changelog partitions.

    `now_ms` must be from before the call: a later one makes snapshots look newer than they are, so
    missed deletes stay unnoticed. Stable offsets are read before log ends: none is greater.
    """
    if not stores:
        return {}
    topics = admin.describe_topics([store.topic for store in stores], config=RESTORE_SETTINGS)
    missing = sorted({store.topic for store in stores}.difference(topics))
    if missing:
        raise MissingSourceTopicError(
            f"changelog {', '.join(missing)} not found; the application makes its topics when it first runs"
        )
    partitions = [
        store.changelog(number)
        for store in stores
        for number in range(topics[store.topic].partitions)
    ]
    starts = admin.beginning_offsets(partitions)
    stable = admin.stable_offsets(partitions)
    ends = admin.end_offsets(partitions)
    return {
        partition: ChangelogFacts(
            topic=partition.topic,
            topic_id=topics[partition.topic].topic_id,
            partition_count=topics[partition.topic].partitions,
            partition=partition.partition,
            log_start=starts[partition],
            log_end=ends[partition],
            stable_end=stable[partition],
            tombstone_retention_ms=tombstone_retention_ms(topics[partition.topic]),
            now_ms=now_ms,
        )
        for partition in partitions
    }


def slowest_positions(
    stores: Iterable[BulkStore], admin: Admin, application_id: str
) -> dict[TaskId, int | None]:
    """Return the stream time of each task's slowest key range, for stores whose rows expire.

    Faster ranges write later rows, but the slow range may still need rows expired by them. Call it
    before reading changelog ends: the times must not be ahead of the data.
    """
    expiring = [store for store in stores if store.spec.kind in SEGMENTED_KINDS]
    inputs = {
        task_id: (store, read)
        for store in expiring
        for number, read in enumerate(store.inputs)
        for task_id in store.tasks(number)
    }
    partitions_by_group: dict[str, set[TopicPartition]] = {}
    for task_id, (_, read) in inputs.items():
        group_id = offsets_group(application_id, task_id.shard)
        partitions_by_group.setdefault(group_id, set()).update(read)
    committed = {
        group_id: admin.committed(group_id, sorted(partitions), stable=False) if partitions else {}
        for group_id, partitions in partitions_by_group.items()
    }
    return {
        task_id: slowest_position_ms(
            [
                progress_of(committed[offsets_group(application_id, task_id.shard)].get(partition))
                for partition in read
            ],
            store.topology_hash,
            may_part=store.spec.kept_longer_ms > 0 or store.shards > 1,
        )
        for task_id, (store, read) in inputs.items()
    }


def slowest_of(positions: Mapping[TaskId, int | None], tasks: Iterable[TaskId]) -> int | None:
    """Return the least of some tasks' slowest positions; None if no key range of theirs is ahead.

    >>> first, second = TaskId.parse("0_0/0of2"), TaskId.parse("0_0/1of2")
    >>> slowest_of({}, [TaskId(0, 0)]), slowest_of({first: 9, second: 7}, [first, second])
    (None, 7)
    """
    times = [positions.get(task) for task in tasks]
    return min((time for time in times if time is not None), default=None)


def check_same_topics(facts: Iterable[ChangelogFacts], admin: Admin) -> None:
    topic_ids = {changelog.topic: changelog.topic_id for changelog in facts}
    now = admin.describe_topics(list(topic_ids))
    for topic, topic_id in topic_ids.items():
        if topic not in now or now[topic].topic_id != topic_id:
            raise StreamsError(
                f"changelog {topic} was deleted or recreated while it was read; its data is discarded, run it again"
            )
