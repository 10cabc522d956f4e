"""The options by which commands take an application's settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tidewheel.streams.cli.arguments import parse_assignments


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsOptions:
    """Settings given on the command line; they win over the program's own, the environment and the settings file.

    Attributes:
        bootstrap_servers: Brokers to ask first, host:port with commas between; localhost:9092 if nothing names any.
        application_id: Name of the application: its group, its internal topics, its folder of state.
        state_dir: Directory of local state.
        config: A TOML file of settings, instead of tidewheel.toml.
        assignments: Any setting, option=value; consumer.NAME=value sets a client's property. Repeat it for more.
    """

    bootstrap_servers: str | None = None
    application_id: str | None = None
    state_dir: Path | None = None
    config: Path | None = None
    assignments: Annotated[
        tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)
    ] = ()

    def overrides(self) -> dict[str, Any]:
        """Return the options that were given."""
        given: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": self.application_id,
            "state_dir": None if self.state_dir is None else str(self.state_dir),
        }
        named = {option: value for option, value in given.items() if value is not None}
        return parse_assignments(self.assignments) | named

    def config_file(self) -> str | None:
        """Return the file to read, if one was named."""
        return None if self.config is None else str(self.config)
