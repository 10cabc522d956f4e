"""A broker that somebody else runs, where tests would else start one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidewheel.streams.broker import wire


class RunningBroker(Protocol):
    """What tests may use of a broker, whoever started it."""

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to, `host:port`."""
        ...

    def create_topics(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """Create topics, given partitions by name; returns the names that were new."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalBroker:
    """An already running Kafka, which is neither started nor stopped from here."""

    bootstrap_servers: str

    def create_topics(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """Create topics, given partitions by name; returns the names that were new.

        Raises:
            BrokerError: A topic could not be created, or the broker does not answer.
        """
        return wire.create_topics(self.bootstrap_servers.split(",")[0], topics)
