"""librdkafka settings, one function per kind of client.

Settings that correctness depends on cannot be changed (`check_overrides`). Secrets are resolved
when a client is made, and never stored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from tidewheel.streams.config.secrets import check_files, redacted, resolve_secrets
from tidewheel.streams.errors import ConfigError

ClientKind = Literal["consumer", "producer", "admin"]
Config = dict[str, Any]

SOURCE_QUEUE_KBYTES: Final = 32 * 1024
OTHER_QUEUE_KBYTES: Final = 16 * 1024
AGAIN_QUEUE_KBYTES: Final = 2 * 1024

#: So high that it never applies: the topic's own limit decides (`records.oversized`).
CLIENT_MESSAGE_MAX_BYTES: Final = 1_000_000_000

#: Transaction timeout of `TrialProducer`, which searches for records that a broker refuses. If the
#: worker dies, brokers abort its open transaction after this time.
SEARCH_TIMEOUT_MS: Final = 30_000

#: The only `debug` context that logs lost transaction requests (see `client_log`).
TRANSACTION_DEBUG: Final = ("eos",)

#: Without a heartbeat for this long, a worker with a fixed assignment counts as dead.
FIXED_SESSION_MS: Final = 8_000

_SHARED_OPTION = "set bootstrap_servers, which all clients share"
_OUR_CALLBACK = "Tidewheel handles it itself; remove it"


class _Fixed(msgspec.Struct, frozen=True):
    next_step: str
    allowed: frozenset[str] = frozenset()


_EVERY_CLIENT: Final[Mapping[str, _Fixed]] = {
    "bootstrap.servers": _Fixed(_SHARED_OPTION),
    "metadata.broker.list": _Fixed(_SHARED_OPTION),
    "default.topic.config": _Fixed("give topic properties among the others, without this table"),
    "logger": _Fixed(
        "the client's log goes to Python's logger 'tidewheel.streams.kafka.client'; remove it"
    ),
}
_NO_GROUP: Final = "Tidewheel assigns partitions and commits offsets itself; remove it"
_DELIVERY: Final = "Tidewheel reads delivery reports itself; set production_exception_handler"
_ALL_ACKS: Final = _Fixed("transactions need acks=all; remove it", frozenset({"all", "-1"}))
_FIXED: Final[Mapping[ClientKind, Mapping[str, _Fixed]]] = {
    "consumer": {
        **_EVERY_CLIENT,
        "isolation.level": _Fixed(
            "state and outputs are right only if every consumer reads committed records; remove it",
            frozenset({"read_committed"}),
        ),
        "group.id": _Fixed("the group is named by application_id; remove it"),
        "enable.auto.commit": _Fixed(_NO_GROUP, frozenset({"false"})),
        "auto.commit.enable": _Fixed(_NO_GROUP, frozenset({"false"})),
        "enable.auto.offset.store": _Fixed(_NO_GROUP, frozenset({"false"})),
        "auto.offset.reset": _Fixed("set auto_offset_reset, or offset_reset= of a source"),
        "enable.partition.eof": _Fixed(
            "Tidewheel needs to see where partitions end; remove it", frozenset({"true"})
        ),
    },
    "producer": {
        **_EVERY_CLIENT,
        "transactional.id": _Fixed("Tidewheel names producers to fence each other; remove it"),
        "transaction.timeout.ms": _Fixed("set worker_hang_timeout_ms; this is that plus 30 s"),
        "enable.idempotence": _Fixed("transactions need it; remove it", frozenset({"true"})),
        "acks": _ALL_ACKS,
        "request.required.acks": _ALL_ACKS,
        "partitioner": _Fixed(
            "joins rest on Kafka's own partitioning; give partitioner= to `to` or `repartition`",
            frozenset({"murmur2_random"}),
        ),
        "message.max.bytes": _Fixed("the topic's max.message.bytes decides; set that instead"),
        "metadata.recovery.strategy": _Fixed(
            "librdkafka hangs in commits after it has bootstrapped again; remove it",
            frozenset({"none"}),
        ),
        "delivery.report.only.error": _Fixed(_DELIVERY),
        "on_delivery": _Fixed(_DELIVERY),
        "dr_cb": _Fixed(_DELIVERY),
        "dr_msg_cb": _Fixed(_DELIVERY),
    },
    "admin": {**_EVERY_CLIENT},
}


def check_overrides(kind: ClientKind, properties: Mapping[str, Any]) -> None:
    """Raise ConfigError for a property that Tidewheel sets itself.

    >>> check_overrides("consumer", {"isolation.level": "read_uncommitted"})
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.ConfigError: consumer['isolation.level'] can't be set here: state and outputs are right only if every consumer reads committed records; remove it
    """
    for name, value in properties.items():
        fixed = _FIXED[kind].get(name)
        if fixed is not None and str(value).lower() not in fixed.allowed:
            raise ConfigError(f"{kind}[{name!r}] can't be set here: {fixed.next_step}")


def redact(properties: Mapping[str, Any]) -> dict[str, Any]:
    return redacted(properties)


def construction_error(kind: ClientKind, reason: str) -> ConfigError:
    """Return the error for a setting that librdkafka refuses, without its value.

    >>> construction_error("consumer", 'No such configuration property: "fetch.waits"').args[0]
    "kafka or consumer['fetch.waits']: librdkafka has no such property; check its spelling"
    """
    # The client's merged properties don't tell the table.
    table = f"kafka or {kind}"
    named = re.search(r"property:? \"?([a-z0-9_.]+)", reason)
    if named is None:
        # The text may contain a value, so only names of properties are extracted.
        names = tuple(dict.fromkeys(_CREATION_NAMES.findall(reason)))
        return ConfigError(f"{table}{_creation_problem(reason, names)}")
    name = named.group(1)
    if reason.startswith("No such"):
        return ConfigError(
            f"{table}[{name!r}]: librdkafka has no such property; check its spelling"
        )
    return ConfigError(f"{table}[{name!r}]: librdkafka refuses its value; see librdkafka's manual")


def _creation_problem(reason: str, names: tuple[str, ...]) -> str:
    if "Unsupported SASL mechanism" in reason:
        return "['sasl.mechanism']: librdkafka does not know it; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
    if "No provider for SASL mechanism" in reason:
        return (
            "['sasl.mechanism']: this build of librdkafka lacks it; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, "
            "or install confluent-kafka from source for Kerberos"
        )
    if len(names) == 1 and names[0].startswith("ssl."):
        return (
            f"[{names[0]!r}]: OpenSSL reads nothing usable from it; give certificates and keys in PEM form, a keystore as "
            "PKCS#12, and the right password"
        )
    if "must be set" in reason and names:
        return f": set {' and '.join(names)}, which this sasl.mechanism needs"
    if "is mandatory when" in reason and len(names) > 1:
        return f"[{names[-1]!r}] needs {' and '.join(names[:-1])}: set it"
    which = ", ".join(names) or "these settings"
    return f": librdkafka refuses {which}; check that security and time-out properties fit together"


def fixed_group(application_id: str) -> str:
    return f"{application_id}:fixed"


_CREATION_NAMES: Final = re.compile(
    r"\b(?:(?:sasl|ssl|security)(?:\.[a-z]+)+|[a-z]+(?:\.[a-z]+)*\.(?:ms|bytes|kbytes))\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Properties of each kind of client.

    Attributes:
        kafka: The properties of all kinds, for errors; the other tables contain them already.
    """

    bootstrap_servers: str
    application_id: str
    client_id: str = ""
    consumer: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    producer: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    admin: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    kafka: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def __post_init__(self) -> None:
        kinds: tuple[ClientKind, ...] = ("consumer", "producer", "admin")
        for kind in kinds:
            check_overrides(kind, getattr(self, kind))
            for table, properties in self._tables(kind).items():
                check_files(properties, table)

    def source(self) -> Config:
        return self._consumer(
            "source",
            {"fetch.max.bytes": 16 << 20, "queued.max.messages.kbytes": SOURCE_QUEUE_KBYTES},
        )

    def input_again(self) -> Config:
        sizes = {"fetch.max.bytes": 1 << 20, "queued.max.messages.kbytes": AGAIN_QUEUE_KBYTES}
        return self._consumer("input-again", sizes)

    def changelog(self) -> Config:
        return self._consumer(
            "changelog",
            {
                "fetch.max.bytes": 16 << 20,
                "fetch.message.max.bytes": 4 << 20,
                "queued.max.messages.kbytes": OTHER_QUEUE_KBYTES,
            },
        )

    def offsets(self, group_id: str, *, stable: bool) -> Config:
        suiting = {
            # A moved task retries until the last commit's markers are written; the default pause of
            # 100 ms would delay it.
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 50,
        }
        return self._consumer("offsets", suiting) | {
            "group.id": group_id,
            # `read_committed` waits for pending transactional commits.
            "isolation.level": "read_committed" if stable else "read_uncommitted",
        }

    def transactional(self, transactional_id: str, transaction_timeout_ms: int) -> Config:
        config = self._producer(
            "transactional",
            {
                # Short: a transaction retries until the last one's markers are written.
                "retry.backoff.ms": 5,
            },
        )
        user_debug = str(self.producer.get("debug", ""))
        return config | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "debug": ",".join(
                dict.fromkeys([*TRANSACTION_DEBUG, *filter(None, user_debug.split(","))])
            ),
            # Lower levels hide the debug lines.
            "log_level": 7,
        }

    def sink(self) -> Config:
        config = self._producer("sink", {"message.timeout.ms": 120_000})
        return config | {"enable.idempotence": True, "delivery.report.only.error": True}

    def search(self, transactional_id: str) -> Config:
        """Return settings of `TrialProducer`: one batch per partition.

        `RefusedSearch` finds a bad record only if both of its copies are in one batch.
        """
        config = self._producer("search", {"retry.backoff.ms": 5})
        config.pop("max.in.flight", None)  # alias of the property below
        return config | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": SEARCH_TIMEOUT_MS,
            "message.timeout.ms": SEARCH_TIMEOUT_MS,
            "linger.ms": 20_000,  # batches wait until a flush
            "max.in.flight.requests.per.connection": 5,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1024,
            "topic.metadata.propagation.max.ms": 5_000,
        }

    def fencing(self, transactional_id: str) -> Config:
        return self._producer("fence", {"retry.backoff.ms": 5}) | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 10_000,
        }

    def control_topics(self) -> Config:
        small = {"queued.max.messages.kbytes": 4 * 1024, "fetch.error.backoff.ms": 50}
        return (
            self._consumer("group-log", {})
            | small
            | {"fetch.wait.max.ms": 50, "fetch.min.bytes": 1}
        )

    def inbox(self) -> Config:
        config = self._producer("group-inbox", {"retry.backoff.ms": 20})
        return config | {"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 5_000}

    def leader(self, transactional_id: str, transaction_timeout_ms: int) -> Config:
        config = self.transactional(transactional_id, transaction_timeout_ms)
        return config | {"client.id": self._common("group-leader")["client.id"], "linger.ms": 0}

    def administration(self) -> Config:
        return self._common("admin") | self._resolved("admin") | self._cluster()

    def group(self, group_id: str) -> Config:
        return self._consumer("group", {}) | {"group.id": group_id}

    def fixed_claim(self, transactional_id: str) -> Config:
        return self._consumer("fixed", {}) | {
            "client.id": transactional_id,
            "group.id": fixed_group(self.application_id),
            # Short, so brokers soon remove a killed worker, but within their default limits.
            "session.timeout.ms": FIXED_SESSION_MS,
            "heartbeat.interval.ms": FIXED_SESSION_MS // 4,
        }

    def _consumer(self, role: str, sizes: Config) -> Config:
        suiting = {
            "fetch.wait.max.ms": 50,
            # Pause after a full queue. A reader that keeps up gets 0.15 M records/s with the
            # default of 1,000 ms, 1.1 M with 10 ms.
            "fetch.queue.backoff.ms": 10,
            "fetch.error.backoff.ms": 100,
            "topic.metadata.propagation.max.ms": 5_000,
            "check.crcs": True,
            **sizes,
        }
        fixed = {
            "group.id": self.application_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # The caller gives all offsets; a reset would repeat or skip records.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        return self._common(role) | suiting | self._resolved("consumer") | fixed | self._cluster()

    def _producer(self, role: str, suiting: Config) -> Config:
        sizes = {
            "linger.ms": 10,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1024,
        }
        fixed = {
            "acks": "all",
            "partitioner": "murmur2_random",  # as Kafka's own clients
            "message.max.bytes": CLIENT_MESSAGE_MAX_BYTES,
        }
        properties = self._resolved("producer")
        return self._common(role) | sizes | suiting | properties | fixed | self._cluster()

    def _common(self, role: str) -> Config:
        return {
            "client.id": f"{self.client_id or self.application_id}-{role}",
            # A broker is found again within one second, not ten.
            "reconnect.backoff.ms": 100,
            "reconnect.backoff.max.ms": 1_000,
            # "rebootstrap" forgets all brokers when a single one restarts. librdkafka 2.16's
            # send_offsets_to_transaction then waits forever, beyond its timeout.
            "metadata.recovery.strategy": "none",
        }

    def _cluster(self) -> Config:
        return {"bootstrap.servers": self.bootstrap_servers}

    def _resolved(self, kind: ClientKind) -> Config:
        resolved: Config = {}
        for table, properties in self._tables(kind).items():
            resolved |= resolve_secrets(properties, table)
        return resolved

    def _tables(self, kind: ClientKind) -> dict[str, Config]:
        """Return the properties by the table that the user gave them in: `kafka`, or the kind's own."""
        tables: dict[str, Config] = {"kafka": {}, kind: {}}
        properties: Mapping[str, Any] = getattr(self, kind)
        for name, value in properties.items():
            is_shared = name in self.kafka and self.kafka[name] == value
            tables["kafka" if is_shared else kind][name] = value
        return tables
