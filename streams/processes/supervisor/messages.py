"""What supervisor and worker say to each other, one JSON object a line over the worker's pipes.

Settings travel in `StartWorker`, over the worker's standard input: never in its arguments or environment, which other
users of the machine can read.
"""

from typing import Any, Final

import msgspec

from tidewheel.streams.console_log import LogFormat, LogLevel

#: A longer line is no message of ours; the reader gives up on it.
LINE_BYTES_MAX: Final = 1024 * 1024


class StartWorker(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first line a worker reads: what to run and how. `process_id` names this program in its group."""

    target: str
    overrides: dict[str, Any] = {}
    config_file: str | None = None
    slot: int = 0
    workers: int = 1
    fixed: bool = False
    tasks: tuple[str, ...] | None = None
    process_id: str | None = None
    wait_for_topics: bool = False
    create_topics: bool = False
    log_level: LogLevel = "info"
    log_format: LogFormat | None = None
    report_interval_ms: int = 1_000
    #: The worker before died without a word: say which record is in hand.
    careful: bool = False


class StopWorker(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Finish what is begun, commit, close, leave. `timeout_ms` of None: as long as `drain_timeout_ms` says."""

    timeout_ms: int | None = None


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The program is loaded and its settings are good; the runtime starts now."""

    application_id: str
    drain_timeout_ms: int


class StateChanged(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """The worker's `KafkaStreams` went from one state to another."""

    new: str
    old: str


class MetricsReported(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """What `KafkaStreams.metrics()` said just now."""

    metrics: dict[str, Any]


class RecordInHand(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """A careful worker processes this record now; without a topic: none."""

    topic: str | None = None
    partition: int = 0
    offset: int = 0


class WorkerStopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The last line of a worker that ends well. A process that is gone without it has died, whatever its exit code."""


class WorkerCrashed(msgspec.Struct, frozen=True, kw_only=True, tag="crash"):
    """The last line of a worker that ends by an error. Topic, partition and offset are those of the failed record."""

    error: str
    message: str
    exit_code: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


Order = StartWorker | StopWorker
Report = WorkerReady | StateChanged | MetricsReported | RecordInHand | WorkerStopped | WorkerCrashed

_encoder: Final = msgspec.json.Encoder(enc_hook=str)
_orders: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
_reports: Final[msgspec.json.Decoder[Report]] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    """Return a message as a line, with its line end."""
    return _encoder.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    """Return what the supervisor said; raises `msgspec.ValidationError` for anything else."""
    return _orders.decode(line)


def decode_report(line: bytes) -> Report:
    """Return what a worker said; raises `msgspec.ValidationError` for anything else."""
    return _reports.decode(line)


class LineBuffer:
    """Cuts what arrives at a pipe into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now. A line that never ends is thrown away."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest = b""
        return [line for line in lines if line]
