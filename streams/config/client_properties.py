"""librdkafka properties: those passed through, and those reserved for correctness."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import msgspec

from tidewheel.streams.config.names import importable_name
from tidewheel.streams.errors import ConfigError

ClientKind = Literal["consumer", "producer", "admin"]
CLIENT_KINDS: Final[tuple[ClientKind, ...]] = get_args(ClientKind)
#: Tables of properties: one of each kind of client, and `kafka` for all.
PropertyTable = Literal["kafka", "consumer", "producer", "admin"]


class BadPropertyError(ValueError):
    """A rejected property; by `key` the error message finds the property's source."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class _Reserved(msgspec.Struct, frozen=True):
    """Reason for a reserved property, its alternative, and harmless values."""

    next_step: str
    allowed: frozenset[str] = frozenset()


_FALSE: Final = frozenset({"false"})
#: Values of librdkafka's properties.
_CERTIFICATE_CHECKS_OFF: Final = {
    "enable.ssl.certificate.verification": {"false", "f", "0"},
    "ssl.endpoint.identification.algorithm": {"none"},
}
_CONSUMER_POLICY: Final = "Tidewheel assigns partitions and commits offsets itself; remove it"
_EVERY_CLIENT: Final = {
    "bootstrap.servers": _Reserved("set bootstrap_servers, which all clients share"),
    "metadata.broker.list": _Reserved("set bootstrap_servers, which all clients share"),
    "default.topic.config": _Reserved(
        "give topic properties directly, as all others, without this table"
    ),
    "logger": _Reserved("the clients' log goes to Python's logging; remove it"),
}
_RESERVED: Final[Mapping[ClientKind, Mapping[str, _Reserved]]] = {
    "consumer": {
        **_EVERY_CLIENT,
        "isolation.level": _Reserved(
            "state and outputs are right only if every consumer reads committed records; remove it",
            frozenset({"read_committed"}),
        ),
        "group.id": _Reserved("the group is named by application_id; remove it"),
        "group.instance.id": _Reserved("set group_instance_id"),
        "group.protocol": _Reserved(_CONSUMER_POLICY),
        "group.protocol.type": _Reserved(_CONSUMER_POLICY),
        "group.remote.assignor": _Reserved("set task_assignor"),
        "partition.assignment.strategy": _Reserved("set task_assignor"),
        "session.timeout.ms": _Reserved("set session_timeout_ms"),
        "heartbeat.interval.ms": _Reserved("set heartbeat_interval_ms"),
        "max.poll.interval.ms": _Reserved("set worker_hang_timeout_ms"),
        "enable.auto.commit": _Reserved(_CONSUMER_POLICY, _FALSE),
        "auto.commit.enable": _Reserved(_CONSUMER_POLICY, _FALSE),
        "auto.commit.interval.ms": _Reserved("set commit_interval_ms"),
        "enable.auto.offset.store": _Reserved(_CONSUMER_POLICY, _FALSE),
        "auto.offset.reset": _Reserved("set auto_offset_reset, or offset_reset= of a source"),
        "enable.partition.eof": _Reserved(
            "Tidewheel needs to see where partitions end; remove it", frozenset({"true"})
        ),
        "on_commit": _Reserved(_CONSUMER_POLICY),
    },
    "producer": {
        **_EVERY_CLIENT,
        "transactional.id": _Reserved(
            "Tidewheel names its producers so that they fence each other; remove it"
        ),
        "transaction.timeout.ms": _Reserved(
            "set worker_hang_timeout_ms; the time-out is that plus 30 s"
        ),
        "enable.idempotence": _Reserved(
            "transactions need it; remove it", frozenset({"true"})
        ),
        "acks": _Reserved("transactions need acks=all; remove it", frozenset({"all", "-1"})),
        "request.required.acks": _Reserved(
            "transactions need acks=all; remove it", frozenset({"all", "-1"})
        ),
        "partitioner": _Reserved(
            "joins rest on Kafka's own partitioning; give partitioner= to `to` or `repartition`",
            frozenset({"murmur2_random"}),
        ),
        "message.max.bytes": _Reserved("the topic's max.message.bytes decides; set that instead"),
        "on_delivery": _Reserved("set production_exception_handler"),
        "dr_cb": _Reserved("set production_exception_handler"),
        "dr_msg_cb": _Reserved("set production_exception_handler"),
        "delivery.report.only.error": _Reserved(
            "Tidewheel reads delivery reports itself; remove it"
        ),
    },
    "admin": {**_EVERY_CLIENT},
}  # fmt: skip


