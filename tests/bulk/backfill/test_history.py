"""The dump of a topic of which Kafka deleted a part, before what Kafka still has."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.conftest import MakeConfig
from tests.integration.cluster import Cluster, Received
from tidewheel import StreamsBuilder, StreamsError
from tidewheel.bulk import BatchResult, FrameSource
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.bulk.backfill.history import GAP, History, read_history
from tidewheel.streams.bulk.batch.command import source_of
from tidewheel.streams.bulk.batch.executors import Work
from tidewheel.streams.bulk.batch.run import BatchRun
from tidewheel.streams.bulk.batch.source_segments import OffsetRange, source_records
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.worker.topic_setup import spec_of

_PARTITIONS = 3
_RECORDS = 600
_FIRST_MS = 1_000
_HEADERS = (("trace", b"1"), ("empty", None))
_COLUMNS = (
    "key binary, value binary, timestamp bigint, headers array<struct<key:string,value:binary>>, "
    "partition int, offset bigint"
)


class Clicks:
    """A topic, its dump, and a run over both after Kafka deleted a part of the topic."""

    def __init__(
        self, cluster: Cluster, spark: SparkSession, make_config: MakeConfig, folder: Path
    ) -> None:
        config = make_config(snapshot_location=None)
        self.topic = f"clicks-{config.application_id}"
        self.cluster = cluster
        cluster.create({self.topic: _PARTITIONS})
        cluster.send(
            self.topic,
            [(b"key-%d" % (number % 40), b"%d" % number) for number in range(_RECORDS)],
            first_timestamp=_FIRST_MS,
            headers=_HEADERS,
        )
        self.records = cluster.read(self.topic)
        self.dump = str(folder / "dump")
        rows = [
            (each.key, each.value, each.timestamp, list(each.headers), each.partition, each.offset)
            for each in self.records
        ]
        spark.createDataFrame(rows, _COLUMNS).write.parquet(self.dump)
        builder = StreamsBuilder()
        clicks = builder.stream(self.topic, key_serde=str, value_serde=str)
        clicks.group_by_key().count(store="counts")
        topology = builder.build(config)
        self._source = source_of(spec_of(topology, config), self.topic)
        self._spark = spark
        self.work = Work(
            job=BatchJob.of(topology, config, {self.topic: _PARTITIONS}),
            url=str(folder / "work"),
            clients=settings_of(config),
        )
        self._run = BatchRun(spark, self.work, None)

    def delete_half(self) -> None:
        """Have the broker delete the first half of each partition."""
        ends = self.cluster.ends(self.topic)
        self.cluster.admin.delete_records({at: end // 2 for at, end in ends.items()})

    def read(self, frame: Any, **options: Any) -> History:
        partitions = self.cluster.partitions(self.topic)
        begins = self.cluster.admin.beginning_offsets(partitions)
        ends = self.cluster.ends(self.topic)
        ranges = {at: OffsetRange(first=begins[at], end=ends[at]) for at in partitions}
        assert all(each.first > 20 for each in ranges.values())
        return read_history(
            self._run,
            self.topic,
            frame,
            self._source,
            _PARTITIONS,
            ranges,
            offsets_at=self.cluster.admin.offsets_at,
            **options,
        )

    def content(self, history: History) -> list[Received]:
        """Return the records of all segments; those of Kafka are read from the broker."""
        storage = self.work.storage()
        return [
            Received(
                partition=at.partition,
                offset=offset,
                key=key or b"",
                value=value,
                timestamp=timestamp,
                headers=tuple(header),
            )
            for at, segments in sorted(history.segments.items())
            for run in source_records(storage, self.work.clients, at, segments)
            for offset, key, value, timestamp, header in zip(
                run.offsets,
                run.raw_keys,
                run.raw_values,
                run.timestamps,
                run.headers or (),
                strict=True,
            )
        ]

    def counts(self, history: History) -> dict[str, int]:
        """Return the rows of the store after a batch run over all segments."""
        self._run.sources |= history.segments
        for number in range(len(self.work.job.batch.passes)):
            self._run.run_pass(number)
        with BatchResult(
            self._spark, self.work, self._run.last_results(), contextlib.ExitStack()
        ) as result:
            return {row.key: row.value for row in result.stores["counts"].collect()}


@pytest.fixture
def clicks(
    cluster: Cluster, spark: SparkSession, make_config: MakeConfig, tmp_path: Path
) -> Clicks:
    return Clicks(cluster, spark, make_config, tmp_path)


def test_a_dump_and_the_rest_of_the_topic_are_the_whole_topic(clicks: Clicks) -> None:
    clicks.delete_half()
    history = clicks.read(FrameSource(source=clicks.dump))
    assert sum(rows.records for rows in history.rows.values()) == pytest.approx(_RECORDS / 2, abs=3)
    assert sum(history.left_out.values()) == pytest.approx(_RECORDS / 2, abs=3)
    assert clicks.content(history) == clicks.records
    expected = Counter(each.key.decode() for each in clicks.records)
    assert clicks.counts(history) == expected


def test_rows_without_offsets_and_the_records_from_a_time_on_are_the_whole_topic(
    clicks: Clicks, spark: SparkSession
) -> None:
    clicks.delete_half()
    frame = spark.read.parquet(clicks.dump).drop("partition", "offset")
    until_ms = _FIRST_MS + _RECORDS * 3 // 4
    history = clicks.read(frame, until_ms=until_ms, order_by=["value"])
    assert sum(rows.records for rows in history.rows.values()) == _RECORDS * 3 // 4
    assert sum(part.records for part in history.ranges.values()) == _RECORDS // 4
    assert clicks.content(history) == clicks.records
    with pytest.raises(StreamsError, match=f"{clicks.topic}: .*-1: .*-2: .*accept {GAP}"):
        clicks.read(frame, until_ms=_FIRST_MS)
    with pytest.raises(StreamsError, match="column headers is of type array"):
        clicks.read(frame, until_ms=until_ms, order_by=["headers"])


def test_rows_that_the_dump_lacks_are_an_error(clicks: Clicks) -> None:
    clicks.delete_half()
    at = TopicPartition(clicks.topic, 1)
    first = clicks.cluster.admin.beginning_offsets([at])[at]
    source = FrameSource(source=clicks.dump)
    history = clicks.read(source)
    short = history.rows[at].records - 5
    frame = clicks._spark.read.parquet(clicks.dump).where(f"partition <> 1 OR offset < {short}")
    problem = f"{at}: the last row has offset {short - 1}, Kafka is read from {first} on; give"
    with pytest.raises(StreamsError, match=problem):
        clicks.read(frame)
