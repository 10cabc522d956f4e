"""Tests of keys typed on a command line, and of their partitions."""

import uuid
from typing import Any

import pytest

from tidewheel import ConfigError, SchemaRegistryError, Serdes
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.bulk.store_view import key_bytes, partition_of_key
from tidewheel.streams.bulk.stores import BulkStore


def _store(key_serde: Any, partitions: int = 4) -> BulkStore:
    return BulkStore(
        spec=StoreSpec(
            name="counts",
            kind=StoreKind.KEY_VALUE,
            key_serde=key_serde,
            value_serde=Serdes.bytes(),
        ),
        topic="app-counts-changelog",
        subtopology=0,
        partitions=partitions,
    )


@pytest.mark.parametrize(
    ("serde", "text", "key"),
    [
        (Serdes.string(), "7", "7"),
        (Serdes.bytes(), "alice", b"alice"),
        (Serdes.int64(), "7", 7),
        (Serdes.float64(), "7.5", 7.5),
        (Serdes.boolean(), "true", True),
        (Serdes.json(), '{"id":7}', {"id": 7}),
        (Serdes.json(), "alice", "alice"),
        (Serdes.json(), "7", 7),
        (Serdes.json(), '"7"', "7"),
        (Serdes.string(), '"7"', '"7"'),
        (Serdes.uuid(), str(uuid.UUID(int=7)), uuid.UUID(int=7)),
    ],
)
def test_a_key_has_the_type_of_its_serde(serde: Any, text: str, key: Any) -> None:
    store = _store(serde)
    assert key_bytes(store, text) == serde.serialize(store.topic, key)


def test_a_key_refused_by_its_serde_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'alice' is no key of store counts"):
        key_bytes(_store(Serdes.int64()), "alice")


def test_an_unavailable_registry_does_not_make_a_key_invalid() -> None:
    away = {"url": "http://127.0.0.1:1", "max.retries": 0, "timeout": 1}
    with pytest.raises(SchemaRegistryError, match="can't be reached"):
        key_bytes(_store(Serdes.avro('"string"', away)), "alice")


def test_a_key_is_searched_in_the_partition_that_kafka_gives_it() -> None:
    assert partition_of_key(_store(Serdes.string(), 1), b"alice") == 0
    found = {partition_of_key(_store(Serdes.string()), b"key-%d" % index) for index in range(50)}
    assert found == {0, 1, 2, 3}
