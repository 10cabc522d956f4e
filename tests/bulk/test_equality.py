"""Replay, runs, Spark restore, and snapshot with a tail leave the same rows."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from tests.bulk.changelogs import (
    PARTITIONS,
    Changelogs,
    Piece,
    assert_restored,
    histories,
    is_empty,
    is_varied,
    many_records,
)
from tests.bulk.conftest import MakeConfig
from tests.bulk.programs.growing import growing_driver
from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.programs.probes import runs_from
from tests.state_stores.bulk_restore.logs import SPECS
from tidewheel import KafkaStreams, Processor, StreamsConfig, Topology
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.streams.bulk.driver import bulk_driver
from tidewheel.streams.bulk.restore import restore_stores
from tidewheel.streams.bulk.snapshots import make_snapshots
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.worker.application import wiring
from tidewheel.streams.worker.application.run_options import RunOptions

_KINDS = tuple(SPECS)
_EACH = [(kind, partition) for kind in _KINDS for partition in range(PARTITIONS)]
_FULL = [which for which in _EACH if not is_empty(*which)]

RunWorker = Callable[[Changelogs, StreamsConfig], str]

_numbers = iter(range(1_000))


@pytest.fixture
def run_worker(cluster: Cluster, unique: str, caplog: pytest.LogCaptureFixture) -> RunWorker:
    source = f"in-{unique}"
    cluster.create({source: PARTITIONS})

    def run(changelogs: Changelogs, config: StreamsConfig) -> str:
        topology = Topology().add_source("read", source, key_serde=bytes, value_serde=bytes)
        topology.add_processor("hold", Processor, ["read"])
        for store in changelogs.stores.values():
            topology.add_state_store(StoreBuilder(spec=store.spec), ["hold"])
        # No offsets are committed for changelogs that the test wrote.
        accepting = config.replace(accept_offsets=True)
        app = KafkaStreams(topology, accepting, options=RunOptions(fixed=True))
        caplog.clear()
        with caplog.at_level(logging.INFO):
            app.start()
            try:
                assert app.wait_until_running(PATIENCE_S), repr(app.error)
            finally:
                assert app.close(timeout=int(PATIENCE_S * 1000))
        assert_restored(changelogs, config)
        return caplog.text

    return run


@given(history=histories(_KINDS))
@settings(
    max_examples=1,
    # Shrinking is off, because an example takes a minute.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow),
)
@pytest.mark.fault("45")
def test_R2_spark_restores_the_same_state_as_replay(
    cluster: Cluster,
    spark: SparkSession,
    make_config: MakeConfig,
    run_worker: RunWorker,
    monkeypatch: pytest.MonkeyPatch,
    history: tuple[list[Piece], list[Piece]],
) -> None:
    assume(is_varied(history))
    number = next(_numbers)
    base = make_config()
    config = base.replace(
        application_id=f"{base.application_id}-{number}",
        snapshot_location=f"{base.snapshot_location}-{number}",
    )

    def elsewhere(name: str, *, snapshots: bool) -> StreamsConfig:
        place = config.snapshot_location if snapshots else None
        return config.replace(
            snapshot_location=place, state_dir=Path(config.state_dir) / f"{number}-{name}"
        )

    before, after = history
    changelogs = Changelogs(cluster, config.application_id)
    changelogs.write(before)
    changelogs.age()
    with bulk_driver(config, spark, what="test") as driver:
        url = str(config.snapshot_location)
        begun = make_snapshots(driver, changelogs.stores, url, records_per_task=10)
        assert all(made.generation == 0 for made in begun.stores.values())
        changelogs.write(after)
        told = run_worker(changelogs, elsewhere("tail", snapshots=True))
        assert told.count("restoring from snapshot") == len(_FULL)
        report = restore_stores(driver, changelogs.stores)
        assert len(report.stores) == len(_EACH)
        assert_restored(changelogs, config)
    in_full = elsewhere("full", snapshots=False)
    with bulk_driver(in_full, spark, what="test") as driver:
        restore_stores(driver, changelogs.stores)
    assert_restored(changelogs, in_full)
    told = run_worker(changelogs, elsewhere("replay", snapshots=False))
    assert told.count(" restore end, ") == len(_FULL)
    assert "restoring from changelog" not in told, "no runs were made"
    with monkeypatch.context() as patched:
        patched.setattr(wiring, "RunSettings", runs_from(0))
        told = run_worker(changelogs, elsewhere("runs", snapshots=False))
    assert told.count("restoring from changelog") == len(_FULL)


@pytest.mark.fault("45")
def test_R2_a_log_that_grows_while_spark_reads_it_is_restored_to_its_former_end(
    cluster: Cluster,
    spark: SparkSession,
    make_config: MakeConfig,
    run_worker: RunWorker,
    tmp_path: Path,
) -> None:
    """Each executor has read a part of its changelog when the log grows; a worker reads the rest."""
    config = make_config()
    kinds = ("timestamped", "session")
    changelogs = Changelogs(cluster, config.application_id, kinds)
    changelogs.write([many_records(kinds, 3_000)])
    ends = changelogs.ends()
    with bulk_driver(config, spark, what="test") as driver, ThreadPoolExecutor(1) as apart:
        growing = growing_driver(driver, tmp_path)
        report = apart.submit(restore_stores, growing, changelogs.stores)
        until(lambda: growing.is_reading or report.done(), "an executor reads", PATIENCE_S)
        assert not report.done(), report.exception()
        changelogs.write([many_records(kinds, 1_000, seed=8)])
        grown = changelogs.ends()
        growing.go_on()
        restored = report.result()
    assert all(grown[partition] > end for partition, end in ends.items())
    topics = {store.name: store for store in changelogs.stores.values()}
    assert {
        topics[each.store].changelog(each.task_id.partition): each.offset
        for each in restored.stores
    } == ends
    assert_restored(changelogs, config, ends)
    run_worker(changelogs, config)
