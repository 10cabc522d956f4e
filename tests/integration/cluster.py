"""Client of a test's cluster: creates, fills and reads topics."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from weakref import WeakSet

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.tasks.kafka.ports import NewTopic
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

#: Far longer than any wait here needs. A test that reaches it has failed.
PATIENCE_S = 120.0

#: Seconds between checks. A slow condition gets `_PAUSES` times its own duration, up to the maximum.
_PAUSE_S = 0.02
_PAUSES = 10
_PAUSE_MOST_S = 0.2


def until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; slow ones are polled less often, to spare the processor."""
    asked_s = time.monotonic()
    deadline = asked_s + timeout_s
    while not condition():
        took_s = time.monotonic() - asked_s
        assert asked_s + took_s < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(min(max(_PAUSE_S, took_s * _PAUSES), _PAUSE_MOST_S))
        asked_s = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    headers: Headers


class Cluster:
    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.clients = KafkaClients(
            bootstrap_servers=bootstrap_servers, application_id="integration-tests"
        )
        self.admin = self.clients.admin()

    def close(self) -> None:
        self.admin.close()

    def create(self, partitions: Mapping[str, int], **config: str) -> None:
        # Records of tests date from 1970. A broker would delete them after half a minute.
        settings = {"retention.ms": "-1"}
        settings |= {name.replace("_", "."): value for name, value in config.items()}
        self.admin.create_topics(
            [
                NewTopic(name=name, partitions=count, config=settings)
                for name, count in partitions.items()
            ]
        )

    def add_partitions(self, topic: str, count: int) -> None:
        """Raise the number of partitions of a topic to `count`."""
        client = self._client()  # its requests end with it
        for done in client.create_partitions([NewPartitions(topic, count)]).values():
            done.result(PATIENCE_S)

    def configure(self, topic: str, **config: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        client = self._client()
        for done in client.incremental_alter_configs([resource]).values():
            done.result(PATIENCE_S)

    def _client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def send(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        *,
        partition: int = ANY_PARTITION,
        first_timestamp: int = 1_000,
        headers: Headers | None = None,
    ) -> None:
        """Write records 1 ms of event time apart; return after their acknowledgement."""
        with Feed(self, topic) as feed:
            feed.send(
                list(records),
                partition=partition,
                first_timestamp=first_timestamp,
                headers=headers,
            )

    def read(self, topic: str) -> list[Received]:
        records = [_received(message) for message in self._messages(topic)]
        return sorted(records, key=lambda record: (record.partition, record.offset))

    def aborted(self, topic: str) -> int:
        """Return the number of records of aborted transactions, after open ones have ended."""
        committed = sum(1 for _ in self._messages(topic))
        return sum(1 for _ in self._messages(topic, isolation="read_uncommitted")) - committed

    def _messages(self, topic: str, *, isolation: str = "read_committed") -> Iterator[Message]:
        """Yield records by partition and offset; committed ones after open transactions have ended.

        A broker acknowledges a commit before consumers can read its records.
        """
        ends = self.log_ends(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "integration-tests-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 10,
            }
        )
        try:
            yield from _messages_of(consumer, topic, ends)
        finally:
            consumer.close()

    def values_by_key(self, topic: str) -> dict[bytes, list[bytes | None]]:
        values: defaultdict[Any, list[Any]] = defaultdict(list)
        for message in self._messages(topic):
            values[message.key()].append(message.value())
        return dict(values)

    def folded(self, topic: str) -> dict[bytes, tuple[bytes, int]]:
        """Return the last value and timestamp of each live key of a changelog."""
        last: dict[Any, Message] = {message.key(): message for message in self._messages(topic)}
        return {
            key: (value, message.timestamp()[1])
            for key, message in last.items()
            if (value := message.value()) is not None
        }

    def committed(self, application_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets, after pending transactions have ended."""
        offsets = self.admin.committed(application_id, None, stable=True)
        return {partition: committed.offset for partition, committed in offsets.items()}

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition of a topic."""
        return self.admin.stable_offsets(self.partitions(topic))

    def partitions(self, topic: str) -> list[TopicPartition]:
        count = self.admin.describe_topics([topic])[topic].partitions
        return [TopicPartition(topic, number) for number in range(count)]

    def is_consumed(self, application_id: str, *topics: str) -> bool:
        """Return True if an application has committed its whole input.

        The order of reads matters: an offset can be visible before its transaction's records are.
        """
        committed = self.committed(application_id)
        wanted = [partition for topic in topics for partition in self.partitions(topic)]
        return all(committed.get(each, 0) >= end for each, end in self._log_ends(wanted).items())

    def log_ends(self, topic: str) -> dict[TopicPartition, int]:
        """Return the end of each partition of a topic, open transactions included."""
        return self._log_ends(self.partitions(topic))

    def _log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self.admin.end_offsets(list(partitions))

    def wait_until_consumed(
        self, application_id: str, *topics: str, timeout_s: float = PATIENCE_S
    ) -> None:
        until(
            lambda: self.is_consumed(application_id, *topics),
            f"{application_id} consumes {topics}",
            timeout_s,
        )


class Feed:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._producer = cluster.clients.sink_producer()

    def send(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        partition: int = ANY_PARTITION,
        first_timestamp: int,
        headers: Headers | None = None,
    ) -> None:
        self._producer.produce(
            OutputColumns(
                topic=self._topic,
                partitions=partition,
                keys=[key for key, _ in records],
                values=[value for _, value in records],
                timestamps=list(range(first_timestamp, first_timestamp + len(records))),
                headers=None if headers is None else [headers] * len(records),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        failures = self._producer.flush()
        self._producer.close()
        assert not failures, f"input was not written: {failures[0].error}"


class SteadyFeed(threading.Thread):
    """Writes records until `stop`, and keeps them; `make(n)` returns the n-th record.

    Attributes:
        rate: Records per second; may change.
    """

    _made: ClassVar["WeakSet[SteadyFeed]"] = WeakSet()

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        make: Callable[[int], tuple[bytes, bytes]],
        *,
        rate: int,
    ) -> None:
        super().__init__(name=f"feed {topic}", daemon=True)
        self._cluster = cluster
        self._topic = topic
        self._make = make
        self.rate = rate
        self._done = threading.Event()
        self.records: list[tuple[bytes, bytes]] = []
        self.elapsed_s = 0.0
        self._made.add(self)

    def run(self) -> None:
        begin = time.monotonic()
        due = 0.0
        with Feed(self._cluster, self._topic) as feed:
            while not self._done.wait(0.02):
                before_s, self.elapsed_s = self.elapsed_s, time.monotonic() - begin
                due += (self.elapsed_s - before_s) * self.rate
                first = len(self.records)
                records = [self._make(index) for index in range(first, int(due))]
                if records:
                    feed.send(records, first_timestamp=1_000 + first)
                    self.records += records

    @classmethod
    def stop_all(cls) -> None:
        for feed in cls._made:
            feed._done.set()

    def stop(self) -> None:
        self._done.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the feed has stopped"


def _messages_of(
    consumer: Consumer, topic: str, ends: Mapping[TopicPartition, int]
) -> Iterator[Message]:
    left = {each.partition: end for each, end in ends.items()}
    consumer.assign([KafkaPartition(topic, number, OFFSET_BEGINNING) for number in sorted(left)])
    deadline = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < deadline, f"partitions {left} of {topic} have no end"
        for message in consumer.consume(10_000, timeout=0.05):
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                if (message.offset() or 0) >= left.get(message.partition() or 0, 0):
                    left.pop(message.partition() or 0, None)
            else:
                raise AssertionError(f"reading {topic}: {error}")


def _received(message: Message) -> Received:
    headers = message.headers() or []
    return Received(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=message.key() or b"",
        value=message.value(),
        timestamp=message.timestamp()[1],
        headers=tuple(headers),  # type: ignore[arg-type]  # bytes, whatever the stub says
    )
