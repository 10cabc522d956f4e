"""The command line: its commands, and errors as messages with exit codes."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from cyclopts import App, CycloptsError
from rich.console import Console

from tidewheel.streams.cli.output import print_error
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode, exit_code_of

_HELP: Final = """Kafka Streams for Python: exactly-once stateful stream processing on Kafka and RocksDB.

Try `tidewheel demo` for a first look, `tidewheel broker` for a Kafka to develop with.
"""

#: Commands and their functions, in the order of the help. A function is imported when called.
_COMMANDS: Final = {
    "run": "tidewheel.streams.cli.commands.run:run",
    "describe": "tidewheel.streams.cli.commands.describe:describe",
    "demo": "tidewheel.streams.cli.commands.demo:demo",
    "broker": "tidewheel.streams.cli.commands.broker:broker",
    "reset": "tidewheel.streams.cli.commands.reset:reset",
    "snapshot": "tidewheel.streams.cli.commands.snapshot:snapshot",
    "restore": "tidewheel.streams.cli.commands.restore:restore",
    "bootstrap": "tidewheel.streams.cli.commands.bootstrap:bootstrap",
    "status": "tidewheel.streams.cli.commands.status:status",
    "top": "tidewheel.streams.cli.commands.top:top",
    "dashboard": "tidewheel.streams.cli.commands.dashboard:dashboard",
    "drain": "tidewheel.streams.cli.commands.drain:drain",
}
#: Commands with subcommands (`tidewheel group history`): help, and functions by name.
_FAMILIES: Final = {
    "group": (
        "Show the history of an application's group, or recover it.",
        {
            "history": "tidewheel.streams.cli.commands.group:history",
            "recover": "tidewheel.streams.cli.commands.group:recover",
        },
    ),
    "state": (
        "Read an application's stores, compare them with their changelogs, and delete a key.",
        {
            "list": "tidewheel.streams.cli.commands.state:list_stores",
            "get": "tidewheel.streams.cli.commands.state:get",
            "scan": "tidewheel.streams.cli.commands.state:scan",
            "verify": "tidewheel.streams.cli.commands.state:verify",
            "delete": "tidewheel.streams.cli.commands.erase:delete",
        },
    ),
    "config": (
        "Show the settings an application would run with.",
        {"show": "tidewheel.streams.cli.commands.config:show"},
    ),
}
#: With these options all command modules are imported, because the list shows their help.
_ASK_FOR_HELP: Final = frozenset({"--help", "-h"})


def program_version() -> str:
    try:
        return version("tidewheel")
    except PackageNotFoundError:
        return "0 (not installed)"


def build_app(*, whole: bool = True) -> App:
    """Return the `App`; `whole` imports all command modules, to list them with their help."""
    app = App(
        name="tidewheel",
        help=_HELP,
        help_format="markdown",
        version=program_version,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        help_epilogue=_exit_codes(),
    )
    for sort_key, (name, path) in enumerate(_COMMANDS.items()):
        app.command(_command(path, whole=whole), name=name, sort_key=sort_key, help_epilogue="")
    for sort_key, (name, (help_text, commands)) in enumerate(_FAMILIES.items(), len(_COMMANDS)):
        family = App(name=name, help=help_text, help_epilogue="", sort_key=sort_key)
        for command_name, path in commands.items():
            family.command(_command(path, whole=whole), name=command_name)
        app.command(family)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        os.umask(0o077)  # RocksDB's files are readable by all
    try:
        app = build_app(whole=_asks_for_list(argv))
        result = app(argv, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print_error(f"{error} (`tidewheel --help` lists the commands)")
        return ExitCode.USAGE
    except StreamsError as error:
        print_error(str(error))
        return exit_code_of(error)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # `tidewheel ... | head` closed the pipe; flushing stdout at exit would raise again.
        sys.stdout = None
        return ExitCode.OK
    return result if isinstance(result, int) else ExitCode.OK


def _command(path: str, *, whole: bool) -> str | Callable[..., int]:
    """Return a command's function if `whole`, else its path, which `App` imports when called."""
    module, _, function = path.partition(":")
    if not whole:
        return path
    found: Callable[..., int] = getattr(import_module(module), function)
    return found


def _asks_for_list(argv: Sequence[str]) -> bool:
    """Return True if a command line asks for a list of commands, of all or of one group."""
    rest = argv[1:] if argv and argv[0] in _FAMILIES else argv
    return not rest or rest[0] in _ASK_FOR_HELP


def _exit_codes() -> str:
    rows = "\n".join(f"- {code.value}: {code.meaning}" for code in ExitCode)
    return f"**Exit codes**\n\n{rows}"
