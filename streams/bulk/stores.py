"""Which stores of an application are worked on in bulk, and what the cluster says of their changelogs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.bulk_restore.manifest import ChangelogFacts
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError, MissingSourceTopicError, StreamsError
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.internal_topics import ApplicationPlan, changelog_topic, plan_application
from tidewheel.tasks.key_ranges.progress_vector import slowest_position_ms
from tidewheel.tasks.ports import Admin
from tidewheel.tasks.restore.start_positions import progress_of
from tidewheel.tasks.restore.store_restore import RESTORE_SETTINGS, tombstone_retention_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStore:
    """A store with a changelog.

    Attributes:
        spec: What it is, with its serdes.
        topic: Its changelog.
        subtopology: The sub-topology whose tasks have it.
        partitions: How many.
        inputs: What the task of each partition reads; empty if that is not known.
        topology_hash: Tells the application's topology from others, in commits.
    """

    spec: StoreSpec
    topic: str
    subtopology: int
    partitions: int
    inputs: tuple[frozenset[TopicPartition], ...] = ()
    topology_hash: bytes = b""

    @property
    def name(self) -> str:
        """Return the store's name."""
        return self.spec.name

    def task(self, partition: int) -> TaskId:
        """Return the task that has a partition of it."""
        return TaskId(self.subtopology, partition)

    def changelog(self, partition: int) -> TopicPartition:
        """Return a partition of its changelog."""
        return TopicPartition(self.topic, partition)


def application_plan(topology: Topology, config: StreamsConfig, admin: Admin) -> ApplicationPlan:
    """Return the application as its workers run it on this cluster."""
    return plan_application(
        topology.spec(config),
        config.application_id,
        admin.list_topics(),
        factor=config.parallelising_factor,
    )


def bulk_stores(
    topology: Topology, config: StreamsConfig, admin: Admin, names: Sequence[str] | None = None
) -> list[BulkStore]:
    """Return the stores that have a changelog: all, or those named.

    Raises:
        ConfigError: A name is none of the topology's, or that store has no changelog.
        StreamsError: The topics are not there, or not as the topology needs them.
    """
    plan = application_plan(topology, config, admin)
    topology_hash = bytes.fromhex(topology.hash())
    found: dict[str, BulkStore] = {}
    without: dict[str, str] = {}
    custom: set[str] = set()
    for number, subtopology in sorted(plan.subtopologies.items()):
        for spec in subtopology.spec.stores:
            if spec.kind is StoreKind.CUSTOM:
                custom.add(spec.name)
            elif spec.logging:
                found[spec.name] = BulkStore(
                    spec=spec,
                    topic=changelog_topic(config.application_id, spec.name),
                    subtopology=number,
                    partitions=subtopology.partitions,
                    inputs=tuple(map(subtopology.inputs, range(subtopology.partitions))),
                    topology_hash=topology_hash,
                )
            else:
                without[spec.name] = spec.source_topic or ""
    if names is None:
        return list(found.values())
    for name in names:
        if name not in found:
            raise ConfigError(_why_not(name, without, list(found), custom=name in custom))
    return [found[name] for name in dict.fromkeys(names)]


def check_no_headers(stores: Iterable[BulkStore], what: str) -> None:
    """Raise `StreamsError` if one of these stores keeps headers, which files of rows can't hold."""
    kept = sorted(store.name for store in stores if store.spec.keeps_headers)
    if kept:
        raise StreamsError(
            f"store {', '.join(kept)} keeps headers (dsl_store_format, headers=), which {what} would lose; leave it out by "
            "naming the other stores: workers restore it from its changelog"
        )


def _why_not(name: str, without: dict[str, str], known: list[str], *, custom: bool) -> str:
    if custom:
        return (
            f"store {name!r} is a custom one: what the records of its changelog mean is known to its own class only, so it "
            "can't be read or made here; leave it out, its task restores it from the changelog"
        )
    if without.get(name):
        return (
            f"store {name!r} has no changelog of its own: it is restored from topic {without[name]}, up to what the "
            'application has committed; leave it out, or build with topology_optimization="none"'
        )
    if name in without:
        return f"store {name!r} has no changelog (logging=False), so there is nothing to make it from; leave it out"
    hint = did_you_mean(name, known) or f"there is {', '.join(sorted(known)) or 'none'}"
    return f"there is no store {name!r} with a changelog; {hint}"


def changelog_facts(
    stores: Sequence[BulkStore], admin: Admin, now_ms: int
) -> dict[TopicPartition, ChangelogFacts]:
    """Return what the cluster says of all partitions of some stores' changelogs.

    Ends were asked for after `now_ms`, the stable ones first.

    Raises:
        MissingSourceTopicError: A changelog is not there yet; says what makes it.
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
        each: ChangelogFacts(
            topic=each.topic,
            topic_id=topics[each.topic].topic_id,
            partition_count=topics[each.topic].partitions,
            partition=each.partition,
            log_start=starts[each],
            log_end=ends[each],
            stable_end=stable[each],
            tombstone_retention_ms=tombstone_retention_ms(topics[each.topic]),
            now_ms=now_ms,
        )
        for each in partitions
    }


def slowest_positions(
    stores: Iterable[BulkStore], admin: Admin, group_id: str
) -> dict[TaskId, int | None]:
    """Return how far the slowest key range of each task is now, of the tasks whose stores' rows expire.

    Ranges that are ahead write later rows, but what has expired by those the slow one may still need. It is asked before
    the ends of the changelogs are, so that it holds for all that is read (`tidewheel.tasks.key_ranges.progress_vector.slowest_position_ms`).
    """
    expiring = [store for store in stores if store.spec.kind in SEGMENTED_KINDS]
    inputs = {
        store.task(number): (store, read)
        for store in expiring
        for number, read in enumerate(store.inputs)
    }
    asked = sorted({partition for _, read in inputs.values() for partition in read})
    committed = admin.committed(group_id, asked, stable=False) if asked else {}
    return {
        task_id: slowest_position_ms(
            [progress_of(committed.get(partition)) for partition in read],
            store.topology_hash,
            may_part=store.spec.kept_longer_ms > 0,
        )
        for task_id, (store, read) in inputs.items()
    }


def check_same_topics(facts: Iterable[ChangelogFacts], admin: Admin) -> None:
    """Raise `StreamsError` if a changelog was made anew since its facts were asked: what was read is of two topics."""
    known = {each.topic: each.topic_id for each in facts}
    now = admin.describe_topics(list(known))
    for topic, topic_id in known.items():
        if topic not in now or now[topic].topic_id != topic_id:
            raise StreamsError(
                f"changelog {topic} was deleted or made anew while it was read; nothing of it is used, run it again"
            )
