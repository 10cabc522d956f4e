"""A store whose values have a schema in a registry, loaded and read by executors."""

from typing import Any

from state_stores.bulk_restore.spark_job import SparkSession
from streams import Serdes, StreamsBuilder
from streams.bulk import bootstrap, state_dataframe
from tests.bulk.conftest import MakeConfig
from tests.fakes.schema_registry import schema_registry
from tests.integration.cluster import Cluster

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "cents", "type": "long"}],
}


def test_what_is_loaded_by_a_schema_is_read_by_it(
    spark: SparkSession, cluster: Cluster, make_config: MakeConfig
) -> None:
    """Executors ask the registry themselves; the changelog has the ids of its schemas."""
    config = make_config(snapshot_location=None)
    topic = f"orders-{config.application_id}"
    cluster.create({topic: 2})
    rows = {f"k{number}": number for number in range(50)}
    with schema_registry() as registry:
        builder = StreamsBuilder()
        orders = builder.stream(
            topic, key_serde=Serdes.string(), value_serde=Serdes.avro(ORDER, registry.url)
        )
        orders.group_by_key().reduce(lambda _, new: new, store="orders")
        topology = builder.build(config)
        frame = spark.createDataFrame(list(rows.items()), "key string, cents bigint")

        bootstrap(topology, config, "orders", frame, input_offsets="latest", spark=spark)
        found = state_dataframe(topology, config, "orders", spark=spark).collect()

    assert {row.key: row.value for row in found} == {
        key: f'{{"cents":{number}}}' for key, number in rows.items()
    }
    changelog = f"{config.application_id}-orders-changelog"
    assert list(registry.subjects) == [f"{changelog}-value"]
    folded = cluster.folded(changelog)
    assert {value[:5] for value, _ in folded.values()} == {b"\x00\x00\x00\x00\x01"}