_SASL: Final = "set sasl.username and sasl.password (each may be env:NAME or file:/path)"
_PEM_CA: Final = (
    "set ssl.ca.location to a PEM file (`keytool -exportcert -rfc -keystore …` writes one)"
)
_SERDE: Final = "serdes are given to sources and sinks: key_serde=, value_serde="
_OAUTH: Final = "set oauth_cb, or sasl.oauthbearer.method and its companions"
#: Java client properties that librdkafka lacks or names differently, with the next step.
_JAVA: Final[Mapping[str, str]] = {
    "sasl.jaas.config": _SASL,
    "sasl.login.class": _SASL,
    "sasl.login.callback.handler.class": _OAUTH,
    "sasl.client.callback.handler.class": _OAUTH,
    "sasl.oauthbearer.jwks.endpoint.url": _OAUTH,
    "ssl.truststore.location": _PEM_CA,
    "ssl.truststore.password": f"{_PEM_CA}, which needs no password",
    "ssl.truststore.type": _PEM_CA,
    "ssl.truststore.certificates": "set ssl.ca.pem, the certificates as PEM text",
    "ssl.keystore.type": "ssl.keystore.location takes PKCS#12 only; remove it",
    "ssl.keystore.key": "set ssl.key.pem, the key as PEM text",
    "ssl.keystore.certificate.chain": "set ssl.certificate.pem, the certificates as PEM text",
    "ssl.protocol": "OpenSSL negotiates the version of TLS; remove it",
    "ssl.enabled.protocols": "OpenSSL negotiates the version of TLS; remove it",
    "ssl.provider": "set ssl.providers to OpenSSL's providers, or remove it",
    "ssl.engine.factory.class": "set ssl.engine.location, or remove it",
    "key.serializer": _SERDE,
    "value.serializer": _SERDE,
    "key.deserializer": _SERDE,
    "value.deserializer": _SERDE,
    "partitioner.class": "give partitioner= to `to` or `repartition`",
    "interceptor.classes": "librdkafka has no interceptors; remove it",
    "metric.reporters": "KafkaStreams.metrics() has the figures; remove it",
    "max.poll.records": "set max_poll_records",
    "max.request.size": "the topic's max.message.bytes decides; set that instead",
    "max.block.ms": "set delivery.timeout.ms, or remove it",
    "buffer.memory": "set queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "set fetch.wait.max.ms",
    "receive.buffer.bytes": "set socket.receive.buffer.bytes",
    "send.buffer.bytes": "set socket.send.buffer.bytes",
    "exclude.internal.topics": "topics whose names begin with __ are never matched; remove it",
    "default.api.timeout.ms": "set socket.timeout.ms, or remove it",
    "security.providers": "Java's security providers do not exist here; remove it",
}
#: Properties of one kind of librdkafka's clients. The other kind ignores them with a line in the log.
_OF_CONSUMERS: Final = frozenset(
    [
        "check.crcs",
        "consume.callback.max.messages",
        "coordinator.query.interval.ms",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "queued.max.messages.kbytes",
        "queued.min.messages",
    ]
)
_OF_PRODUCERS: Final = frozenset(
    [
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.gapless.guarantee",
        "linger.ms",
        "message.send.max.retries",
        "message.timeout.ms",
        "produce.offset.report",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "request.timeout.ms",
        "retries",
        "sticky.partitioning.linger.ms",
    ]
)
_OF_OTHERS: Final[Mapping[ClientKind, frozenset[str]]] = {
    "consumer": _OF_PRODUCERS,
    "producer": _OF_CONSUMERS,
    "admin": _OF_PRODUCERS | _OF_CONSUMERS,
}


def shared_properties(kind: ClientKind, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of the table `kafka` that this kind of client has.

    >>> shared_properties("producer", {"linger.ms": 5, "fetch.min.bytes": 1})
    {'linger.ms': 5}
    """
    return {key: value for key, value in properties.items() if key not in _OF_OTHERS[kind]}


def unchecked_certificates(properties: Mapping[str, Any]) -> list[str]:
    """Return the properties that turn checks of the broker's certificate off."""
    return [
        key
        for key, off in _CERTIFICATE_CHECKS_OFF.items()
        if str(properties.get(key, "")).lower() in off
    ]


def reserved_problem(kind: PropertyTable, key: str, value: object) -> str | None:
    """Return why a property can't have this value and the alternative, or None.

    >>> reserved_problem("producer", "acks", "all") is None
    True
    >>> reserved_problem("producer", "acks", 1)
    "can't be set here: transactions need acks=all; remove it"
    """
    if key in _JAVA:
        return f"is a property of Kafka's Java clients, not of librdkafka: {_JAVA[key]}"
    for client in CLIENT_KINDS if kind == "kafka" else (kind,):
        reserved = _RESERVED[client].get(key)
        if reserved is not None and str(value).lower() not in reserved.allowed:
            return f"can't be set here: {reserved.next_step}"
    return None


def checked_properties(kind: PropertyTable, properties: object) -> Mapping[str, Any]:
    """Return a read-only copy of the properties, with callbacks as importable names.

    Raise ValueError for a bad property.
    """
    if not isinstance(properties, Mapping):
        raise ValueError(  # noqa: TRY004 - validators report by ValueError
            'must be a table of librdkafka properties, as {"security.protocol": "SASL_SSL"}'
        )
    checked: dict[str, Any] = {}
    for key, value in properties.items():  # pyright: ignore[reportUnknownVariableType] - pyright: ignore[reportUnknownVariableType] - a mapping of anything, checked here
        if not isinstance(key, str) or not key:
            raise ValueError("property names are text, as 'security.protocol'")
        checked[key] = _checked(kind, key, value)
    return MappingProxyType(checked)


def _checked(kind: PropertyTable, key: str, value: Any) -> Any:
    if (
        "_" in key
        and not key.endswith("_cb")
        and key not in {"log_level", "on_commit", "on_delivery"}
    ):
        raise BadPropertyError(
            key, f"librdkafka's names have dots; write {key.replace('_', '.')!r}"
        )
    problem = reserved_problem(kind, key, value)
    if problem is not None:
        raise BadPropertyError(key, problem)
    if key.endswith("_cb"):
        if not callable(value) and not isinstance(value, str):
            raise BadPropertyError(key, 'must be a function or its "module:name"')
        try:
            return importable_name(value)
        except ConfigError as error:
            raise BadPropertyError(key, str(error)) from error
    if not isinstance(value, str | int | float):  # bool is an int
        raise BadPropertyError(
            key, f"must be text, a number or a boolean, not {type(value).__name__}"
        )
    return value
