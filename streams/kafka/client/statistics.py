"""librdkafka's statistics of a worker's clients (`statistics.interval.ms`, `stats_cb`).

A client's thread only stores the JSON text; the thread that asks for figures reads it.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tidewheel.streams.kafka.client.settings import Config

_log = logging.getLogger("tidewheel.streams.kafka")

INTERVAL_MS: Final = 10_000
_UP: Final = "UP"


class Window(msgspec.Struct, frozen=True):
    """Values of the last interval; their unit is librdkafka's."""

    max: int = 0
    avg: int = 0
    cnt: int = 0


class Broker(msgspec.Struct, frozen=True):
    """A connection. Brokers have one for requests, and one more if they are a coordinator."""

    nodeid: int = -1
    state: str = ""
    disconnects: int = 0
    rtt: Window = Window()
    throttle: Window = Window()
    int_latency: Window = Window()

    @property
    def is_up(self) -> bool:
        return self.state == _UP


class Partition(msgspec.Struct, frozen=True):
    partition: int
    fetch_state: str = "none"
    consumer_lag: int = -1

    @property
    def has_lag(self) -> bool:
        """Return True for a partition that the consumer reads, if its end is known."""
        return self.partition >= 0 and self.fetch_state == "active" and self.consumer_lag >= 0


class Topic(msgspec.Struct, frozen=True):
    batchsize: Window = Window()
    partitions: dict[str, Partition] = msgspec.field(default_factory=dict[str, Partition])


class Statistics(msgspec.Struct, frozen=True):
    """Fields of librdkafka's STATISTICS.md that `/metrics` shows."""

    tx: int = 0
    tx_bytes: int = 0
    rx: int = 0
    rx_bytes: int = 0
    txmsgs: int = 0
    txmsg_bytes: int = 0
    rxmsgs: int = 0
    rxmsg_bytes: int = 0
    msg_size: int = 0
    msg_size_max: int = 0
    brokers: dict[str, Broker] = msgspec.field(default_factory=dict[str, Broker])
    topics: dict[str, Topic] = msgspec.field(default_factory=dict[str, Topic])


_DECODER: Final = msgspec.json.Decoder(Statistics)


class ClientStatistics:
    """Last statistics of each client of a worker; any thread calls it.

    Attributes:
        failures: Number of texts that could not be read; the first one is logged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, Any] = {}
        self._read: dict[str, tuple[Any, Statistics | None]] = {}
        self.failures = 0

    def added_to(self, client: str, config: Config) -> Config:
        """Return a client's settings with statistics; the user's interval and callback stay."""
        users_callback: Callable[[str], Any] | None = config.get("stats_cb")

        def store(text: str) -> None:
            self._texts[client] = text
            if users_callback is not None:
                users_callback(text)

        return {"statistics.interval.ms": INTERVAL_MS, **config, "stats_cb": store}

    def latest(self) -> dict[str, Statistics]:
        """Return the statistics of each client that has reported readable ones."""
        found: dict[str, Statistics] = {}
        with self._lock:
            for client, text in list(self._texts.items()):
                before, statistics = self._read.get(client, (None, None))
                if before is not text:
                    statistics = self._decoded(client, text)
                    self._read[client] = (text, statistics)
                if statistics is not None:
                    found[client] = statistics
        return found

    def _decoded(self, client: str, text: Any) -> Statistics | None:
        try:
            return _DECODER.decode(text)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            self.failures += 1
            if self.failures == 1:
                _log.warning(
                    "librdkafka's statistics of the %s can't be read (%s); /metrics lacks its figures. Report it with "
                    "the version of confluent-kafka",
                    client,
                    error,
                )
            return None
