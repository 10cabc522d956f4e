"""Values of a command line: settings, tasks, timeouts. Imports no user program."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, cast

from cyclopts import Parameter

from tidewheel.rebalance.model import TaskId
from tidewheel.streams.config.sources import TABLES
from tidewheel.streams.console_log import parse_log_levels
from tidewheel.streams.errors import ConfigError
from tidewheel.tasks.durations import parse_ms

_WORKERS_MAX: Final = 1_000
_PORT_MAX: Final = 65_535
_DIGITS_MAX: Final = 10


def _check_log_levels(_type: object, value: object) -> None:
    if isinstance(value, tuple):
        parse_log_levels([str(text) for text in cast("tuple[object, ...]", value)])


#: `--log-level LEVEL` or `--log-level NAME=LEVEL`, repeatable.
LogLevels = Annotated[
    tuple[str, ...], Parameter(negative=(), validator=_check_log_levels, show_default=False)
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsOptions:
    """Command-line settings, which win over the program's, the environment and the settings file.

    Attributes:
        bootstrap_servers: Brokers for the first contact, host:port with commas between; default:
            localhost:9092.
        application_id: Name of the application, used for its group, internal topics and state
            folder.
        state_dir: Directory of local state.
        config: A TOML file of settings, instead of tidewheel.toml.
        assignments: Any setting, option=value; consumer.NAME=value sets a client property.
            Repeatable.
    """

    bootstrap_servers: str | None = None
    application_id: str | None = None
    state_dir: Path | None = None
    config: Path | None = None
    assignments: Annotated[
        tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)
    ] = ()

    def overrides(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": self.application_id,
            "state_dir": None if self.state_dir is None else str(self.state_dir),
        }
        named = {option: value for option, value in options.items() if value is not None}
        return parse_assignments(self.assignments) | named

    def config_file(self) -> str | None:
        return None if self.config is None else str(self.config)


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `option=value` texts; `consumer.NAME=value` sets a key of a table.

    >>> parse_assignments(["commit_interval_ms=1s", "consumer.security.protocol=SSL"])
    {'commit_interval_ms': '1s', 'consumer': {'security.protocol': 'SSL'}}
    """
    options: dict[str, Any] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        option, dot, key = name.strip().partition(".")
        if not separator or not option:
            # The message omits the value: it may be a password.
            raise ConfigError(
                f"--set {name!r}: write option=value, such as --set commit_interval_ms=1s"
            )
        if dot and option in TABLES:
            options.setdefault(option, {})[key] = value
        else:
            options[name.strip()] = value
    return options


def check_workers(count: int) -> None:
    if not 1 <= count <= _WORKERS_MAX:
        raise ConfigError(f"--workers {count}: give a number from 1 to {_WORKERS_MAX:,}")


def parse_tasks(text: str) -> tuple[TaskId, ...]:
    """Parse a list such as `0_1,0_2` or `0_1/0of2`; raise `ConfigError` for anything else.

    >>> parse_tasks("0_1, 1_0/0of2")
    (TaskId.parse('0_1'), TaskId.parse('1_0/0of2'))
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        tasks = tuple(TaskId.parse(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"--tasks: {error}") from None
    if not tasks or len(set(tasks)) != len(tasks):
        raise ConfigError(f"--tasks {text!r}: name each task once, such as --tasks 0_1,0_2")
    ordered = sorted(tasks, key=lambda task: (task.whole, task.shard.first_hash))
    for task, following in pairwise(ordered):
        # Processes with equal keys of a partition would fence each other.
        if task.whole == following.whole and following.shard.first_hash < task.shard.end_hash:
            raise ConfigError(
                f"--tasks {text!r}: {task} and {following} have keys in common; name one of them"
            )
    return tasks


def parse_http(text: str) -> dict[str, Any]:
    """Parse `[HOST:]PORT` to settings; raise `ConfigError` for anything else.

    >>> parse_http("8080"), parse_http("[::1]:0")
    ({'http_port': 8080}, {'http_port': 0, 'http_host': '::1'})
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"--http {text!r}: give PORT or HOST:PORT, such as 8080 or 0.0.0.0:8080")
    host = host.removeprefix("[").removesuffix("]")
    return {"http_port": int(port)} | ({"http_host": host} if host else {})


def check_http_port(settings: Mapping[str, Any], workers: int) -> None:
    """Raise `ConfigError` if the last worker's port does not exist; others are checked by workers.

    >>> check_http_port({"http_port": "65535"}, 1)
    """
    text = str(settings.get("http_port", 0))
    port = int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX else 0
    last = port + workers - 1
    if port and last > _PORT_MAX:
        raise ConfigError(
            f"http_port={port}: worker {workers - 1} would listen on port {last}, which does not exist; give "
            f"{_PORT_MAX - workers + 1} or lower"
        )


def parse_timeout_ms(text: str, least_ms: int, advice: str) -> int:
    """Parse a `--timeout` to ms; raise `ConfigError`, with `advice` for less than `least_ms`.

    >>> parse_timeout_ms("30s", 1, ": give how long to wait, such as 30s")
    30000
    """
    try:
        milliseconds = parse_ms(text)
    except ValueError as error:
        raise ConfigError(f"--timeout {text!r} {error}") from None
    if milliseconds < least_ms:
        raise ConfigError(f"--timeout {text!r}{advice}")
    return milliseconds
