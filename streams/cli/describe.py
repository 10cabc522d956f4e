"""`tidewheel describe`: what a topology looks like."""

import sys
from typing import Annotated

from cyclopts import Parameter

from streams.cli.output import print_json
from streams.cli.settings import SettingsOptions
from streams.errors import ConfigError
from streams.program import load_program, named
from streams.topics import spec_of

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def describe(
    target: str,
    /,
    *,
    mermaid: _Flag = False,
    execution: _Flag = False,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show a topology: sub-topologies, nodes, stores and topics, in Kafka Streams' text.

    No broker is asked. The text is the same on a terminal and in a file, to be compared or drawn.

    Args:
        target: MODULE:TOPOLOGY, such as app.py:topology.
        mermaid: Print a Mermaid flowchart instead.
        execution: Also say how each sub-topology runs: in batches, or record by record and why; and whether its tasks may
            be cut into key ranges, or why not.
        json: Print JSON instead.
        settings: Settings.
    """
    if mermaid and json:
        raise ConfigError("--mermaid and --json are two forms of one answer; choose one")
    settings = settings or SettingsOptions()
    program = load_program(target)
    overrides, file = settings.overrides(), settings.config_file()
    if not named(program.defaults, overrides, file):
        overrides["application_id"] = "described"  # needed by settings, not by a description
    config = program.config(overrides, file)
    topology = program.topology(config)
    spec_of(topology, config)  # what would be found wrong at the start is said now
    description = topology.describe(execution=execution)
    if json:
        print_json(description.to_dict())
    else:
        text = description.to_mermaid() if mermaid else str(description)
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0
