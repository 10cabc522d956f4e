"""A source topic, its applications, and topologies whose results do not depend on arrival."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import Row

from tests.integration.cluster import PATIENCE_S, Cluster
from tidewheel import (
    BufferConfig,
    JoinWindows,
    KafkaStreams,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.tasks.key_ranges.progress_vector import Progress

PARTITIONS = 3
_AGE_MINUTES = 10
_MINUTE_MS = 60_000

#: Key, value and timestamp (ms).
Records = list[tuple[bytes | None, bytes | None, int]]


def lines(count: int, seed: int, *, late_share: float) -> Records:
    """Return records of rising times, a share of which come 5 s late.

    Their times are those of today: brokers delete older rows of changelogs of windows. All are of
    one minute, so of one segment of each store: which ended segments a store still has is its own.
    """
    chance = random.Random(seed)
    minute = time.time_ns() // 1_000_000 // _MINUTE_MS - _AGE_MINUTES
    first_ms = minute * _MINUTE_MS + 10_000
    made: Records = []
    for number in range(count):
        late_ms = 5_000 if chance.random() < late_share else 0
        text = " ".join(chance.choice("abcdefghij") for _ in range(4))
        key = f"k{chance.randrange(40)}".encode()
        made.append((key, text.encode(), first_ms + number * 8 - late_ms))
    return made


def words(source: str, sink: str) -> Topology:
    """Counts words behind a repartition, in all and by windows."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=str, value_serde=str)
    split = stream.flat_map_values(str.split).select_key(lambda _, word: word)
    grouped = split.group_by_key(key_serde=str, value_serde=str)
    grouped.count(store="words").to_stream().to(sink, key_serde=str, value_serde=int)
    grouped.windowed_by(TimeWindows(1_000, grace=60_000)).count(store="windows")
    return builder.build()


def windows(source: str, sink: str) -> Topology:
    """Windows, sessions, a suppressed count and a join, which drop late records by stream time."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=str, value_serde=str)
    grouped = stream.group_by_key()
    tumbling = grouped.windowed_by(TimeWindows(1_000, grace=2_000)).count(store="tumbling")
    grouped.windowed_by(SessionWindows(300, grace=1_000)).reduce(max, store="sessions")
    closed = tumbling.suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded()), name="closed"
    )
    closed.to_stream().map(lambda window, count: (window.key, f"{window.start}: {count}")).to(
        sink, key_serde=str, value_serde=str
    )
    odd = stream.filter(lambda _, text: text.count("a") % 2 == 1)
    even = stream.filter(lambda _, text: text.count("a") % 2 == 0)
    odd.left_join(even, lambda one, two: f"{one}+{two}", within=JoinWindows(200, grace=500)).to(
        sink, key_serde=str, value_serde=str
    )
    return builder.build()


@dataclass(frozen=True)
class Shop:
    cluster: Cluster
    config: StreamsConfig
    source: str
    sink: str

    @property
    def app(self) -> str:
        return self.config.application_id

    def named(self, application_id: str) -> StreamsConfig:
        return self.config.replace(application_id=application_id)

    def send(self, records: Sequence[tuple[bytes | None, bytes | None, int]]) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers})
        for key, value, timestamp in records:
            producer.produce(self.source, value, key, timestamp=timestamp)
        assert not producer.flush(PATIENCE_S)

    def live(self, application_id: str, topology: Topology) -> None:
        """Run a worker until it has processed all input."""
        app = KafkaStreams(topology, self.named(application_id))
        app.start()
        self.cluster.wait_until_consumed(application_id, self.source)
        # No more records come in, so the repartition topics grow only by what is being committed.
        self.cluster.wait_until_consumed(application_id, *self.between(application_id))
        assert app.close(timeout=int(PATIENCE_S * 1000))

    def between(self, application_id: str) -> list[str]:
        topics = self.cluster.admin.list_topics()
        return [
            topic
            for topic in topics
            if topic.startswith(f"{application_id}-") and topic.endswith("-repartition")
        ]

    def stores(self, application_id: str, topology: Topology) -> dict[str, object]:
        """Return the content of all changelogs of an application."""
        config = self.named(application_id)
        return {
            store.name: self.cluster.folded(f"{application_id}-{store.name}-changelog")
            for sub in topology.spec(config).subtopologies
            for store in sub.stores
            if store.logging
        }

    def progress(self, application_id: str) -> dict[TopicPartition, Progress]:
        offsets = self.cluster.admin.committed(application_id, None, stable=True)
        found: dict[TopicPartition, Progress] = {}
        for at, committed in offsets.items():
            progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
            assert progress is not None
            found[at] = progress
        return found


def output_files(spark: SparkSession, folder: Path, topic: str) -> list[Row]:
    """Return the rows of a topic's Parquet files by partition and offset."""
    frame = spark.read.parquet(str(folder / topic))
    return frame.orderBy("partition", "offset").collect()


#: Makes a topology of a source and a sink topic.
MakeTopology = Callable[[str, str], Topology]
