"""The command line: its commands, and errors as messages with exit codes."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Final, NamedTuple

from cyclopts import App, CycloptsError

from tidewheel.streams.cli.completion import install_completion
from tidewheel.streams.cli.help_imports import leave_out_work
from tidewheel.streams.cli.output import (
    OutputError,
    discard_output,
    prepare_streams,
    print_error,
    text_console,
)
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.exit_codes import ExitCode, exit_code_of

_HELP: Final = """Kafka Streams for Python: exactly-once stateful stream processing on Kafka and RocksDB.

Try 'tidewheel demo' for a first look, 'tidewheel broker' for a Kafka to develop with.
"""


class _Command(NamedTuple):
    """A command: its function, imported when called, and the first sentence of its help.

    The list of commands shows the summary, because importing all functions takes a second.
    """

    path: str
    summary: str


_INSTALL_COMPLETION: Final = "--install-completion"

#: Commands in the order of the help.
_COMMANDS: Final = {
    "run": _Command(
        "tidewheel.streams.cli.commands.run:run",
        "Run an application until Ctrl-C or SIGTERM.",
    ),
    "describe": _Command(
        "tidewheel.streams.cli.commands.describe:describe",
        "Show a topology: sub-topologies, nodes, stores and topics, in Kafka Streams' text.",
    ),
    "demo": _Command(
        "tidewheel.streams.cli.commands.demo:demo",
        "Run a demo: 336,776 real flights through a stateful topology on a real Kafka, exactly once.",
    ),
    "new": _Command(
        "tidewheel.streams.cli.commands.new:new",
        "Write a project: a topology, its test, settings, compose file, Dockerfile and CI workflow.",
    ),
    "broker": _Command(
        "tidewheel.streams.cli.commands.broker:broker",
        "Start a real Kafka on this machine and run it until Ctrl-C (or SIGTERM).",
    ),
    "produce": _Command(
        "tidewheel.streams.cli.commands.records.produce:produce",
        "Write the lines of standard input to a topic, one record each.",
    ),
    "consume": _Command(
        "tidewheel.streams.cli.commands.records.consume:consume",
        "Print the records of a topic until Ctrl-C, one JSON object a line.",
    ),
    "reset": _Command(
        "tidewheel.streams.cli.commands.reset:reset",
        "Reset an application: its offsets, its internal topics, its local state on this machine.",
    ),
    "reshard": _Command(
        "tidewheel.streams.cli.commands.reshard:reshard",
        "Change the number of shards (partition_shards) of an application that does not run.",
    ),
    "snapshot": _Command(
        "tidewheel.streams.cli.commands.bulk.snapshot:snapshot",
        "Make a snapshot of an application's stores; the application may run.",
    ),
    "restore": _Command(
        "tidewheel.streams.cli.commands.bulk.restore:restore",
        "Restore an application's state on this machine by Spark, before its workers start.",
    ),
    "bootstrap": _Command(
        "tidewheel.streams.cli.commands.bulk.bootstrap:bootstrap",
        "Load a store's content from files or a table, before its application runs.",
    ),
    "backfill": _Command(
        "tidewheel.streams.cli.commands.bulk.backfill:run_backfill",
        "Compute an application's state over history with Spark, before its workers start.",
    ),
    "status": _Command(
        "tidewheel.streams.cli.commands.status:status",
        "Show a group: members, tasks, learners with their progress, and alarms.",
    ),
    "top": _Command(
        "tidewheel.streams.cli.commands.top:top",
        "Show a group live, until q or Ctrl-C.",
    ),
    "dashboard": _Command(
        "tidewheel.streams.cli.commands.dashboard:dashboard",
        "Show a group as a live page for browsers, until Ctrl-C (or SIGTERM).",
    ),
    "drain": _Command(
        "tidewheel.streams.cli.commands.drain:drain",
        "Make a member leave: its tasks move to others while it keeps working, then it ends.",
    ),
}
#: Commands with subcommands (`tidewheel group history`): help, and functions by name.
_FAMILIES: Final = {
    "topics": (
        "List, create and describe topics, or show those that an application needs.",
        {
            "create": _Command(
                "tidewheel.streams.cli.commands.records.topics:create",
                "Create topics. One that exists with as many partitions is left as it is.",
            ),
            "describe": _Command(
                "tidewheel.streams.cli.commands.records.topics:describe",
                "Show topics: settings, and the first and next offset of each partition.",
            ),
        },
    ),
    "group": (
        "Show the history of an application's group, recover it, or bring it to rest.",
        {
            "history": _Command(
                "tidewheel.streams.cli.commands.group:history",
                "Show a group's history: members that came and left, assignments with reasons, moved tasks.",
            ),
            "recover": _Command(
                "tidewheel.streams.cli.commands.group:recover",
                "Restore a group after one of its two topics was deleted.",
            ),
            "rest": _Command(
                "tidewheel.streams.cli.commands.group:rest",
                "Bring a running application to rest: all input that it has taken is processed, and it takes no more.",
            ),
            "resume": _Command(
                "tidewheel.streams.cli.commands.group:resume",
                "Let an application continue after `tidewheel group rest`, or while that still waits.",
            ),
        },
    ),
    "state": (
        "Read an application's stores, compare them with their changelogs, and delete a key.",
        {
            "list": _Command(
                "tidewheel.streams.cli.commands.state:list_stores",
                "List an application's stores: kind, changelog, newest snapshot.",
            ),
            "get": _Command(
                "tidewheel.streams.cli.commands.state:get",
                "Show the row of a key, or its rows: windows, sessions, versions.",
            ),
            "scan": _Command(
                "tidewheel.streams.cli.commands.state:scan",
                "Show rows of a store, ordered by key within each partition.",
            ),
            "verify": _Command(
                "tidewheel.streams.cli.commands.state:verify",
                "Compare stores with their changelogs by Spark: newest snapshot and this machine's databases.",
            ),
            "delete": _Command(
                "tidewheel.streams.cli.commands.erase:delete",
                "Delete a key from a store of a running application: its row, windows, sessions or versions.",
            ),
        },
    ),
    "config": (
        "Show the settings an application would run with.",
        {
            "show": _Command(
                "tidewheel.streams.cli.commands.config:show",
                "Show every setting: its value (secrets hidden), its source and its meaning.",
            )
        },
    ),
}
#: Functions of such commands without a subcommand.
_DEFAULTS: Final = {"topics": "tidewheel.streams.cli.commands.records.topics:topics"}
_ASK_FOR_HELP: Final = frozenset({"--help", "-h", "--version"})


def command_names() -> list[str]:
    """Return the names of all commands: `run`, `topics`, `topics create`."""
    subcommands = [
        f"{family} {name}" for family, (_, commands) in _FAMILIES.items() for name in commands
    ]
    return [*_COMMANDS, *_DEFAULTS, *subcommands]


def program_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - costs 40 ms

    try:
        return version("tidewheel")
    except PackageNotFoundError:
        return "0 (not installed)"


def build_app(*, lists: bool = False, whole: bool = False, called: str = "") -> App:
    """Return the `App`.

    Args:
        lists: Only list the commands, with their summaries.
        whole: Import all commands, for the shell's completion of their options.
        called: The command; one with subcommands may have a function of its own.
    """
    app = App(
        name="tidewheel",
        help=_HELP,
        # Markdown takes as long to import as all the rest of a list.
        help_format="rich" if lists else "markdown",
        version=program_version,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        help_epilogue=_exit_codes() if lists else "",
    )
    for sort_key, (name, command) in enumerate(_COMMANDS.items()):
        _add(app, name, command, sort_key, lists=lists, whole=whole)
    for sort_key, (name, (help_text, commands)) in enumerate(_FAMILIES.items(), len(_COMMANDS)):
        family = App(name=name, help=help_text, help_epilogue="", sort_key=sort_key)
        for place, (command_name, command) in enumerate(commands.items()):
            _add(family, command_name, command, place, lists=lists, whole=whole)
        if name in _DEFAULTS and (whole or called == name):
            family.default(_function(_DEFAULTS[name]))
        app.command(family)
    app.command(partial(install_completion, app), name=_INSTALL_COMPLETION, help_epilogue="")
    return app


def _add(
    app: App, name: str, command: _Command, sort_key: int, *, lists: bool, whole: bool
) -> None:
    if lists:
        app.command(App(name=name, help=command.summary, help_epilogue="", sort_key=sort_key))
        return
    function = _function(command.path) if whole else command.path
    app.command(function, name=name, sort_key=sort_key, help_epilogue="")


def main(arguments: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        os.umask(0o077)  # RocksDB's files are readable by all
        prepare_streams()
        if argv[-1:] in (["--help"], ["-h"]) and " ".join(argv[:-1]) in command_names():
            leave_out_work()
    try:
        _check_encoding(argv)
        app = build_app(
            lists=_asks_for_list(argv),
            whole=_INSTALL_COMPLETION in argv,
            called=argv[0] if argv else "",
        )
        if not argv or _ASK_FOR_HELP.intersection(argv):
            app.console = text_console(folds=True)
        result = app(argv, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        print_error(f"{error} (`tidewheel --help` lists the commands)")
        return ExitCode.USAGE
    except StreamsError as error:
        print_error(str(error))
        if isinstance(error, OutputError):
            discard_output()
        return exit_code_of(error)
    except KeyboardInterrupt:
        text_console(stderr=True).print("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        discard_output()  # `tidewheel ... | head` closed the pipe
        return ExitCode.OK
    return result if isinstance(result, int) else ExitCode.OK


def _check_encoding(argv: Sequence[str]) -> None:
    for number, argument in enumerate(argv, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            # The part behind "=" may be a secret.
            name, separator, _ = argument.partition("=")
            raise ConfigError(
                f"argument {number} of the command line ({name!a}{separator and '=…'}) has bytes that are not UTF-8; "
                "write it in UTF-8, and rename a file or folder with such a name"
            ) from None


def _function(path: str) -> Callable[..., int]:
    module, _, function = path.partition(":")
    found: Callable[..., int] = getattr(import_module(module), function)
    return found


def _asks_for_list(argv: Sequence[str]) -> bool:
    """Return True for a list of commands, of all or of one group, or a command that is none."""
    if argv and argv[0] in _DEFAULTS:
        return False  # its help has options besides the list
    family = _FAMILIES.get(argv[0]) if argv else None
    commands, rest = (_COMMANDS, argv) if family is None else (family[1], argv[1:])
    return not rest or rest[0] in _ASK_FOR_HELP or not (rest[0] in commands or rest[0][:1] == "-")


def _exit_codes() -> str:
    # Escape brackets: meanings are text, not markup.
    rows = "\n".join(f" • {code.value}: {code.meaning}" for code in ExitCode).replace("[", r"\[")
    return f"[bold]Exit codes[/]\n\n{rows}"
