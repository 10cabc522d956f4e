"""A store whose values have a schema in a registry, loaded and read by executors."""

from typing import Any

from tests.bulk.conftest import MakeConfig
from tests.fakes.schema_registry import schema_registry
from tests.integration.cluster import Cluster
from tidewheel import Serdes, StreamsBuilder
from tidewheel.bulk import bootstrap, state_dataframe
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "cents", "type": "shop.Money"}],
}
MONEY: dict[str, Any] = {"type": "enum", "name": "shop.Money", "symbols": ["little", "much"]}
TO_MONEY = {"name": "shop.Money", "subject": "money", "version": 1}


def test_rows_loaded_by_a_schema_are_read_by_it(
    spark: SparkSession, cluster: Cluster, make_config: MakeConfig
) -> None:
    """The changelog has the ids of the registry's schemas."""
    config = make_config(snapshot_location=None)
    topic = f"orders-{config.application_id}"
    cluster.create({topic: 2})
    rows = {f"k{number}": ("little", "much")[number % 2] for number in range(50)}
    with schema_registry() as registry:
        registry.add("money", MONEY)
        registry.add("names", '"string"')
        builder = StreamsBuilder()
        orders = builder.stream(
            topic,
            key_serde=Serdes.avro(registry=registry.url, subject="names"),
            value_serde=Serdes.avro(ORDER, registry.url, references=[TO_MONEY]),
        )
        orders.group_by_key().reduce(lambda _, new: new, store="orders")
        topology = builder.build(config)
        frame = spark.createDataFrame(list(rows.items()), "key string, cents string")

        bootstrap(topology, config, "orders", frame, input_offsets="latest", spark=spark)
        found = state_dataframe(topology, config, "orders", spark=spark).collect()

    assert {row.key: row.value for row in found} == {
        key: f'{{"cents":"{cents}"}}' for key, cents in rows.items()
    }
    changelog = f"{config.application_id}-orders-changelog"
    assert list(registry.subjects) == ["money", "names", f"{changelog}-value"]
    assert registry.schemas[2]["references"] == [TO_MONEY]
    folded = cluster.folded(changelog)
    assert {key[:5] for key in folded} == {b"\x00\x00\x00\x00\x02"}
    assert {value[:5] for value, _ in folded.values()} == {b"\x00\x00\x00\x00\x03"}
