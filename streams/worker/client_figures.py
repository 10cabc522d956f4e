"""Figures of Kafka clients, from librdkafka's statistics under the names of Kafka's clients."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

from tidewheel.streams.kafka.client.statistics import (
    Broker,
    ClientStatistics,
    Statistics,
    Window,
)
from tidewheel.tasks.figures import Family, Kind, Labels

_Level = Literal["consumer", "producer"]
#: Slot, client, statistics.
_Row = tuple[str, str, Statistics]

_US_PER_S: Final = 1_000_000
_MS_PER_S: Final = 1_000

#: Name, kind, text, and value of each figure of a client.
_Figure = tuple[str, Kind, str, Callable[[Statistics], float | None]]


def _average(windows: Iterable[Window], per_unit: int = 1) -> float | None:
    """Return the average of several windows; None if nothing happened in the interval."""
    filled = [window for window in windows if window.cnt > 0]
    number = sum(window.cnt for window in filled)
    return sum(window.avg * window.cnt for window in filled) / number / per_unit if number else None


def _longest(windows: Iterable[Window], per_unit: int = 1) -> float | None:
    return max((window.max / per_unit for window in windows if window.cnt > 0), default=None)


def _throttles(statistics: Statistics) -> list[Window]:
    return [broker.throttle for broker in statistics.brokers.values()]


def _queue_times(statistics: Statistics) -> list[Window]:
    return [broker.int_latency for broker in statistics.brokers.values()]


def _batch_size(statistics: Statistics) -> float | None:
    return _average(topic.batchsize for topic in statistics.topics.values())


def _lag_max(statistics: Statistics) -> float | None:
    lags = [
        partition.consumer_lag
        for topic in statistics.topics.values()
        for partition in topic.partitions.values()
        if partition.has_lag
    ]
    return max(lags, default=None)


_OF_BOTH: Final[tuple[_Figure, ...]] = (
    ("request-total", "counter", "Requests sent", lambda client: client.tx),
    ("response-total", "counter", "Responses received", lambda client: client.rx),
    ("outgoing-byte-total", "counter", "Bytes of requests", lambda client: client.tx_bytes),
    ("incoming-byte-total", "counter", "Bytes of responses", lambda client: client.rx_bytes),
    (
        "connection-count",
        "gauge",
        "Open connections to brokers",
        lambda client: sum(broker.is_up for broker in client.brokers.values()),
    ),
    (
        "connection-close-total",
        "counter",
        "Connections closed or lost",
        lambda client: sum(broker.disconnects for broker in client.brokers.values()),
    ),
)
_OF_CONSUMER: Final[tuple[_Figure, ...]] = (
    ("records-consumed-total", "counter", "Records fetched", lambda client: client.rxmsgs),
    (
        "bytes-consumed-total",
        "counter",
        "Bytes of fetched records",
        lambda client: client.rxmsg_bytes,
    ),
    ("records-lag-max", "gauge", "Largest lag of a partition that it reads", _lag_max),
    (
        "fetch-throttle-time-avg-seconds",
        "gauge",
        "Average delay by a broker's quota, of the last interval",
        lambda client: _average(_throttles(client), _MS_PER_S),
    ),
    (
        "fetch-throttle-time-max-seconds",
        "gauge",
        "Longest delay by a broker's quota, of the last interval",
        lambda client: _longest(_throttles(client), _MS_PER_S),
    ),
)
_OF_PRODUCER: Final[tuple[_Figure, ...]] = (
    (
        "record-send-total",
        "counter",
        "Records sent, also those of aborted transactions",
        lambda client: client.txmsgs,
    ),
    ("byte-total", "counter", "Bytes of sent records", lambda client: client.txmsg_bytes),
    (
        "buffer-total-bytes",
        "gauge",
        "Memory for unsent records",
        lambda client: client.msg_size_max,
    ),
    (
        "buffer-available-bytes",
        "gauge",
        "Unused part of that memory",
        lambda client: client.msg_size_max - client.msg_size,
    ),
    (
        "batch-size-avg-bytes",
        "gauge",
        "Average size of batches, of the last interval",
        _batch_size,
    ),
    (
        "record-queue-time-avg-seconds",
        "gauge",
        "Average time in the client until a request, of the last interval",
        lambda client: _average(_queue_times(client), _US_PER_S),
    ),
    (
        "record-queue-time-max-seconds",
        "gauge",
        "Longest time in the client until a request, of the last interval",
        lambda client: _longest(_queue_times(client), _US_PER_S),
    ),
    (
        "produce-throttle-time-avg-seconds",
        "gauge",
        "Average delay by a broker's quota, of the last interval",
        lambda client: _average(_throttles(client), _MS_PER_S),
    ),
    (
        "produce-throttle-time-max-seconds",
        "gauge",
        "Longest delay by a broker's quota, of the last interval",
        lambda client: _longest(_throttles(client), _MS_PER_S),
    ),
)


def client_families(clients: Sequence[tuple[str, ClientStatistics]]) -> Iterator[Family]:
    """Yield the families of all workers' clients, by the workers' slots."""
    rows: list[_Row] = [
        (slot, client, found)
        for slot, statistics in clients
        for client, found in statistics.latest().items()
    ]
    consumers = [row for row in rows if row[1].endswith("consumer")]
    producers = [row for row in rows if row[1].endswith("producer")]
    yield from _level("consumer", (*_OF_BOTH, *_OF_CONSUMER), consumers)
    yield _lags(consumers)
    yield from _level("producer", (*_OF_BOTH, *_OF_PRODUCER), producers)
    failures = sum(statistics.failures for _, statistics in clients)
    text = "Statistics of librdkafka that could not be read"
    yield Family("client-statistics-errors-total", "counter", text, (), {(): failures})


def _level(level: _Level, figures: Iterable[_Figure], rows: Sequence[_Row]) -> Iterator[Family]:
    for name, kind, text, value_of in figures:
        values: dict[Labels, float] = {}
        for slot, client, statistics in rows:
            value = value_of(statistics)
            if value is not None:
                values[slot, client] = value
        yield Family(f"{level}-{name}", kind, text, ("slot", "client"), values)
    averages: dict[Labels, float] = {}
    longest: dict[Labels, float] = {}
    for slot, client, statistics in rows:
        for node, windows in _round_trips(statistics.brokers.values()).items():
            labels = (slot, client, str(node))
            average, most = _average(windows, _US_PER_S), _longest(windows, _US_PER_S)
            if average is not None and most is not None:
                averages[labels], longest[labels] = average, most
    of_broker = ("slot", "client", "broker")
    text = "time until a broker's response, of the last interval"
    yield Family(
        f"{level}-request-latency-avg-seconds", "gauge", f"Average {text}", of_broker, averages
    )
    yield Family(
        f"{level}-request-latency-max-seconds", "gauge", f"Longest {text}", of_broker, longest
    )


def _round_trips(brokers: Iterable[Broker]) -> dict[int, list[Window]]:
    """Return the round trips by broker id; bootstrap connections have none."""
    found: dict[int, list[Window]] = {}
    for broker in brokers:
        if broker.nodeid >= 0:
            found.setdefault(broker.nodeid, []).append(broker.rtt)
    return found


def _lags(consumers: Sequence[_Row]) -> Family:
    return Family(
        "consumer-records-lag",
        "gauge",
        "Offsets from the consumer's position to the end of a partition that it reads",
        ("slot", "client", "topic", "partition"),
        {
            (slot, client, name, str(partition.partition)): partition.consumer_lag
            for slot, client, statistics in consumers
            for name, topic in statistics.topics.items()
            for partition in topic.partitions.values()
            if partition.has_lag
        },
    )
