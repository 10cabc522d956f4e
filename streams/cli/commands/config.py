"""`tidewheel config show`: the settings of an application, and the source of each."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.output import print_json, print_table, text_console
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.processes.user_program import effective_config, load_program, named

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

_UNSET: Final = "unset"


def show(
    target: str | None = None,
    /,
    *,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show every setting: its value (secrets hidden), its source and its meaning.

    Args:
        target: MODULE:TOPOLOGY of a program with settings of its own.
        json: Print JSON lines instead of text.
        settings: Settings.
    """
    settings = settings or SettingsOptions()
    overrides, file = settings.overrides(), settings.config_file()
    defaults: StreamsConfig | Mapping[str, Any] = (
        {} if target is None else load_program(target).defaults
    )
    has_name = named(defaults, overrides, file)
    if not has_name:
        overrides["application_id"] = _UNSET
    config = effective_config(defaults, overrides, file)
    rows = [
        (row.option, row.value, row.source, row.description)
        if has_name or row.option != "application_id"
        else (row.option, "", "not set, but required", row.description)
        for row in config.describe()
    ]
    if json:
        for option, value, source, description in rows:
            print_json(
                {"option": option, "value": value, "source": source, "description": description}
            )
        return 0
    print_table("Settings", ["option", "value", "source", "meaning"], rows)
    for caution in config.cautions():
        text_console().print("caution:", style="bold yellow", end=" ")
        text_console().print(caution, markup=False, emoji=False, soft_wrap=True)
    return 0
