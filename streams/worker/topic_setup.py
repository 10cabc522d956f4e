"""Topic setup: waits for source topics or creates them, and creates internal topics."""

import logging
import threading
from collections.abc import Collection, Mapping

from tidewheel.rebalance.model import TaskId
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.definitions.names import where
from tidewheel.streams.errors import ConfigError, StreamsError, TopologyError
from tidewheel.streams.topology.key_placement import with_input_partitioners
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.kafka.internal_topics import (
    LIMITS,
    MESSAGE_BYTES,
    ApplicationPlan,
    absence,
    changelog_topic,
    configure_command,
    internal_prefix,
    limits_too_low,
    missing_output_topics,
    missing_source_topics,
    with_message_bytes,
)
from tidewheel.tasks.kafka.ports import Admin, Clock, NewTopic
from tidewheel.tasks.kafka.shard_inputs import all_committed
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.processing.api.topology_spec import SinkSpec, TopologySpec

_log = logging.getLogger("tidewheel")

_WAIT_S = 1.0
_REMIND_S = 30.0
#: Kafka's limit (Topic.MAX_NAME_LENGTH).
_NAME_MAX = 249


def spec_of(topology: Topology, config: StreamsConfig) -> TopologySpec:
    """Return the specification of a topology under these settings.

    Raises `TopologyError` if an internal topic's name is too long, or if a sink writes to one.
    """
    spec = with_input_partitioners(topology.spec(config), config.input_partitioners)
    prefix = internal_prefix(config.application_id)
    internal: dict[str, str] = {}
    for sub in spec.subtopologies:
        internal |= {
            changelog_topic(
                config.application_id, store.name
            ): f"the changelog of store {store.name}"
            for store in sub.stores
            if store.logging
        } | {
            prefix + topic: f"the repartition topic of {source.name}"
            for source in sub.sources
            if source.internal
            for topic in source.topics
        }
    for topic, purpose in internal.items():
        if len(topic) > _NAME_MAX:
            raise TopologyError(
                f"{purpose} would be called {topic}, which has {len(topic)} characters; Kafka allows {_NAME_MAX}: "
                f"shorten the name, or application_id ({len(config.application_id)} characters)"
            )
    for node in (spec_node for sub in spec.subtopologies for spec_node in sub.nodes):
        if not isinstance(node, SinkSpec) or node.internal or not isinstance(node.topic, str):
            continue
        if (conflict := internal.get(node.topic)) is not None:
            raise TopologyError(
                f"{where(repr(node.name), node.location)}: topic {node.topic!r} is {conflict} of this application, which "
                "only the application may write; choose another topic"
            )
    return spec


def prepare_topics(
    spec: TopologySpec,
    config: StreamsConfig,
    admin: Admin,
    *,
    options: RunOptions,
    topology_hash: bytes,
    stopped: threading.Event,
    clock: Clock,
) -> ApplicationPlan | None:
    """Return the plan once all topics exist, or None if stopped while waiting.

    Raises `MissingSourceTopicError`, and `StreamsError` for deleted changelogs and internal topics
    with other partition counts.
    """
    topics = _source_topics(spec, admin, options, stopped, clock)
    if topics is None:
        return None
    _find_outputs(spec, admin, options, topics)
    return plan_with_topics(spec, config, admin, topics, topology_hash, options.tasks or ())


def _find_outputs(
    spec: TopologySpec, admin: Admin, options: RunOptions, topics: Mapping[str, int]
) -> None:
    """Create missing output topics with `create_topics`, else warn: one may be created later."""
    missing = sorted(missing_output_topics(spec, topics))
    if missing and options.create_topics:
        _log.info("creating output topics: %s", ", ".join(missing))
        admin.create_topics([NewTopic(name=name, partitions=-1) for name in missing])
        return
    for name in missing:
        _log.warning(
            "output topic %s does not exist, and the first record for it would end the application; create it: "
            "tidewheel topics create %s --partitions N, or start with --create-topics",
            name,
            name,
        )


