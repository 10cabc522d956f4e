"""An application of a secured cluster: its program, its settings file, and commands on it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.integration.security.secured_broker import SecuredBroker, User
from tests.streams.cli.command_runs import Command

#: A command that starts Spark takes a minute on a busy machine.
_SPARK_S: Final = 600.0
_PROGRAM: Final = """
from tidewheel import Serdes, StreamsBuilder


def topology():
    builder = StreamsBuilder()
    (
        builder.stream({source!r}, key_serde=Serdes.bytes(), value_serde={value_serde})
        .flat_map_values(str.split)
        .group_by(lambda word: word, key_serde=Serdes.string(), value_serde=Serdes.string())
        .count(store="counts")
        .to_stream()
        .to({sink!r}, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder


config = {{
    "application_id": {application_id!r},
    "commit_interval_ms": 50,
    "statestore_cache_max_bytes": 0,
    "settling_ms": 0,
    "session_timeout_ms": 30_000,
    "repartition_purge_interval_ms": 1_000,
    "deserialization_exception_handler": "continue",
    "dead_letter_queue_topic": {dead!r},
}}
"""


@dataclass(slots=True, kw_only=True)
class SecuredApp:
    """An application, its settings files and its commands.

    Attributes:
        value_serde: Expression for the serde of the input's values.
        environment: Variables of all commands.
        outputs: Everything that the commands printed, by command line.
    """

    broker: SecuredBroker
    folder: Path
    application_id: str
    value_serde: str = "Serdes.string()"
    environment: dict[str, str] = field(default_factory=dict[str, str])
    outputs: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.broker.plain.create({self.source: 2, self.sink: 2, self.dead: 1})
        self._program.write_text(
            _PROGRAM.format(
                source=self.source,
                sink=self.sink,
                dead=self.dead,
                application_id=self.application_id,
                value_serde=self.value_serde,
            ),
            encoding="utf-8",
        )

    @property
    def source(self) -> str:
        return f"lines-{self.application_id}"

    @property
    def sink(self) -> str:
        return f"words-{self.application_id}"

    @property
    def dead(self) -> str:
        return f"dead-{self.application_id}"

    @property
    def _program(self) -> Path:
        return self.folder / f"{self.application_id}.py"  # a process imports a name once

    @property
    def target(self) -> str:
        return f"{self._program}:topology"

    def settings_file(self, user: User, **options: str) -> Path:
        """Write the settings of a user; the password is in a file of its own."""
        secret = self.folder / f"{user.name}.password"
        secret.touch(mode=0o600)
        secret.write_text(f"{user.password}\n", encoding="utf-8")
        client = user.client | {"sasl.password": f"file:{secret}"}
        options = {"bootstrap_servers": self.broker.address, **options}
        lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
        for table in ("consumer", "producer", "admin"):
            lines += [f"[{table}]", *(f'"{key}" = {json.dumps(client[key])}' for key in client)]
        path = self.folder / f"{user.name}.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    def start(self, settings: Path, *arguments: str, slot: str = "a") -> Command:
        """Start workers, without waiting for them."""
        state = str(self.folder / f"state-{slot}")
        return self._command(
            "run", self.target, "--config", str(settings), "--state-dir", state, *arguments
        )

    def until_counted(self, lines: int) -> None:
        """Send lines, and wait until their results are committed."""
        self.broker.plain.send(self.source, [(b"k", b"to be or not to be")] * lines)
        self.broker.plain.wait_until_consumed(self.application_id, self.source)

    def until_running(self, run: Command, workers: int) -> None:
        run.until_said("REBALANCING -> RUNNING", workers)

    def call(self, settings: Path, *arguments: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and output."""
        with self._command(*arguments, "--config", str(settings)) as command:
            code = command.wait(_SPARK_S)
        self.outputs[" ".join(arguments)] = command.said
        return code, command.said

    def _command(self, *arguments: str) -> Command:
        return Command(*arguments, environment={"NO_COLOR": "1", **self.environment})


def lines_of(output: str) -> list[dict[str, Any]]:
    """Return the JSON objects among the lines of an output."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def stop(run: Command) -> int:
    run.signal(2)
    return run.wait()
