"""Application plan under an application's settings."""

from collections.abc import Mapping

from tidewheel.streams.config import StreamsConfig
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.processing.api.topology_spec import TopologySpec


def configured_plan(
    spec: TopologySpec, config: StreamsConfig, topics: Mapping[str, int]
) -> ApplicationPlan:
    """Return the plan of a topology on a cluster with `topics` (name -> partition count).

    Raises as `plan_application` does.
    """
    plan = plan_application(
        spec,
        config.application_id,
        topics,
        replication_factor=config.replication_factor,
        factor=config.parallelising_factor,
        repartition_config=config.repartition_topic_config,
    )
    return with_shards(plan, config.partition_shards, config.default_timestamp_extractor)
