"""Tidewheel's side of the job count_by_key: the program its documentation would have you write.

Arguments are NAME=VALUE pairs, the same for every peer, and `workers`. Runs until SIGTERM, then drains
and closes. What no argument names keeps Tidewheel's own default. With more than one worker this becomes
`tidewheel run --workers N`, whose workers find the job's topics in the environment.
"""

import os
import sys
from typing import Literal

from streams import KafkaStreams, Materialized, Serdes, StreamsBuilder, StreamsConfig, Topology


def topology(input_topic: str, output_topic: str, *, caching: bool) -> Topology:
    """Return the job: how often each key was seen, as a stream of counts."""
    builder = StreamsBuilder()
    (
        builder.stream(input_topic, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .count(store=Materialized("counts", caching=caching))
        .to_stream()
        .to(output_topic, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder.build()


def topology_of_environment() -> Topology:
    """Return the job for a worker of `tidewheel run`."""
    return topology(
        os.environ["JOB_INPUT"], os.environ["JOB_OUTPUT"], caching=os.environ["JOB_CACHE"] != "0"
    )


def run_workers(parameters: dict[str, str]) -> None:
    """Become `tidewheel run --workers N` for this job."""
    settings = {
        "processing_guarantee": parameters["guarantee"],
        "commit_interval_ms": parameters["commit_interval_ms"],
        # The budget of a process; the other systems' numbers are per program too.
        "statestore_cache_max_bytes": str(
            int(parameters["cache_bytes"]) // int(parameters["workers"])
        ),
    }
    command = [sys.executable, "-m", "streams", "run", f"{__file__}:topology_of_environment"]
    for name in ("bootstrap_servers", "application_id", "state_dir", "workers"):
        command += [f"--{name.replace('_', '-')}", parameters[name]]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    job = {
        "JOB_INPUT": parameters["input_topic"],
        "JOB_OUTPUT": parameters["output_topic"],
        "JOB_CACHE": parameters["cache_bytes"],
    }
    os.execve(sys.executable, command, {**os.environ, **job})  # noqa: S606 - our own program


def main(parameters: dict[str, str]) -> None:
    """Run the application until a signal stops it."""
    if int(parameters.get("workers", "1")) > 1:
        run_workers(parameters)
    guarantee: Literal["exactly_once", "at_least_once"] = (
        "exactly_once" if parameters["guarantee"] == "exactly_once" else "at_least_once"
    )
    cache_bytes = int(parameters["cache_bytes"])
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        processing_guarantee=guarantee,
        commit_interval_ms=int(parameters["commit_interval_ms"]),
        statestore_cache_max_bytes=cache_bytes,
    )
    job = topology(parameters["input_topic"], parameters["output_topic"], caching=cache_bytes > 0)
    KafkaStreams(job, config).run()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
