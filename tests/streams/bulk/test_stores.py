"""Stores of bulk work, and errors for others."""

from dataclasses import replace

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tests.tasks.task.custom_stores import Totals
from tidewheel import (
    Materialized,
    Processor,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.streams.bulk.stores import bulk_stores, changelog_facts
from tidewheel.streams.errors import ConfigError, MissingSourceTopicError
from tidewheel.tasks.kafka.ports import NewTopic

_CONFIG = StreamsConfig(application_id="shop", bootstrap_servers="nobody:1")


def _topology() -> Topology:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key_serde=Serdes.string(), value_serde=Serdes.string())
    visits.group_by_key().count(store="counts")
    visits.group_by_key().count(store=Materialized("passing", logging=False))
    builder.add_state_store(Stores.custom("filter", Totals))
    visits.process(Processor, stores=["filter"])
    builder.table(
        "products", key_serde=Serdes.string(), value_serde=Serdes.string(), store="products"
    )
    return builder.build(_CONFIG)


@pytest.fixture
def admin() -> FakeAdmin:
    admin = FakeAdmin(FakeBroker())
    admin.create_topics(
        [NewTopic(name=name, partitions=3, config={}) for name in ("visits", "products")]
    )
    return admin


def test_all_stores_with_a_changelog(admin: FakeAdmin) -> None:
    (store,) = bulk_stores(_topology(), _CONFIG, admin)
    assert (store.name, store.topic, store.partitions) == ("counts", "shop-counts-changelog", 3)
    assert store.tasks(2) == (TaskId(store.subtopology, 2),)
    shards = replace(store, shards=2).tasks(2)
    assert shards == tuple(TaskId(store.subtopology, 2, shard) for shard in Shard.all_of(2))
    assert replace(store, shards=2).task_of_key(2, b"alice") == shards[0]
    assert replace(store, shards=2).task_of_key(2, b"bob") == shards[1]
    assert store.changelog(1) == TopicPartition("shop-counts-changelog", 1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("products", "restored from topic products"),
        ("passing", "logging=False"),
        ("filter", "'filter' is a custom one"),
        ("count", "did you mean counts"),
        ("nothing-like-it", "there is counts"),
    ],
)
def test_a_store_without_bulk_support_is_refused(admin: FakeAdmin, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        bulk_stores(_topology(), _CONFIG, admin, ["counts", name])


def test_facts_of_changelogs(admin: FakeAdmin) -> None:
    stores = bulk_stores(_topology(), _CONFIG, admin)
    with pytest.raises(MissingSourceTopicError, match="shop-counts-changelog not found"):
        changelog_facts(stores, admin, 5)
    config = {"cleanup.policy": "compact", "delete.retention.ms": "7000"}
    admin.create_topics([NewTopic(name=stores[0].topic, partitions=3, config=config)])
    facts = changelog_facts(stores, admin, 5)
    assert sorted(each.partition for each in facts.values()) == [0, 1, 2]
    assert {(each.log_start, each.log_end, each.now_ms) for each in facts.values()} == {(0, 0, 5)}
    assert {each.tombstone_retention_ms for each in facts.values()} == {7_000}
