"""Replay, Spark restore, and snapshot with a tail leave the same rows, for every kind of store, on a real broker."""

from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from state_stores.bulk_restore.spark_job import SparkSession
from streams.bulk.driver import bulk_driver
from streams.bulk.restoring import restore_stores
from streams.bulk.snapshots import make_snapshots
from tests.bulk.changelogs import PARTITIONS, Changelogs, Piece, assert_restored, pieces
from tests.bulk.conftest import MakeConfig
from tests.integration.cluster import Cluster
from tests.state_stores.bulk_restore.logs import SPECS

_KINDS = tuple(SPECS)


_numbers = iter(range(1_000))


_pieces = st.lists(pieces(_KINDS), min_size=1, max_size=2)


@given(first=_pieces, then=_pieces)
@settings(
    max_examples=2,
    # Each takes seconds: a failing one is told as it is.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow),
)
def test_R2_spark_restores_what_replay_does(
    cluster: Cluster,
    spark: SparkSession,
    make_config: MakeConfig,
    first: list[Piece],
    then: list[Piece],
) -> None:
    """In full, and by a snapshot of the middle with what came after it on top; with aborted and empty stretches."""
    number = next(_numbers)
    base = make_config()
    config = base.replace(application_id=f"{base.application_id}-{number}")
    changelogs = Changelogs(cluster, config.application_id)
    changelogs.write(first)
    with bulk_driver(config, spark, what="test") as driver:
        url = str(config.snapshot_location)
        begun = make_snapshots(driver, changelogs.stores, url, records_per_task=7)
        changelogs.write(then)
        report = restore_stores(driver, changelogs.stores)
    assert len(report.stores) == PARTITIONS * len(_KINDS)
    assert all(made.generation == 0 for made in begun.stores.values())
    assert_restored(changelogs, config)
    in_full = config.replace(snapshot_location=None, state_dir=Path(config.state_dir) / "full")
    with bulk_driver(in_full, spark, what="test") as driver:
        restore_stores(driver, changelogs.stores)
    assert_restored(changelogs, in_full)
