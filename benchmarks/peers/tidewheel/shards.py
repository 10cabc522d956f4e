"""Tidewheel's program of the suite shards: a count by key after arithmetic, in one of several workers.

Settings without an argument keep Tidewheel's defaults.
"""

import sys
from functools import partial

from tidewheel import (
    KafkaStreams,
    Materialized,
    RunOptions,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)


def computed(rounds: int, value: bytes) -> bytes:
    """Return the value after a number of rounds of arithmetic, about 0.07 µs each."""
    number = len(value)
    for _ in range(rounds):
        number = (number * 1_103_515_245 + 12_345) & 0xFFFF_FFFF
    assert number >= 0
    return value


def topology(rounds: int, input_topic: str, output_topic: str) -> Topology:
    builder = StreamsBuilder()
    records = builder.stream(input_topic, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    if rounds:
        records = records.map_values(partial(computed, rounds))
    counts = records.group_by_key().count(store=Materialized("counts", caching=False))
    counts.to_stream().to(output_topic, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def main(parameters: dict[str, str]) -> None:
    exactly_once = parameters["guarantee"] == "exactly_once"
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        partition_shards=int(parameters["shards"]),
        commit_interval_ms=int(parameters["commit_interval_ms"]),
        processing_guarantee="exactly_once" if exactly_once else "at_least_once",
        state_dir=parameters["state_dir"],
    )
    slot, workers = int(parameters["slot"]), int(parameters["workers"])
    options = RunOptions(slot=slot, workers=workers, fixed=True)
    job = topology(int(parameters["rounds"]), parameters["input_topic"], parameters["output_topic"])
    KafkaStreams(job, config, options=options).run()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
