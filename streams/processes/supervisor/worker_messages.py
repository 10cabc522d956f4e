"""Messages between supervisor and worker: one JSON object per line, over the worker's pipes.

Settings travel in `StartWorker` over standard input, never in arguments or the environment, which
other users of the machine can read. A supervisor may start workers of a newer installation, so new
versions only add fields, with defaults.
"""

from typing import Any, Final

import msgspec

from tidewheel.streams.console_log import LogFormat, LogLevel

#: A longer line on the report pipe is dropped: user code may write there too.
LINE_BYTES_MAX: Final = 1024 * 1024


class StartWorker(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first line that a worker reads.

    Attributes:
        process_id: Random id of the supervisor, the same for all its workers. Their watchdog's id
            in leader elections begins with it.
        careful: The previous process died without a report: send `NextRecord` before each record.
        log_levels: Levels of other loggers by name.
        wait_for_brokers: Wait without a limit while no broker can be reached at the start.
        next_free: Take the next free slot if another program holds `slot`, and report `SlotTaken`.
        known_error: The text of the error that ended the previous process, which has logged it.
    """

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
    log_levels: dict[str, LogLevel] = {}
    log_format: LogFormat | None = None
    report_interval_ms: int = 1_000
    careful: bool = False
    next_free: bool = False
    known_error: str | None = None
    wait_for_brokers: bool = False


class StopWorker(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Order to drain, commit, close and exit; `timeout_ms` replaces `drain_timeout_ms`."""

    timeout_ms: int | None = None


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """A report that the program is loaded and its settings are valid; the runtime starts now."""

    application_id: str
    drain_timeout_ms: int


class SlotTaken(msgspec.Struct, frozen=True, kw_only=True, tag="slot"):
    """The slot that the worker took; its next processes take the same one."""

    slot: int


class StateChanged(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """A change of `KafkaStreams.state`."""

    new: str
    old: str


class MetricsReported(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """The result of `KafkaStreams.metrics()`."""

    metrics: dict[str, Any]


class NextRecord(msgspec.Struct, frozen=True, kw_only=True, tag="record"):
    """The record that a careful worker processes next; no topic: none.

    If the worker dies silently, the supervisor names this record.
    """

    topic: str | None = None
    partition: int = 0
    offset: int = 0


class WorkerStopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The last line of a worker that ended in order.

    A process that ends without it has crashed, even with exit code 0.
    """


class WorkerCrashed(msgspec.Struct, frozen=True, kw_only=True, tag="crash"):
    """The last line of a worker that ended by an error; the offset is the failed record's."""

    message: str
    exit_code: int
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


Order = StartWorker | StopWorker
Report = (
    WorkerReady
    | SlotTaken
    | StateChanged
    | MetricsReported
    | NextRecord
    | WorkerStopped
    | WorkerCrashed
)

_encoder: Final = msgspec.json.Encoder(enc_hook=str)
_orders: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
_reports: Final[msgspec.json.Decoder[Report]] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    return _orders.decode(line)


def decode_report(line: bytes) -> Report:
    return _reports.decode(line)
