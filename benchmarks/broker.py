"""The broker that is measured against: started here, or one that runs already."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

ANSWER_S = 10.0
HEAP_MB = 1_024
# The development broker is set small for laptops; what is measured runs against Kafka's defaults.
KAFKAS_OWN: Mapping[str, str | int | bool] = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "log.segment.bytes": 1 << 30,
}

# How low a session of the streams protocol may be set for a group: the suite `handoff` does. Kafka's default is its least, too.
SHORT_SESSIONS: Mapping[str, int] = {
    "group.streams.min.session.timeout.ms": 1_500,
    "group.streams.min.heartbeat.interval.ms": 250,
}

# The collector of Kafka's own start script, instead of the one that starts quickest.
COLLECTOR = ("-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


class NoBrokerError(Exception):
    """No broker answers where one should be; the text names the address."""


@dataclass(frozen=True, slots=True)
class BenchmarkBroker:
    """Where the broker listens, and its version if it was started here."""

    bootstrap_servers: str
    version: str | None


@contextmanager
def benchmark_broker(bootstrap_servers: str | None) -> Iterator[BenchmarkBroker]:
    """Yield the broker to measure against, started for the time of the block if none is named.

    Raises:
        NoBrokerError: None answers at the address that is named.
    """
    if bootstrap_servers is not None:
        _check_answers(bootstrap_servers)
        yield BenchmarkBroker(bootstrap_servers, None)
        return
    # Here, so that with --bootstrap-servers nothing of the development broker is needed.
    from tidewheel.streams.broker.jars import DEFAULT_VERSION  # noqa: PLC0415
    from tidewheel.testing import KafkaBroker  # noqa: PLC0415

    properties = {**KAFKAS_OWN, **SHORT_SESSIONS}
    with KafkaBroker(heap_mb=HEAP_MB, properties=properties, jvm_options=COLLECTOR) as started:
        yield BenchmarkBroker(started.bootstrap_servers, DEFAULT_VERSION)


def _check_answers(bootstrap_servers: str) -> None:
    # Silent: what the client would log, over and over, stands in the error.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        admin.list_topics(timeout=ANSWER_S)
    except KafkaException as error:
        raise NoBrokerError(
            f"--bootstrap-servers {bootstrap_servers}: no broker answers within {ANSWER_S:g} s"
            f" ({error.args[0].str()}); give host:port of one that runs, or leave the option out"
        ) from error
