"""Factory of all clients of an application, from one set of settings."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tidewheel.streams.config.client_properties import unchecked_certificates
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.settings import ClientKind, ClientSettings, Config, redact
from tidewheel.streams.kafka.client.statistics import ClientStatistics
from tidewheel.streams.kafka.client.waits import OnWait
from tidewheel.streams.kafka.consumers.changelog import KafkaChangelogReader, KafkaGlobalReader
from tidewheel.streams.kafka.consumers.consumer import KafkaInputReader, KafkaRecordSource
from tidewheel.streams.kafka.consumers.fixed_claim import FixedClaim
from tidewheel.streams.kafka.producers.producer import no_wait, not_measured
from tidewheel.streams.kafka.producers.sink_producer import KafkaSinkProducer
from tidewheel.streams.kafka.producers.transactional_producer import KafkaTransactionalProducer

_LOGGER: Final = logging.getLogger("tidewheel.streams.kafka")

_SECURITY: Final = ("security.", "sasl.", "ssl.")


class KafkaClients:
    """Makes an application's clients; each connects in the background and shares no connection.

    Args:
        client_id: Prefix of the clients' `client.id`; the application id if empty.
        consumer: librdkafka properties; `producer` and `admin` likewise. Values may be `env:NAME`,
            `file:/path`, and for callbacks `module:name`, resolved per client.
        kafka: Properties that all three contain because they are in the table `kafka`, for errors.
        on_wait: For the watchdog: called twice a second while a producer waits for the cluster.
        statistics: Collects the statistics of the source consumer and the producers; None: none. These
            clients must then be polled, also while they are idle.

    Raises:
        ConfigError: A property was given that Tidewheel sets itself.
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
        kafka: Mapping[str, Any] | None = None,
        on_wait: Callable[[], None] = no_wait,
        statistics: ClientStatistics | None = None,
    ) -> None:
        self._statistics = statistics
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers,
            application_id=application_id,
            client_id=client_id,
            consumer=consumer or {},
            producer=producer or {},
            admin=admin or {},
            kafka=kafka or {},
        )
        self._on_wait = on_wait
        properties_by_kind: dict[ClientKind, Mapping[str, Any]] = {
            "consumer": self.settings.consumer,
            "producer": self.settings.producer,
            "admin": self.settings.admin,
        }
        for text in _warnings(properties_by_kind):
            _LOGGER.warning("%s", text)
        for kind, properties in properties_by_kind.items():
            if properties:
                _LOGGER.info("%s settings: %s", kind, redact(properties))

    def source(self) -> KafkaRecordSource:
        return KafkaRecordSource(self._measured("consumer")(self.settings.source()))

    def input_reader(self) -> KafkaInputReader:
        return KafkaInputReader(self.settings.input_again())

    def transactional_producer(
        self, transactional_id: str, transaction_timeout_ms: int, *, call_timeout_s: float = 30.0
    ) -> KafkaTransactionalProducer:
        return KafkaTransactionalProducer(
            self.settings,
            transactional_id,
            transaction_timeout_ms,
            call_timeout_s=call_timeout_s,
            on_wait=self._on_wait,
            measured=self._measured("producer"),
        )

    def sink_producer(self) -> KafkaSinkProducer:
        return KafkaSinkProducer(
            self.settings, on_wait=self._on_wait, measured=self._measured("sink-producer")
        )

    def admin(self, *, timeout_s: float = 30.0, on_wait: OnWait | None = None) -> KafkaAdmin:
        return KafkaAdmin(self.settings, timeout_s=timeout_s, on_wait=on_wait)

    def changelog_reader(self) -> KafkaChangelogReader:
        return KafkaChangelogReader(self.settings.changelog())

    def fixed_claim(self, transactional_id: str, topic: str) -> FixedClaim:
        return FixedClaim(self.settings.fixed_claim(transactional_id), topic)

    def global_reader(self) -> KafkaGlobalReader:
        return KafkaGlobalReader(self.settings.changelog())

    def _measured(self, client: str) -> Callable[[Config], Config]:
        statistics = self._statistics
        return not_measured if statistics is None else partial(statistics.added_to, client)


def _warnings(properties_by_kind: Mapping[ClientKind, Mapping[str, Any]]) -> list[str]:
    texts = [
        f"{kind}[{key!r}] is off: anyone on the network path can read and change the data"
        for kind, properties in properties_by_kind.items()
        for key in unchecked_certificates(properties)
    ]
    secured = [
        kind
        for kind, properties in properties_by_kind.items()
        if any(name.startswith(_SECURITY) for name in properties)
    ]
    if secured and len(secured) < len(properties_by_kind):
        unsecured = ", ".join(sorted(set(properties_by_kind) - set(secured)))
        texts.append(
            f"security properties are set for {', '.join(secured)} but not for {unsecured}, which need them as well if the "
            "cluster demands them"
        )
    return texts
