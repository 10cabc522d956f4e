"""Two million flights and clicks: a backfill equals two live workers in stores, offsets and outputs."""

import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.bulk.backfill.shops import Shop
from tests.integration.cluster import PATIENCE_S
from tidewheel import KafkaStreams, StreamsBuilder, TimeWindows, Topology
from tidewheel.bulk import backfill
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

_FLIGHTS: Final = 100_000
_CLICKS: Final = 1_900_000
_KEYS: Final = 50_000
_HOUR_MS: Final = 3_600_000
#: The clicks are of 21 hours up to now: brokers delete older rows of changelogs of windows.
_AGE_MS: Final = 22 * _HOUR_MS


def flights_and_clicks(flights: str, clicks: str, sink: str) -> Topology:
    """A join, a count behind a repartition, and windows; no result depends on arrival."""
    builder = StreamsBuilder()
    table = builder.table(flights, key_serde=str, value_serde=str, store="flights")
    stream = builder.stream(clicks, key_serde=str, value_serde=str)
    joined = stream.join(table, lambda click, carrier: f"{carrier} {click}")
    joined.to(sink, key_serde=str, value_serde=str)
    carriers = joined.select_key(lambda _, text: text.split()[0])
    carriers.group_by_key(key_serde=str, value_serde=str).count(store="carriers")
    windows = stream.group_by_key().windowed_by(TimeWindows(_HOUR_MS, grace=24 * _HOUR_MS))
    windows.count(store="hours")
    return builder.build()


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.timeout(1_800)
def test_two_million_records_equal_two_live_workers(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    cluster, live = shop.cluster, f"{shop.app}-live"
    flights, clicks = f"flights-{shop.app}", f"clicks-{shop.app}"
    cluster.create({flights: 4, clicks: 4, f"{shop.sink}-live": 4, f"{shop.sink}-batch": 4})
    first_ms = time.time_ns() // 1_000_000 - _AGE_MS
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50})
    for number in range(_FLIGHTS):
        key = b"k%d" % (number % _KEYS)
        _produce(producer, flights, key, b"c%d" % (number % 17), first_ms + number // 1_000)
    for number in range(_CLICKS):
        key = b"k%d" % (number * 7_919 % (_KEYS + 1_000))
        _produce(producer, clicks, key, b"%d" % number, first_ms + 1_000 + number * 40)
    assert not producer.flush(PATIENCE_S)
    config = shop.config.replace(max_task_idle_ms=10_000)
    apps = [
        KafkaStreams(
            flights_and_clicks(flights, clicks, f"{shop.sink}-live"),
            config.replace(application_id=live, state_dir=tmp_path / f"live-{number}"),
        )
        for number in range(2)
    ]
    for app in apps:
        app.start()
    cluster.wait_until_consumed(live, flights, clicks, timeout_s=900)
    cluster.wait_until_consumed(live, *shop.between(live), timeout_s=300)
    for app in apps:
        assert app.close(timeout=int(PATIENCE_S * 1000))
    topology = flights_and_clicks(flights, clicks, f"{shop.sink}-batch")
    backfill(topology, config, outputs="topics", spark=spark)
    assert _outputs(shop, f"{shop.sink}-batch") == _outputs(shop, f"{shop.sink}-live")
    assert shop.stores(shop.app, topology) == shop.stores(live, topology)
    found, wanted = shop.progress(shop.app), shop.progress(live)
    for at in cluster.partitions(flights) + cluster.partitions(clicks):
        assert found[at].committed_offset == wanted[at].committed_offset
        assert found[at].stream_time_ms == wanted[at].stream_time_ms
        assert found[at].operator_times_ms == wanted[at].operator_times_ms


def _produce(producer: Producer, topic: str, key: bytes, value: bytes, timestamp: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, timestamp=timestamp)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def _outputs(shop: Shop, topic: str) -> Counter[tuple[int, bytes, bytes | None, int]]:
    return Counter(
        (each.partition, each.key, each.value, each.timestamp) for each in shop.cluster.read(topic)
    )
