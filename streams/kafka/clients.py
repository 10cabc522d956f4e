"""Makes every client of an application from one set of settings."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.settings import ClientKind, ClientSettings, redact
from tidewheel.streams.kafka.consumers.changelog import KafkaChangelogReader, KafkaGlobalReader
from tidewheel.streams.kafka.consumers.consumer import KafkaInputReader, KafkaRecordSource
from tidewheel.streams.kafka.consumers.fixed_claim import FixedClaim
from tidewheel.streams.kafka.producers.producer import no_wait
from tidewheel.streams.kafka.producers.sink_producer import KafkaSinkProducer
from tidewheel.streams.kafka.producers.transactional_producer import KafkaTransactionalProducer

_LOGGER: Final = logging.getLogger("tidewheel.streams.kafka")

#: Properties that decide whether a client may talk to the cluster at all.
_SECURITY: Final = ("security.", "sasl.", "ssl.")


class KafkaClients:
    """The application's way to its cluster. Making a client connects it in the background; nothing is shared.

    Args:
        bootstrap_servers: `host:port`, comma-separated.
        application_id: Also the group that offsets are committed to.
        client_id: What brokers log these clients by; the application's id if empty.
        consumer: The user's librdkafka properties for consumers, `producer` and `admin` likewise. Values may be
            `env:NAME` and `file:/path`, and callbacks `module:name`; they are resolved when a client is made.
        on_wait: Called about twice a second while a producer's call waits for the cluster.

    Raises:
        ConfigError: A property that the adapters rest on was given.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        application_id: str,
        client_id: str = "",
        consumer: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        admin: Mapping[str, Any] | None = None,
        on_wait: Callable[[], None] = no_wait,
    ) -> None:
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers,
            application_id=application_id,
            client_id=client_id,
            consumer=consumer or {},
            producer=producer or {},
            admin=admin or {},
        )
        self._on_wait = on_wait
        given: dict[ClientKind, Mapping[str, Any]] = {
            "consumer": self.settings.consumer,
            "producer": self.settings.producer,
            "admin": self.settings.admin,
        }
        for text in _warnings(given):
            _LOGGER.warning("%s", text)
        for kind, properties in given.items():
            if properties:
                _LOGGER.info("%s settings: %s", kind, redact(properties))

    def source(self) -> KafkaRecordSource:
        """Return a new consumer for the worker's input."""
        return KafkaRecordSource(self.settings.source())

    def input_reader(self) -> KafkaInputReader:
        """Return a new consumer for single input records that were read before."""
        return KafkaInputReader(self.settings.input_again())

    def transactional_producer(
        self, transactional_id: str, transaction_timeout_ms: int, *, call_timeout_s: float = 30.0
    ) -> KafkaTransactionalProducer:
        """Return a new transactional producer; call its `init` first."""
        return KafkaTransactionalProducer(
            self.settings,
            transactional_id,
            transaction_timeout_ms,
            call_timeout_s=call_timeout_s,
            on_wait=self._on_wait,
        )

    def sink_producer(self) -> KafkaSinkProducer:
        """Return a new producer for the sinks of at_least_once."""
        return KafkaSinkProducer(self.settings, on_wait=self._on_wait)

    def admin(self, *, timeout_s: float = 30.0) -> KafkaAdmin:
        """Return a new admin client."""
        return KafkaAdmin(self.settings, timeout_s=timeout_s)

    def changelog_reader(self) -> KafkaChangelogReader:
        """Return a new consumer for restoring state."""
        return KafkaChangelogReader(self.settings.changelog())

    def fixed_claim(self, transactional_id: str, topic: str) -> FixedClaim:
        """Show the cluster that a worker with a fixed assignment lives, until it is closed."""
        return FixedClaim(self.settings.fixed_claim(transactional_id), topic)

    def global_reader(self) -> KafkaGlobalReader:
        """Return a new consumer for the topics of global stores."""
        return KafkaGlobalReader(self.settings.changelog())


def _warnings(given: Mapping[ClientKind, Mapping[str, Any]]) -> list[str]:
    """Return what is likely a mistake, though it may be meant."""
    texts = [
        f"{kind}['enable.ssl.certificate.verification'] is off: anyone on the way can read and change what is sent"
        for kind, properties in given.items()
        if str(properties.get("enable.ssl.certificate.verification", "true")).lower() == "false"
    ]
    secured = [
        kind
        for kind, properties in given.items()
        if any(name.startswith(_SECURITY) for name in properties)
    ]
    if secured and len(secured) < len(given):
        others = ", ".join(sorted(set(given) - set(secured)))
        texts.append(
            f"security properties are set for {', '.join(secured)} but not for {others}, which need them as well if the "
            "cluster demands them"
        )
    return texts
