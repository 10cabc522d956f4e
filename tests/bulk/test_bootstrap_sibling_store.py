"""Loading one of two stores with the same input leaves the other unchanged."""

import pytest

from tests.bulk.conftest import MakeConfig
from tests.integration.cluster import PATIENCE_S, Cluster, until
from tidewheel import KafkaStreams, Serdes, StreamsBuilder, StreamsConfig, Topology
from tidewheel.bulk import BootstrapRefused, bootstrap
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

KEYS = ("tea", "coffee", "milk", "water")
PARTITIONS = 2
EACH = 20


def counted_twice(topic: str, config: StreamsConfig) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(topic, key_serde=Serdes.string(), value_serde=Serdes.bytes())
    grouped = stream.group_by_key()
    grouped.count(store="a")
    grouped.count(store="b")
    return builder.build(config)


def test_a_store_is_loaded_without_miscounting_its_sibling(
    spark: SparkSession, cluster: Cluster, make_config: MakeConfig
) -> None:
    config = make_config(snapshot_location=None, commit_interval_ms=50)
    topic = f"shared-{config.application_id}"
    topology = counted_twice(topic, config)
    cluster.create({topic: PARTITIONS})

    def content(store: str) -> dict[str, int]:
        found = cluster.folded(f"{config.application_id}-{store}-changelog")
        return {key.decode(): int.from_bytes(value) for key, (value, _) in found.items()}

    def run(number: int) -> None:
        cluster.send(topic, [(key.encode(), b"x") for key in KEYS for _ in range(number)])
        app = KafkaStreams(topology, config)
        app.start()
        try:
            assert app.wait_until_running(PATIENCE_S), app.error
            cluster.wait_until_consumed(config.application_id, topic)
        finally:
            assert app.close(timeout=int(PATIENCE_S * 1000))

    run(EACH)
    assert content("a") == dict.fromkeys(KEYS, EACH)
    committed = cluster.committed(config.application_id)
    frame = spark.createDataFrame([(key, 1_000) for key in KEYS], "key string, value bigint")
    with pytest.raises(BootstrapRefused, match=f"store a has content .*{topic}-.: committed"):
        bootstrap(topology, config, "b", frame, input_offsets="earliest", replace=True, spark=spark)
    assert cluster.committed(config.application_id) == committed
    offsets = {topic: {each.partition: offset for each, offset in committed.items()}}
    report = bootstrap(
        topology, config, "b", frame, input_offsets=offsets, replace=True, spark=spark
    )
    assert report.rows == len(KEYS)
    run(1)
    until(lambda: content("b") == dict.fromkeys(KEYS, 1_001), "the loaded store goes on")
    assert content("a") == dict.fromkeys(KEYS, EACH + 1)
