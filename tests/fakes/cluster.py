"""A small cluster for contract tests, in memory or real."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tests.fakes.broker import FakeBroker, StoredRecord
from tests.fakes.clients import FakeClients
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.tasks.kafka.ports import (
    Admin,
    ChangelogReader,
    NewTopic,
    RecordSource,
    SinkProducer,
    TransactionalProducer,
)
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Timeout of all waits on a real cluster, in seconds.
PATIENCE_S = 15.0

T = 1_700_000_000_000

C = TypeVar("C")


class Cluster(Protocol):
    """Interface for contract tests."""

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic for one test and return its name."""
        ...

    def name(self) -> str:
        """Return a unique group or transactional id."""
        ...

    def source(self) -> RecordSource: ...

    def producer(self, transactional_id: str) -> TransactionalProducer:
        """Return a transactional producer before `init`."""
        ...

    def sink(self) -> SinkProducer: ...

    def admin(self) -> Admin: ...

    def reader(self) -> ChangelogReader: ...


class ClusterOfFakes:
    def __init__(self) -> None:
        self.broker = FakeBroker()
        self._clients = FakeClients(self.broker)
        self._names = 0

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = self.name()
        self.broker.create_topic(name, partitions, config)
        return name

    def name(self) -> str:
        self._names += 1
        return f"name-{self._names}"

    def source(self) -> RecordSource:
        return self._clients.source()

    def producer(self, transactional_id: str) -> TransactionalProducer:
        return self._clients.transactional_producer(transactional_id)

    def sink(self) -> SinkProducer:
        return self._clients.sink_producer()

    def admin(self) -> Admin:
        return self._clients.admin()

    def reader(self) -> ChangelogReader:
        return self._clients.changelog_reader()

    def close(self) -> None: ...


class RealCluster:
    """A running Kafka; closes its clients at the end of a test."""

    _names = 0

    def __init__(self, bootstrap_servers: str, run_id: str, **settings: Any) -> None:
        self._run_id = run_id
        # Grace for the metadata of new topics; the default is 5 s.
        settings.setdefault("consumer", {"topic.metadata.propagation.max.ms": 1_000})
        self.clients = KafkaClients(
            bootstrap_servers=bootstrap_servers, application_id=f"contract-{run_id}", **settings
        )
        self._admin = self.clients.admin(timeout_s=PATIENCE_S)
        self._made: list[Any] = [self._admin]

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = self.name()
        self._admin.create_topics(
            [NewTopic(name=name, partitions=partitions, replication_factor=1, config=config or {})]
        )
        return name

    def name(self) -> str:
        RealCluster._names += 1
        return f"{self._run_id}-{RealCluster._names}"

    def source(self) -> RecordSource:
        return self._keep(self.clients.source())

    def producer(
        self, transactional_id: str, *, call_timeout_s: float = PATIENCE_S
    ) -> TransactionalProducer:
        """Return a transactional producer; transactions may take twice as long as a call."""
        return self._keep(
            self.clients.transactional_producer(
                transactional_id, round(2_000 * call_timeout_s), call_timeout_s=call_timeout_s
            )
        )

    def sink(self) -> SinkProducer:
        return self._keep(self.clients.sink_producer())

    def admin(self) -> Admin:
        return self._admin

    def reader(self) -> ChangelogReader:
        return self._keep(self.clients.changelog_reader())

    def close(self) -> None:
        for client in self._made:
            client.close()

    def _keep(self, client: C) -> C:
        self._made.append(client)
        return client


def columns(topic: str, *values: bytes | None, **changes: Any) -> OutputColumns:
    count = len(values)
    return OutputColumns(
        topic=topic,
        partitions=changes.pop("partitions", 0),
        keys=changes.pop("keys", [b"k%d" % index for index in range(count)]),
        values=list(values),
        timestamps=changes.pop("timestamps", [T + index for index in range(count)]),
        **changes,
    )


def started(cluster: Cluster, transactional_id: str | None = None) -> TransactionalProducer:
    producer = cluster.producer(transactional_id or cluster.name())
    producer.init()
    return producer


def write(cluster: Cluster, topic: str, *values: bytes | None, **changes: Any) -> None:
    sink = cluster.sink()
    sink.produce(columns(topic, *values, **changes))
    assert sink.flush() == []


def read_until(
    reader: RecordSource | ChangelogReader, ends: Mapping[TopicPartition, int]
) -> list[SourceRecords]:
    runs: list[SourceRecords] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while any(reader.positions().get(each, -1) < end for each, end in ends.items()):
        assert time.monotonic() < deadline_s, f"{reader.positions()} did not reach {ends}"
        runs += reader.poll(1_000, 0.1)
    return runs


def read_some(reader: RecordSource | ChangelogReader, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"only {len(values)} of {count} records came"
        for run in reader.poll(count - len(values), 0.1):
            values += run.raw_values
    return values


def visible(cluster: Cluster, topic: str, at_least: int = 0) -> list[StoredRecord]:
    """Return the read_committed records of a topic by partition and offset.

    The broker responds to a commit before it writes the markers, so wait for `at_least` records.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        records = _visible_now(cluster, topic)
        if len(records) >= at_least or time.monotonic() > deadline_s:
            return records


def _visible_now(cluster: Cluster, topic: str) -> list[StoredRecord]:
    admin = cluster.admin()
    partitions = [
        TopicPartition(topic, number)
        for number in range(admin.describe_topics([topic])[topic].partitions)
    ]
    source = cluster.source()
    source.assign(admin.beginning_offsets(partitions))
    runs = read_until(source, admin.stable_offsets(partitions))
    source.close()
    return sorted(record for run in runs for record in rows(run))


def rows(run: SourceRecords) -> list[StoredRecord]:
    headers: Sequence[Any] = run.headers if run.headers is not None else [()] * len(run)
    return [
        StoredRecord(run.partition, *record)
        for record in zip(
            run.offsets, run.raw_keys, run.raw_values, run.timestamps, headers, strict=True
        )
    ]


def values_of(cluster: Cluster, topic: str, at_least: int = 0) -> list[bytes | None]:
    return [record.value for record in visible(cluster, topic, at_least)]


__all__ = [
    "ANY_PARTITION",
    "PATIENCE_S",
    "Cluster",
    "ClusterOfFakes",
    "RealCluster",
    "T",
    "columns",
    "read_some",
    "read_until",
    "rows",
    "started",
    "values_of",
    "visible",
    "write",
]
