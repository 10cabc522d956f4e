"""The broker of a run: started here, or an existing one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_S = 10.0
HEAP_MB = 1_024
# Kafka's defaults; the development broker is smaller, for laptops.
KAFKAS_OWN: Mapping[str, str | int | bool] = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "log.segment.bytes": 1 << 30,
}

# Allows the short sessions of the suite `handoff`; Kafka's default minimum is 45 s.
SHORT_SESSIONS: Mapping[str, int] = {
    "group.streams.min.session.timeout.ms": 1_500,
    "group.streams.min.heartbeat.interval.ms": 250,
}

# The collector of Kafka's start script, instead of the one that starts fastest.
COLLECTOR = ("-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


class NoBrokerError(Exception):
    """No broker answers at the address in the text."""


@dataclass(frozen=True, slots=True)
class BenchmarkBroker:
    """Address of the broker, and its version if it was started here."""

    bootstrap_servers: str
    version: str | None


@contextmanager
def benchmark_broker(bootstrap_servers: str | None) -> Iterator[BenchmarkBroker]:
    """Yield the broker; start one for the block if no address is given.

    Raises:
        NoBrokerError: No broker answers at the given address.
    """
    if bootstrap_servers is not None:
        _check_answers(bootstrap_servers)
        yield BenchmarkBroker(bootstrap_servers, None)
        return
    # Imported here: --bootstrap-servers needs no part of the development broker.
    from tidewheel.streams.broker.jars import DEFAULT_VERSION  # noqa: PLC0415
    from tidewheel.testing import KafkaBroker  # noqa: PLC0415

    properties = {**KAFKAS_OWN, **SHORT_SESSIONS}
    with KafkaBroker(heap_mb=HEAP_MB, properties=properties, jvm_options=COLLECTOR) as started:
        yield BenchmarkBroker(started.bootstrap_servers, DEFAULT_VERSION)


def _check_answers(bootstrap_servers: str) -> None:
    # Silent: the error has the text that the client would log repeatedly.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        admin.list_topics(timeout=ANSWER_S)
    except KafkaException as error:
        raise NoBrokerError(
            f"--bootstrap-servers {bootstrap_servers}: no broker answers within {ANSWER_S:g} s"
            f" ({error.args[0].str()}); give host:port of one that runs, or leave the option out"
        ) from error
