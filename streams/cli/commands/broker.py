"""`tidewheel broker`: a real Kafka on this machine while the command runs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import orjson
from cyclopts import Parameter
from rich.panel import Panel
from rich.table import Table

from tidewheel.state_stores.names import check_topic_name
from tidewheel.streams.broker import DEFAULT_VERSION, BrokerError, BrokerSettingError, KafkaBroker
from tidewheel.streams.broker.kafka_broker import HEAP_MB
from tidewheel.streams.cli.output import print_error, text_console
from tidewheel.streams.processes.signals import signals_handled

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2

_WAIT_MS = 60_000
_PORT_MAX = 65_535
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def broker(
    *,
    port: int | None = None,
    data_dir: Path | None = None,
    keep: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    version: str = DEFAULT_VERSION,
    properties: Annotated[
        Sequence[str], Parameter(name="--property", negative=(), show_default=False)
    ] = (),
    topics: Annotated[
        Sequence[str], Parameter(name="--topics", negative=(), show_default=False)
    ] = (),
    heap_mb: int = HEAP_MB,
    verify: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    print_bootstrap: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Start a real Kafka on this machine and run it until Ctrl-C (or SIGTERM).

    One node in KRaft mode that listens on 127.0.0.1 only. The first start fetches Kafka's jars (45
    MB) into your cache. Its data is deleted at the end unless --data-dir or --keep is given.

    A panel shows the address; with --json each event (`ready`, `stopped`, `failed`) is one line of
    JSON.

    Exit codes: 0 stopped by Ctrl-C or a signal; 1 the broker could not be fetched or started, or
    ended by itself; 2 wrong command line.

    Args:
        port: The port for clients; default: a free one.
        data_dir: Keep data and logs in this folder, and start with the data in it.
        keep: Like --data-dir, with Tidewheel's own folder.
        version: The Kafka version, 4.0.0 or newer.
        properties: A setting of the broker, `name=value`; repeatable.
        topics: Topics to create, `name:partitions` with commas between.
        heap_mb: Java heap in MiB.
        verify: Compare the checksums of all jars first, and fetch damaged ones again.
        print_bootstrap: Print only the address for clients.
        json: Print JSON lines instead of text.
    """
    report = _BrokerOutput(json=json, bootstrap_only=print_bootstrap)
    try:
        with signals_handled(_STOP_SIGNALS, _interrupt):
            return _run(
                KafkaBroker(
                    version=version,
                    properties=_parse_properties(properties),
                    data_dir=_choose_data_dir(data_dir, keep=keep),
                    port=_checked_port(port),
                    heap_mb=heap_mb,
                    verify_jars=verify,
                ),
                _parse_topics(topics),
                report,
                temporary=data_dir is None and not keep,
            )
    except KeyboardInterrupt:
        return EXIT_OK
    except BrokerError as error:
        report.failed(error)
        return EXIT_USAGE if isinstance(error, BrokerSettingError) else EXIT_FAILED


def _run(
    kafka: KafkaBroker, topics: dict[str, int], report: "_BrokerOutput", *, temporary: bool
) -> int:
    try:
        kafka.start()
        kafka.create_topics(topics)
        report.ready(kafka, topics, temporary=temporary)
        while not kafka.wait(_WAIT_MS):
            continue
        lines = "\n  ".join(kafka.last_log_lines())
        raise BrokerError(
            f"Kafka {kafka.version} ended by itself with exit code {kafka.exit_code}. "
            f"Its last log lines:\n  {lines}"
        )
    except KeyboardInterrupt:
        report.stopping()
        return EXIT_OK
    finally:
        # Ignore a second Ctrl-C: it would leave data behind. A hanging broker is killed soon.
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        kafka.stop()
        report.stopped()


class _BrokerOutput:
    def __init__(self, *, json: bool, bootstrap_only: bool) -> None:
        self._json = json and not bootstrap_only
        self._bootstrap_only = bootstrap_only
        self._out = text_console()
        self._was_ready = False

    def ready(self, kafka: KafkaBroker, topics: dict[str, int], *, temporary: bool) -> None:
        self._was_ready = True
        if self._bootstrap_only:
            sys.stdout.write(f"{kafka.bootstrap_servers}\n")
            sys.stdout.flush()
        elif self._json:
            self._line(
                event="ready",
                bootstrap_servers=kafka.bootstrap_servers,
                cluster_id=kafka.cluster_id,
                data_dir=str(kafka.data_dir),
                log_file=str(kafka.log_file),
                pid=kafka.pid,
                topics=topics,
                version=kafka.version,
            )
        else:
            self._panel(kafka, topics, temporary=temporary)

    def stopping(self) -> None:
        if not self._json and not self._bootstrap_only and self._was_ready:
            self._out.print("Stopping Kafka …")

    def stopped(self) -> None:
        if self._was_ready and self._json:
            self._line(event="stopped")

    def failed(self, error: BrokerError) -> None:
        if self._json:
            self._line(event="failed", error=str(error))
        print_error(str(error))

    def _panel(self, kafka: KafkaBroker, topics: dict[str, int], *, temporary: bool) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("bootstrap servers", f"[bold green]{kafka.bootstrap_servers}[/]")
        what = "deleted at the end" if temporary else "kept"
        table.add_row("data", f"{kafka.data_dir} ({what})")
        table.add_row("log", str(kafka.log_file))
        table.add_row("process", str(kafka.pid))
        if topics:
            table.add_row("topics", ", ".join(f"{name}:{count}" for name, count in topics.items()))
        table.add_row("stop", "Ctrl-C")
        self._out.print(Panel(table, title=f"Kafka {kafka.version} is running", expand=False))

    def _line(self, **event: object) -> None:
        sys.stdout.write(orjson.dumps(event).decode() + "\n")
        sys.stdout.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the command on SIGTERM and on a closed terminal as on Ctrl-C."""
    raise KeyboardInterrupt


def _choose_data_dir(data_dir: Path | None, *, keep: bool) -> Path | None:
    if not keep:
        return data_dir
    if data_dir is not None:
        raise BrokerSettingError(
            "--keep and --data-dir both choose the data folder; a folder given with --data-dir is "
            "kept anyway, so leave out --keep"
        )
    base = os.environ.get("XDG_DATA_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return home / "tidewheel" / "broker"


def _parse_properties(properties: Sequence[str]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for text in properties:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise BrokerSettingError(
                "--property needs name=value, such as --property num.io.threads=8; got "
                f"{name!r} without a value"
            )
        parsed[name.strip()] = value
    return parsed


def _parse_topics(topics: Sequence[str]) -> dict[str, int]:
    parsed: dict[str, int] = {}
    for text in ",".join(topics).split(","):
        name, separator, partitions = text.strip().partition(":")
        if not text.strip():
            continue
        if separator and not (partitions.isdigit() and int(partitions) > 0):
            raise BrokerSettingError(
                f"--topics {text.strip()}: {partitions!r} is no number of partitions; write "
                "name:partitions, such as orders:8, or only the name for one partition"
            )
        try:
            parsed[check_topic_name(name)] = int(partitions) if separator else 1
        except ValueError as error:
            raise BrokerSettingError(f"--topics {text.strip()}: {error}") from None
    return parsed


def _checked_port(port: int | None) -> int | None:
    if port is not None and not 1 <= port <= _PORT_MAX:
        raise BrokerSettingError(f"--port {port}: a port is a number from 1 to {_PORT_MAX}")
    return port
