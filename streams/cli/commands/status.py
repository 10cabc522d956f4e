"""`tidewheel status`: the state of a group."""

from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.group_access import group_access
from tidewheel.streams.cli.group_view import alarm_lines, body_lines, head_lines
from tidewheel.streams.cli.output import print_json, text_console
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.status import GroupStatus

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def status(
    target: str | None = None,
    /,
    *,
    ranges: _Flag = False,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show a group: members, tasks, learners with their progress, and alarms.

    The source is the group's two topics; no member is asked, and none needs to run. Figures older
    than their member's session timeout are marked as stale.

    Exit codes: 0 no alarm; 1 alarms, or no such group; 7 Kafka could not be reached.

    Args:
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        ranges: Also show the committed progress of each key range of each task; JSON always has it.
        json: Print one JSON object instead of text.
        settings: Settings.
    """
    as_json = json
    with group_access(target, settings) as access:
        access.check_exists()
        access.shows_ranges = ranges or as_json
        access.reads_once = True
        now = access.read_status()
    if as_json:
        print_json(now.to_dict())
    else:
        _print(now)
    return ExitCode.FAILED if now.alarms else ExitCode.OK


def _print(status: GroupStatus) -> None:
    console = text_console()
    width = console.width
    for line in (*head_lines(status, width), *alarm_lines(status), *body_lines(status, width)):
        # Alarms are longer than a line; in a pipe or a file each stays on its own.
        console.print(line, soft_wrap=not console.is_terminal)
