"""Messages between a worker and its restore helpers: one JSON object per line, over a socket pair.

`Begin` has the client settings with their secrets, so it crosses the socket pair only: other users
of the machine can read arguments and environment.
"""

from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import WHOLE, Shard
from tidewheel.state_stores.bulk_restore.manifest import PartitionRuns, Run, StoreSnapshot
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.streams.console_log import LogLevel

#: Concurrent orders of a helper; limited, because each keeps a run's rows in memory.
ACTIVE_MAX: Final = 2


class Begin(msgspec.Struct, tag="begin", frozen=True, kw_only=True):
    """The first line that a worker sends to a helper.

    Attributes:
        application_id, bootstrap_servers, consumer: See
            `tidewheel.streams.kafka.clients.KafkaClients`.
        rack_id: Rack of the brokers to read from.
        snapshot_location: None: there are no snapshots.
        run_bytes: Memory for the rows of one run (sorted file).
        import_path: `sys.path` of the worker, for callbacks.
        log_level: See `tidewheel.streams.console_log.configure_logging`.

    >>> Begin(application_id="shop", bootstrap_servers="localhost:9092",
    ...       consumer={"sasl.password": "secret"}, run_bytes=1)
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
    """An order to find a store's newest snapshot; `topic_id` is its changelog's."""

    number: int
    store: str
    topic_id: bytes


class MakeRuns(msgspec.Struct, tag="make", frozen=True, kw_only=True):
    """An order to build and download runs (sorted files), as in `run_ports.RunOrder`.

    Attributes:
        shard: Shard whose rows the runs have.
    """

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
    shard: Shard = WHOLE


class Forget(msgspec.Struct, tag="forget", frozen=True, kw_only=True):
    """An order to cancel the order of this number, if it is in progress."""

    number: int


class SnapshotFound(msgspec.Struct, tag="found", frozen=True, kw_only=True):
    """The answer to `FindSnapshot`."""

    number: int
    snapshot: StoreSnapshot | None


class Progressed(msgspec.Struct, tag="progressed", frozen=True, kw_only=True):
    number: int
    position: int
    records: int


class BuiltFile(msgspec.Struct, frozen=True, kw_only=True):
    """A run's file on local disk, and its description."""

    path: str
    run: Run


class RunsCreated(msgspec.Struct, tag="made", frozen=True, kw_only=True):
    """The files that a `MakeRuns` order produced, by ascending offset."""

    number: int
    files: tuple[BuiltFile, ...]
    time: StoreTime
    records: int


class Failed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """A failed order.

    Attributes:
        snapshot: True if the order's snapshot is the cause.
    """

    number: int
    reason: str
    snapshot: bool = False


Order = FindSnapshot | MakeRuns | Forget
Report = SnapshotFound | Progressed | RunsCreated | Failed

_ENCODER: Final = msgspec.json.Encoder()
_BEGIN: Final[msgspec.json.Decoder[Begin]] = msgspec.json.Decoder(Begin)
_ORDERS: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
_REPORTS: Final[msgspec.json.Decoder[Report]] = msgspec.json.Decoder(Report)


def encode(message: Begin | Order | Report) -> bytes:
    """Return a message as a line.

    >>> decode_order(encode(Forget(number=3)))
    Forget(number=3)
    """
    return _ENCODER.encode(message) + b"\n"


def decode_begin(line: bytes) -> Begin:
    return _BEGIN.decode(line)


def decode_order(line: bytes) -> Order:
    return _ORDERS.decode(line)


def decode_report(line: bytes) -> Report:
    return _REPORTS.decode(line)
