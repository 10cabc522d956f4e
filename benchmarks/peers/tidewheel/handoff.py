"""Tidewheel's program of the suite handoff: a count per key, signed by its instance."""

import logging
import sys
from typing import Any

from tidewheel import KafkaStreams, Materialized, Serdes, StreamsBuilder, StreamsConfig


def main(parameters: dict[str, str]) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(created).3f %(name)s %(levelname)s %(message)s"
    )
    instance = parameters["instance"]
    builder = StreamsBuilder()
    (
        builder.stream(
            parameters["input_topic"], key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
        )
        .group_by_key()
        .count(store=Materialized("counts", caching=False))
        .to_stream()
        .map_values(lambda count: f"{count} {instance}")
        .to(parameters["output_topic"], key_serde=Serdes.bytes(), value_serde=Serdes.string())
    )
    options: dict[str, Any] = {
        name: int(parameters[name])
        for name in (
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "num_standby_replicas",
            "settling_ms",
            "partition_shards",
        )
        if name in parameters
    }
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        processing_guarantee="exactly_once"
        if parameters["guarantee"] == "exactly_once"
        else "at_least_once",
        commit_interval_ms=int(parameters["commit_interval_ms"]),
        group_instance_id=parameters.get("group_instance_id"),
        **options,
    )
    KafkaStreams(builder.build(config), config).run()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
