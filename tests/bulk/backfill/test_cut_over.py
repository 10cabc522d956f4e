"""Cut-over under load: every input has its output once, from the old or the new application."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.bulk.backfill.shops import Shop
from tests.integration.cluster import PATIENCE_S, SteadyFeed, until
from tidewheel import KafkaStreams, StreamsBuilder, Topology
from tidewheel.bulk import BackfillRefused, backfill, check_backfill
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.streams.cli.app import main


def tagged(source: str, sink: str, version: str) -> Topology:
    """Outputs each record once, behind a repartition and a count of its new key."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=str, value_serde=str)
    moved = stream.select_key(lambda key, _: f"{key}-moved").repartition(
        key_serde=str, value_serde=str, name="moved"
    )
    moved.map_values(lambda value: f"{version} {value}").to(sink, key_serde=str, value_serde=str)
    moved.group_by_key(key_serde=str, value_serde=str).count(store="counts")
    return builder.build()


@pytest.fixture
def feed(shop: Shop) -> Iterator[SteadyFeed]:
    steady = SteadyFeed(
        shop.cluster,
        shop.source,
        lambda number: (f"k{number % 50}".encode(), b"%d" % number),
        rate=500,
    )
    steady.start()
    yield steady
    steady.stop()


def test_each_output_is_written_once_by_one_of_both(
    shop: Shop, spark: SparkSession, feed: SteadyFeed
) -> None:
    cluster, old, new = shop.cluster, f"{shop.app}-v1", f"{shop.app}-v2"
    first = KafkaStreams(tagged(shop.source, shop.sink, "old"), shop.named(old))
    first.start()
    until(lambda: len(cluster.read(shop.sink)) > 1_000, "outputs of the old application")
    second = tagged(shop.source, shop.sink, "new")
    plan = check_backfill(second, shop.named(new), outputs="discard", until_of=old)
    assert plan.obstacle is not None
    assert (plan.differences, plan.records > 0) == ((), True)
    with pytest.raises(BackfillRefused, match="not at rest"):
        backfill(second, shop.named(new), outputs="discard", until_of=old, spark=spark)
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    assert main(["group", "rest", "--application-id", old, *servers]) == 0
    plan = check_backfill(second, shop.named(new), outputs="discard", until_of=old)
    assert plan.obstacle is None
    report = backfill(second, shop.named(new), outputs="discard", until_of=old, spark=spark)
    assert report.input_offsets == {
        at: offset for at, offset in cluster.committed(old).items() if at.topic == shop.source
    }
    follower = KafkaStreams(second, shop.named(new))
    follower.start()
    assert follower.wait_until_running(PATIENCE_S)
    feed.stop()
    cluster.wait_until_consumed(new, shop.source)
    cluster.wait_until_consumed(new, *shop.between(new))
    for app in (first, follower):
        assert app.close(timeout=int(PATIENCE_S * 1000))
    outputs = [(record.value or b"").split() for record in cluster.read(shop.sink)]
    sent = Counter(value for _, value in feed.records)
    assert Counter(value for _, value in outputs) == sent
    assert {version for version, _ in outputs} == {b"old", b"new"}
    counts = cluster.folded(f"{new}-counts-changelog")
    assert sum(int.from_bytes(value, "big") for value, _ in counts.values()) == len(feed.records)