def plan_with_topics(
    spec: TopologySpec,
    config: StreamsConfig,
    admin: Admin,
    topics: Mapping[str, int],
    topology_hash: bytes,
    tasks: Collection[TaskId] = (),
) -> ApplicationPlan:
    """Return the plan on a cluster with these topics, and create missing internal topics.

    Raises as `prepare_topics` does, and `ConfigError` for unknown `tasks` before creating anything.
    """
    plan = configured_plan(spec, config, topics)
    unknown = sorted(set(tasks).difference(plan.tasks))
    if unknown:
        raise ConfigError(
            f"--tasks names {', '.join(map(str, unknown))}, but the application's tasks are "
            f"{', '.join(map(str, plan.tasks))}{_about_shards(unknown, plan, config)}"
        )
    internal = [
        topic for topic in (*plan.repartition_topics, *plan.changelog_topics) if topic.partitions
    ]
    if internal:
        plan = _with_limits_of_inputs(plan, config, admin, topics)
        internal = [
            topic
            for topic in (*plan.repartition_topics, *plan.changelog_topics)
            if topic.partitions
        ]
    missing = [topic for topic in internal if topic.name not in topics]
    _check_deleted(plan, topics, config.application_id, topology_hash, admin)
    if missing:
        _log.info(
            "creating internal topics: %s",
            ", ".join(f"{t.name} ({t.partitions} partitions)" for t in missing),
        )
        admin.create_topics(missing)
    return plan


def _about_shards(unknown: Collection[TaskId], plan: ApplicationPlan, config: StreamsConfig) -> str:
    partitions = {task.whole for task in plan.tasks}
    if not any(task.whole in partitions for task in unknown):
        return ""
    return (
        f" with partition_shards={config.partition_shards}; `describe --execution` shows the sub-topologies that stay "
        "whole"
    )


def _with_limits_of_inputs(
    plan: ApplicationPlan, config: StreamsConfig, admin: Admin, topics: Mapping[str, int]
) -> ApplicationPlan:
    """Return a plan whose internal topics accept the inputs' largest records.

    Warn of existing internal topics with lower limits.
    """
    names = {topic.name for topic in (*plan.repartition_topics, *plan.changelog_topics)}
    inputs = {
        topic
        for subtopology in plan.subtopologies.values()
        for topic in subtopology.topic_partitions
    } - names
    existing = names.intersection(topics)
    described = admin.describe_topics(sorted(inputs | existing), config=LIMITS)
    largest = [
        int(topic.config[MESSAGE_BYTES])
        for name, topic in described.items()
        if name in inputs and MESSAGE_BYTES in topic.config
    ]
    if largest:
        plan = with_message_bytes(plan, max(largest))
    for topic in (*plan.repartition_topics, *plan.changelog_topics):
        if topic.name not in described:
            continue
        limits = limits_too_low(topic, described[topic.name].config)
        if limits:
            settings = ",".join(f"{name}={value}" for name, value in limits.items())
            _log.warning(
                "internal topic %s rejects records that its inputs may contain, because of %s: the application would end with "
                "an error at such a record. Raise the limits: %s",
                topic.name,
                ", ".join(f"{name} {described[topic.name].config[name]}" for name in limits),
                configure_command(topic.name, settings, config.bootstrap_servers),
            )
    return plan


def _check_deleted(
    plan: ApplicationPlan,
    topics: Mapping[str, int],
    application_id: str,
    topology_hash: bytes,
    admin: Admin,
) -> None:
    """Raise if changelogs are missing although this topology has committed after creating them.

    Recreated changelogs would be empty, but the committed offsets would skip the input they came
    from. Only commits of the changelog's own sub-topology count.
    """
    missing: dict[str, set[str]] = {}
    for subtopology in plan.subtopologies.values():
        names = {
            changelog_topic(application_id, store.name)
            for store in subtopology.spec.stores
            if store.logging
        }
        for topic in subtopology.topic_partitions if names - topics.keys() else ():
            missing.setdefault(topic, set()).update(names - topics.keys())
    if not missing:
        return
    for partition, committed in all_committed(admin, application_id).items():
        progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
        changelogs = missing.get(partition.topic)
        if changelogs and progress is not None and progress.topology_hash == topology_hash:
            raise StreamsError(
                f"{absence('changelog', changelogs)} any more, but this topology has committed offset "
                f"{committed.offset} of {partition}: its state would be lost. Bring back what is missing, or "
                "run `tidewheel reset` to process the input again"
            )


def _source_topics(
    spec: TopologySpec, admin: Admin, options: RunOptions, stopped: threading.Event, clock: Clock
) -> Mapping[str, int] | None:
    next_reminder_s = clock.monotonic_s()
    while True:
        topics = admin.list_topics()
        missing = sorted(missing_source_topics(spec, topics))
        if missing and options.create_topics:
            _log.info("creating source topics: %s", ", ".join(missing))
            admin.create_topics([NewTopic(name=name, partitions=-1) for name in missing])
            continue
        if not missing or not options.wait_for_topics:
            return topics
        if clock.monotonic_s() >= next_reminder_s:
            _log.warning("waiting for source topics: %s", ", ".join(missing))
            next_reminder_s = clock.monotonic_s() + _REMIND_S
        if stopped.wait(_WAIT_S):
            return None
