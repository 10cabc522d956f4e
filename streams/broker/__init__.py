"""The development broker: a real Apache Kafka, one node, for work and tests on this machine."""

from tidewheel.streams.broker.broker_errors import (
    BrokerError,
    BrokerSettingError,
    DataDirInUseError,
    FetchError,
    JavaError,
    PortTakenError,
    UnknownVersionError,
)
from tidewheel.streams.broker.jars import DEFAULT_VERSION
from tidewheel.streams.broker.kafka_broker import ExternalBroker, KafkaBroker, RunningBroker
from tidewheel.streams.broker.needs import Needs, find_needs

__all__ = [
    "DEFAULT_VERSION",
    "BrokerError",
    "BrokerSettingError",
    "DataDirInUseError",
    "ExternalBroker",
    "FetchError",
    "JavaError",
    "KafkaBroker",
    "Needs",
    "PortTakenError",
    "RunningBroker",
    "UnknownVersionError",
    "find_needs",
]
