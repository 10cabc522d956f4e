"""`tidewheel top`: the state of a group, live."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Annotated, Final

from cyclopts import Parameter
from rich.live import Live

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.aside import Aside, exit_immediately
from tidewheel.streams.cli.group_access import group_access, moment_text
from tidewheel.streams.cli.group_view import range_lines, slow_record_lines, status_line
from tidewheel.streams.cli.live_view import LiveView, terminal_keys, wait_with_keys
from tidewheel.streams.cli.output import print_json, text_console
from tidewheel.streams.cli.status_reader import StatusReader, check_interval
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.status import GroupStatus

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

#: Seconds to close the clients at Ctrl-C; they only read, so killing them is safe.
_LEAVE_S: Final = 0.5

#: Waits for some seconds; returns True if the user ends the command.
_Wait = Callable[[float], bool]


def top(
    target: str | None = None,
    /,
    *,
    interval: float = 1.0,
    count: int | None = None,
    ranges: _Flag = False,
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Show a group live, until q or Ctrl-C.

    It has the figures of `status`. Moving tasks, and those with most lag, come first; s sorts by
    task, lag, rate or owner, r reverses. Arrows, Page Up, Page Down, g and G scroll. Without a
    terminal, each read prints one line. While no broker answers, the last figures stay, below the
    error. Ctrl-C always ends it immediately.

    Exit codes: 0 ended by q or Ctrl-C, or after --count reads; 1 no such group; 2 wrong command
    line; 7 Kafka could not be reached.

    Args:
        target: The application's MODULE:TOPOLOGY or id; or give --application-id.
        interval: Seconds between two reads.
        count: End after this number of reads.
        ranges: Also show the committed progress of each key range of each task; JSON always has it.
        json: Print each read as a line of JSON.
        settings: Settings.
    """
    check_interval(interval)
    if count is not None and count < 1:
        raise ConfigError(
            f"--count {count}: give at least 1, or leave it out to continue until Ctrl-C"
        )
    opened, aside = ExitStack(), Aside("tidewheel-top")

    def open_group() -> StatusReader:
        access = opened.enter_context(group_access(target, settings, live=True))
        access.check_exists()
        access.shows_ranges = ranges or json
        return StatusReader(access)

    leave_s = None if count else _LEAVE_S
    try:
        status_reader = aside.call(open_group)
        reads = _StatusReads(lambda: aside.call(status_reader.read_status), interval, count)
        if sys.stdout.isatty() and not json:
            _show(reads)
        else:
            _print(reads, json=json)
    except KeyboardInterrupt:  # the usual end
        leave_s = _LEAVE_S
    except BaseException:
        aside.call(opened.close)
        raise
    try:
        aside.call(opened.close, leave_s)
    except TimeoutError:
        exit_immediately(ExitCode.OK)
    return ExitCode.OK


class _StatusReads:
    def __init__(
        self, read_status: Callable[[], GroupStatus], interval_s: float, count: int | None
    ) -> None:
        self._read_status = read_status
        self._interval_s = interval_s
        self._count = count

    def each(self, wait: _Wait) -> Generator[tuple[GroupStatus | None, str]]:
        """Yield each status, or None and the error; stop after `count`, or when the user quits."""
        done = 0
        while True:
            began_s = time.monotonic()
            try:
                yield self._read_status(), ""
            except StreamsError as error:
                yield None, str(error)
            done += 1
            if done == self._count:
                return
            if wait(max(self._interval_s - (time.monotonic() - began_s), 0)):
                return


def _print(reads: _StatusReads, *, json: bool) -> None:
    for status, problem in reads.each(_sleep):
        if json:
            print_json({"problem": problem} if status is None else status.to_dict())
            continue
        line = f"can't be read: {problem}" if status is None else _dated(status)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _dated(status: GroupStatus) -> str:
    lines = [f"{moment_text(status.read_ms)}  {status_line(status)}"]
    lines += [f"  ! {alarm.text}" for alarm in status.alarms]
    lines += [f"  {line}" for line in slow_record_lines(status)]
    lines += [f"  {line}" for line in range_lines(status)]
    return "\n".join(lines)


def _show(reads: _StatusReads) -> None:
    console, view = text_console(), LiveView()
    with (
        terminal_keys() as read_key,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):

        def draw() -> None:
            live.update(view.screen(console.width, console.height), refresh=True)

        def on_key(key: str) -> None:
            view.press(key)
            draw()

        for status, problem in reads.each(
            lambda seconds: wait_with_keys(read_key, seconds, on_key)
        ):
            view.status, view.problem = status or view.status, problem
            draw()


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
