"""What a worker and its restore helpers say to each other: one JSON object a line, over a socket pair.

The first line to a helper is `Begin`. It has the client settings, secrets included: it crosses the socket pair only, never
arguments or environment, which other users of the machine can read.
"""

from typing import Any, Final

import msgspec

from tidewheel.state_stores.bulk_restore.manifest import PartitionRuns, Run, StoreSnapshot
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.state_stores.restore import StoreTime
from tidewheel.streams.console_log import LogLevel

#: Stretches that a helper reads at once: each holds the rows of a run in memory.
ACTIVE_MAX: Final = 2


class Begin(msgspec.Struct, tag="begin", frozen=True, kw_only=True):
    """The first line.

    Attributes:
        application_id, bootstrap_servers, consumer: As for `tidewheel.streams.kafka.clients.KafkaClients`.
        rack_id: Brokers of this rack are read from.
        snapshot_location: Where snapshots are looked for; None for nowhere.
        run_bytes: How much memory the rows of one run may take.
        import_path: Where callbacks are imported from: `sys.path` of the worker.
        log_level: As for `tidewheel.streams.console_log.configure_logging`.

    >>> Begin(application_id="shop", bootstrap_servers="localhost:9092", consumer={"sasl.password": "secret"}, run_bytes=1)
    Begin(application_id='shop')
    """

    application_id: str
    bootstrap_servers: str
    rack_id: str | None = None
    consumer: dict[str, Any]
    run_bytes: int
    snapshot_location: str | None = None
    import_path: tuple[str, ...] = ()
    log_level: LogLevel = "warning"

    def __repr__(self) -> str:
        return f"Begin(application_id={self.application_id!r})"


class FindSnapshot(msgspec.Struct, tag="find", frozen=True, kw_only=True):
    """Look for the newest snapshot of a store, by its changelog's id."""

    number: int
    store: str
    topic_id: bytes


class MakeRuns(msgspec.Struct, tag="make", frozen=True, kw_only=True):
    """Make and bring runs: `tidewheel.tasks.restore.run_ports.RunOrder`."""

    number: int
    shape: StoreShape
    topic: str
    partition: int
    snapshot: PartitionRuns | None
    from_offset: int
    to_offset: int
    complete_from_zero: bool
    urgent: bool
    directory: str
    slowest_ms: int | None = None


class Forget(msgspec.Struct, tag="forget", frozen=True, kw_only=True):
    """Stop what has this number, if it is still under way."""

    number: int


class SnapshotFound(msgspec.Struct, tag="found", frozen=True, kw_only=True):
    """The answer to `FindSnapshot`."""

    number: int
    snapshot: StoreSnapshot | None


class Progressed(msgspec.Struct, tag="progressed", frozen=True, kw_only=True):
    """How far an order is."""

    number: int
    position: int
    records: int


class MadeFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file on this machine's disk, and what is in it."""

    path: str
    run: Run


class Made(msgspec.Struct, tag="made", frozen=True, kw_only=True):
    """The files of an order, in the order of their offsets."""

    number: int
    files: tuple[MadeFile, ...]
    time: StoreTime
    records: int


class Failed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """Why an order can't be carried out."""

    number: int
    reason: str
    snapshot: bool = False


Order = FindSnapshot | MakeRuns | Forget
Report = SnapshotFound | Progressed | Made | Failed

_ENCODER: Final = msgspec.json.Encoder()
_BEGIN: Final[msgspec.json.Decoder[Begin]] = msgspec.json.Decoder(Begin)
_ORDERS: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
_REPORTS: Final[msgspec.json.Decoder[Report]] = msgspec.json.Decoder(Report)


def encode(message: Begin | Order | Report) -> bytes:
    """Return the line of a message.

    >>> decode_order(encode(Forget(number=3)))
    Forget(number=3)
    """
    return _ENCODER.encode(message) + b"\n"


def decode_begin(line: bytes) -> Begin:
    """Return what a helper is to work with; raises `msgspec.MsgspecError`."""
    return _BEGIN.decode(line)


def decode_order(line: bytes) -> Order:
    """Return what a helper is to do; raises `msgspec.MsgspecError`."""
    return _ORDERS.decode(line)


def decode_report(line: bytes) -> Report:
    """Return what a helper has to say; raises `msgspec.MsgspecError`."""
    return _REPORTS.decode(line)
