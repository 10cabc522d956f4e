"""Topics of an application: those that it reads, writes and creates on a cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.kafka.internal_topics import (
    ApplicationPlan,
    missing_source_topics,
)
from tidewheel.tasks.kafka.ports import Admin
from tidewheel.tasks.processing.api.topology_spec import TopologySpec


class Existence(StrEnum):
    EXISTS = "exists"
    CREATED = "created at the start"
    MISSING = "missing: create it"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTopic:
    """A topic of an application; `partitions` is None while they depend on a missing topic."""

    name: str
    role: str
    partitions: int | None
    existence: Existence


def application_topics(
    topology: Topology, config: StreamsConfig, admin: Admin
) -> tuple[AppTopic, ...]:
    """Return the topics in the order sources, outputs, internal ones, group.

    Raises:
        CopartitioningError: Joined topics have different partition counts.
        InternalTopicError: An internal topic has the wrong number of partitions.
        StreamsError: This principal may not describe a topic.
    """
    spec, existing = spec_of(topology, config), admin.list_topics()
    missing = missing_source_topics(spec, existing)
    # A list of all topics lacks those that this principal may not describe; this call raises.
    admin.describe_topics(sorted(missing))
    plan = configured_plan(spec, config, existing | _assumed(spec, existing, missing))
    topics = (
        *_sources(plan, existing),
        *_outputs(spec, config, existing),
        *_created(plan, existing, counted=not missing),
        *_of_group(config.application_id, existing),
    )
    admin.describe_topics([topic.name for topic in topics if topic.name not in existing])
    return topics


def _assumed(spec: TopologySpec, existing: Mapping[str, int], missing: set[str]) -> dict[str, int]:
    """Return partition counts of missing sources: those of the topics joined with them, or 1."""
    groups = [
        group for subtopology in spec.subtopologies for group in subtopology.copartition_groups
    ]
    return {
        topic: max(
            (existing.get(partner, 1) for group in groups if topic in group for partner in group),
            default=1,
        )
        for topic in missing
    }


def _sources(plan: ApplicationPlan, existing: Mapping[str, int]) -> Iterator[AppTopic]:
    created = {topic.name for topic in plan.repartition_topics}
    tables = sorted({store.topic for store in plan.global_stores})
    read = {
        topic
        for subtopology in plan.subtopologies.values()
        for topic in subtopology.topic_partitions
    }
    for topic in sorted(read - created):
        yield _own(topic, "source", existing)
    for topic in tables:
        yield _own(topic, "global table", existing)


def _outputs(
    spec: TopologySpec, config: StreamsConfig, existing: Mapping[str, int]
) -> Iterator[AppTopic]:
    written = {
        sink.topic
        for subtopology in spec.subtopologies
        for sink in subtopology.sinks
        if not sink.internal and isinstance(sink.topic, str)
    }
    for topic in sorted(written):
        yield _own(topic, "output", existing)
    if config.dead_letter_queue_topic:
        yield _own(config.dead_letter_queue_topic, "dead letters", existing)


def _created(
    plan: ApplicationPlan, existing: Mapping[str, int], *, counted: bool
) -> Iterator[AppTopic]:
    for role, topics in (
        ("repartition", plan.repartition_topics),
        ("changelog", plan.changelog_topics),
    ):
        for topic in topics:
            is_there = topic.name in existing
            yield AppTopic(
                name=topic.name,
                role=role,
                partitions=topic.partitions if counted or is_there else None,
                existence=Existence.EXISTS if is_there else Existence.CREATED,
            )


def _of_group(application_id: str, existing: Mapping[str, int]) -> Iterator[AppTopic]:
    for name in (state_topic(application_id), inbox_topic(application_id)):
        yield AppTopic(
            name=name,
            role="group",
            partitions=1,
            existence=Existence.EXISTS if name in existing else Existence.CREATED,
        )


def _own(name: str, role: str, existing: Mapping[str, int]) -> AppTopic:
    return AppTopic(
        name=name,
        role=role,
        partitions=existing.get(name),
        existence=Existence.EXISTS if name in existing else Existence.MISSING,
    )
