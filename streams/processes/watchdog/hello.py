"""What a worker tells the watchdog first: everything that is needed to speak for it, secrets included.

It crosses the socket pair only, never arguments or environment, which other users of the machine can read.
"""

from typing import Any, Final

import msgspec

from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.protocol.messages import JoinGroup
from tidewheel.streams.console_log import LogFormat, LogLevel


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a worker, and again to each watchdog that replaces a dead one.

    Attributes:
        join: What the group is told of this member; its session and rejoin timeouts, and the assignor's name, count.
        bootstrap_servers, client_id, consumer, producer, admin: As for `tidewheel.streams.kafka.clients.KafkaClients`. Callbacks
            are given by name ("module:name"), secrets as in the settings.
        replication_factor: Of the two control topics; -1 is the cluster's default.
        heartbeat_interval_ms: Between two beats of this member.
        worker_hang_timeout_ms: How long the progress counter may stand still before the member is not vouched for.
        max_call_ms: The same while user code runs; 0: no bound.
        coordinator: Group-wide settings, which count while this process leads.
        assignor_timeout_ms: How long a user's assignor ("module:name") may take; it runs in a child process.
        import_path: Where a user's objects are imported from: `sys.path` of the worker.
        log_level, log_format: As for `tidewheel.streams.console_log.configure_logging`.
        welcomed: The group log had this incarnation once: it is not to be joined anew if it has gone.

    >>> join = JoinGroup(app="shop", member="a", incarnation="a-1", transactional_ids=("shop-a-1-0",), host="h", pid=1, process_id="p")
    >>> Hello(join=join, bootstrap_servers="localhost:9092", consumer={"sasl.password": "secret"})
    Hello(member='a', incarnation='a-1')
    """

    join: JoinGroup
    bootstrap_servers: str
    client_id: str = ""
    consumer: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    admin: dict[str, Any] = {}
    replication_factor: int = -1
    heartbeat_interval_ms: int = 500
    worker_hang_timeout_ms: int = 30_000
    max_call_ms: int = 300_000
    coordinator: CoordinatorSettings = CoordinatorSettings()
    assignor_timeout_ms: int = 10_000
    import_path: tuple[str, ...] = ()
    log_level: LogLevel = "warning"
    log_format: LogFormat | None = None
    welcomed: bool = False

    def __repr__(self) -> str:
        return f"Hello(member={self.join.member!r}, incarnation={self.join.incarnation!r})"


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Hello]] = msgspec.json.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    """Return the line a worker begins with."""
    return _ENCODER.encode(hello) + b"\n"


def decode_hello(line: bytes) -> Hello:
    """Return what a worker began with; raises `msgspec.MsgspecError`."""
    return _DECODER.decode(line)
