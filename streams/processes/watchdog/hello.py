"""The first message of a worker to its watchdog: client settings and its join message.

It has secrets, so it crosses the socket pair only: other users of the machine can read arguments
and environment.
"""

from typing import Any, Final

import msgspec

from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.protocol.messages import JoinGroup
from tidewheel.streams.console_log import LogFormat, LogLevel


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a worker, sent again to a watchdog that replaces a dead one.

    Attributes:
        join: The message by which the worker joins its group.
        bootstrap_servers, client_id, consumer, producer, admin: See
            `tidewheel.streams.kafka.clients.KafkaClients`. Callbacks are names ("module:name").
        replication_factor: Of the two control topics; -1: the cluster's default.
        heartbeat_interval_ms: Between two heartbeats of this member.
        worker_hang_timeout_ms: Heartbeats stop when the worker's progress counter has not changed
            for this long.
        max_call_ms: The same limit during a call of user code; 0: none.
        coordinator: Group-wide settings, used if this watchdog is the leader.
        assignor_timeout_ms: Limit for a user's assignor.
        import_path: `sys.path` of the worker.
        log_level, log_format, log_levels: See `tidewheel.streams.console_log.configure_logging`.
        welcomed: The group had accepted this start of the member. If it is gone from the group log,
            it was fenced and must not join again.

    >>> join = JoinGroup(
    ...     app="shop", member="a", incarnation="a-1", transactional_ids=("shop-a-1-0",),
    ...     host="h", pid=1, process_id="p",
    ... )
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
    log_levels: dict[str, LogLevel] = {}
    welcomed: bool = False

    def __repr__(self) -> str:
        return f"Hello(member={self.join.member!r}, incarnation={self.join.incarnation!r})"


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Hello]] = msgspec.json.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    return _ENCODER.encode(hello) + b"\n"


def decode_hello(line: bytes) -> Hello:
    return _DECODER.decode(line)
