"""`tidewheel describe`: a topology as text, diagram or JSON."""

import sys
from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.output import print_json
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.processes.user_program import load_program, named, target_of
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.processing.api.topology_spec import TopologySpec

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def describe(
    target: str | None = None,
    /,
    *,
    mermaid: _Flag = False,
    execution: _Flag = False,
    json: _Flag = False,
    check: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show a topology: sub-topologies, nodes, stores and topics, in Kafka Streams' text.

    Only --check connects to brokers. The text is the same on a terminal and in a file, for
    comparison.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology; default: the setting topology.
        mermaid: Print a Mermaid flowchart instead.
        execution: Also show the execution of each sub-topology: in batches, or record by record
            with the reason. Also show if its tasks can be divided into key ranges, else the reason.
        json: Print JSON instead.
        check: Check the cluster's topics instead: all inputs exist, and joined ones have equal
            partition counts. The keys of their first records must be in the partitions that their
            partitioner chooses.
        settings: Settings.
    """
    if check and (mermaid or json or execution):
        raise ConfigError(
            "--check answers another question than --mermaid, --json and --execution; give it alone"
        )
    if mermaid and json:
        raise ConfigError("--mermaid and --json are two forms of one answer; choose one")
    settings = settings or SettingsOptions()
    overrides, file = settings.overrides(), settings.config_file()
    program = load_program(target_of(target, overrides, file))
    if not named(program.defaults, overrides, file):
        overrides["application_id"] = "described"  # placeholder: settings require an id
    config = program.config(overrides, file)
    topology = program.topology(config)
    spec = spec_of(topology, config)  # raises the errors that `run` would raise
    if check:
        return _check(spec, config)
    description = topology.describe(execution=execution)
    if json:
        print_json(description.to_dict())
    else:
        text = description.to_mermaid() if mermaid else str(description)
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _check(spec: TopologySpec, config: StreamsConfig) -> int:
    from tidewheel.streams.worker.input_sample import sampled_inputs  # noqa: PLC0415 - imports the Kafka client, which only --check needs

    sample, topics = sampled_inputs(spec, config)
    for topic in topics:
        text = sample.finding(topic)
        sampled = sample.sampled(topic)
        fine = f"topic {topic}: {sampled} sampled keys are where they should be"
        sys.stdout.write(f"{text or (fine if sampled else f'topic {topic}: no key was sampled')}\n")
    if not topics:
        sys.stdout.write("no input meets another topic in a store, so any partitioner will do\n")
    return ExitCode.FAILED if sample.findings(topics) else ExitCode.OK
