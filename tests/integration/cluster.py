"""A cluster as integration tests see it: topics made, filled and read back with a client of the tests' own."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from weakref import WeakSet

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from rebalance.model import TopicPartition
from streams.kafka.clients import KafkaClients
from tasks.ports import NewTopic
from tasks.processing.output import ANY_PARTITION, OutputColumns
from tasks.processing.record import Headers

#: Far beyond what anything here takes; a test that reaches it has failed.
PATIENCE_S = 60.0


def until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; `what` is the message of the failure if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A committed record as it was read back."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    headers: Headers


class Cluster:
    """One broker with the questions and orders that tests have."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.clients = KafkaClients(
            bootstrap_servers=bootstrap_servers, application_id="integration-tests"
        )
        self.admin = self.clients.admin()
        self._kafka_admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def close(self) -> None:
        self.admin.close()

    def create(self, partitions: Mapping[str, int], **config: str) -> None:
        """Create topics; dots in names of settings are written as underscores."""
        # Timestamps of tests are of 1970: a broker would delete such records after half a minute.
        settings = {"retention.ms": "-1"}
        settings |= {name.replace("_", "."): value for name, value in config.items()}
        self.admin.create_topics(
            [
                NewTopic(name=name, partitions=count, config=settings)
                for name, count in partitions.items()
            ]
        )

    def send(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        *,
        partition: int = ANY_PARTITION,
        first_timestamp: int = 1_000,
        headers: Headers | None = None,
    ) -> None:
        """Write records, each a millisecond of event time after the one before; returns once they are there."""
        with Feed(self, topic) as feed:
            feed.send(
                list(records),
                partition=partition,
                first_timestamp=first_timestamp,
                headers=headers,
            )

    def read(self, topic: str) -> list[Received]:
        """Return every committed record of a topic: by partition, then offset."""
        records = [_received(message) for message in self._messages(topic)]
        return sorted(records, key=lambda each: (each.partition, each.offset))

    def _messages(self, topic: str) -> Iterator[Message]:
        """Yield the committed records of a topic, in order within each partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "integration-tests-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 10,
            }
        )
        try:
            yield from _messages_of(consumer, self._written(topic))
        finally:
            consumer.close()

    def values_by_key(self, topic: str) -> dict[bytes, list[bytes | None]]:
        """Return the committed values of each key, in order."""
        values: defaultdict[Any, list[Any]] = defaultdict(list)
        for message in self._messages(topic):
            values[message.key()].append(message.value())
        return dict(values)

    def folded(self, topic: str) -> dict[bytes, tuple[bytes, int]]:
        """Return what a changelog says: the last value and timestamp of each key that is not deleted."""
        last: dict[Any, Message] = {message.key(): message for message in self._messages(topic)}
        return {
            key: (value, message.timestamp()[1])
            for key, message in last.items()
            if (value := message.value()) is not None
        }

    def committed(self, application_id: str) -> dict[TopicPartition, int]:
        """Return the application's committed offsets, once pending ones are decided."""
        found = self.admin.committed(application_id, None, stable=True)
        return {partition: committed.offset for partition, committed in found.items()}

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        """Return the end of each partition of a topic, once all that is written there now is committed or aborted."""
        written = self._written(topic)
        found: dict[TopicPartition, int] = {}

        def decided() -> bool:
            found.update(self.admin.end_offsets(list(written)))
            return all(found[each] >= end for each, end in written.items())

        until(decided, f"all that was written to {topic} is committed or aborted")
        return found

    def _written(self, topic: str) -> dict[TopicPartition, int]:
        """Return the end of each partition of a topic, with what is not committed yet.

        That offsets are committed does not say that their transaction's outputs can be read: each partition gets
        its marker in its own time.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {KafkaPartition(*each): latest for each in self.partitions(topic)}
        answers = self._kafka_admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=PATIENCE_S
        )
        return {
            TopicPartition(each.topic, each.partition): answer.result(PATIENCE_S).offset
            for each, answer in answers.items()
        }

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic."""
        count = self.admin.describe_topics([topic])[topic].partitions
        return [TopicPartition(topic, number) for number in range(count)]

    def is_consumed(self, application_id: str, *topics: str) -> bool:
        """Return whether an application has committed everything that stands in these topics."""
        ends = {each: end for topic in topics for each, end in self.ends(topic).items()}
        committed = self.committed(application_id)
        return all(committed.get(each, 0) >= end for each, end in ends.items())

    def wait_until_consumed(
        self, application_id: str, *topics: str, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until an application has committed everything that stands in these topics."""
        until(
            lambda: self.is_consumed(application_id, *topics),
            f"{application_id} consumes {topics}",
            timeout_s,
        )


class Feed:
    """A producer of input for one topic. One thread uses it."""

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
        """Write records, each a millisecond of event time after the one before."""
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
    """Writes records at a rate until told to stop, and keeps what it wrote.

    `make(n)` returns the n-th record.
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
        self._rate = rate
        self._done = threading.Event()
        self.records: list[tuple[bytes, bytes]] = []
        self.elapsed_s = 0.0
        self._made.add(self)

    def run(self) -> None:
        begin = time.monotonic()
        with Feed(self._cluster, self._topic) as feed:
            while not self._done.wait(0.02):
                self.elapsed_s = time.monotonic() - begin
                first = len(self.records)
                records = [
                    self._make(index) for index in range(first, int(self.elapsed_s * self._rate))
                ]
                if records:
                    feed.send(records, first_timestamp=1_000 + first)
                    self.records += records

    @classmethod
    def stop_all(cls) -> None:
        """Have those stop that a test left running, because it failed."""
        for feed in cls._made:
            feed._done.set()

    def stop(self) -> None:
        """Stop; everything is written when this returns."""
        self._done.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the feed has stopped"


def _messages_of(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> Iterator[Message]:
    left = dict(ends)
    consumer.assign([KafkaPartition(*each, OFFSET_BEGINNING) for each in sorted(left)])
    deadline = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < deadline, f"{left} can't be read: are transactions open?"
        for message in consumer.consume(10_000, timeout=0.05):
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise AssertionError(f"reading {sorted(ends)}: {error}")
            else:
                partition = TopicPartition(message.topic() or "", message.partition() or 0)
                if (message.offset() or 0) >= ends[partition]:
                    left.pop(partition, None)


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
