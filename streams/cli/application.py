"""The application of a command, named by its program, its id, or the settings."""

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.processes.user_program import (
    Program,
    effective_config,
    load_program,
    named,
    topology_setting,
)


def application_of(
    target: str | None, settings: SettingsOptions, *, whole: bool = False
) -> tuple[StreamsConfig, Program | None]:
    """Return an application's settings, and its program if `target` names one.

    Args:
        target: MODULE:TOPOLOGY, an application's id, or None: the settings must name it.
        whole: Without a target, load the program that the setting `topology` names, if there is one.

    Raises:
        ConfigError: No application is named, or two different ones.
    """
    overrides, file = settings.overrides(), settings.config_file()
    if target is None and whole:
        target = topology_setting(overrides, file)
    if target is None:
        if not named({}, overrides, file):
            raise ConfigError(
                "which application? Give its MODULE:TOPOLOGY, its id, or --application-id"
            )
        return effective_config({}, overrides, file), None
    if ":" in target or target.endswith(".py"):
        program = load_program(target)
        return program.config(overrides, file), program
    if overrides.get("application_id", target) != target:
        raise ConfigError(
            f"the application is {target!r} and --application-id {overrides['application_id']!r}; give one of the two"
        )
    return effective_config({}, {**overrides, "application_id": target}, file), None
