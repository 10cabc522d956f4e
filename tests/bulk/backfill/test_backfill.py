"""A backfill of the first part plus live workers over the rest equals one over all."""

from collections import Counter
from pathlib import Path

import pytest

from tests.bulk.backfill.shops import MakeTopology, Shop, lines, output_files, windows, words
from tidewheel.bulk import (
    BackfillRefused,
    BackfillReport,
    FrameSource,
    backfill,
    check_backfill,
)
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.streams.bulk.backfill import computation
from tidewheel.streams.bulk.driver import BulkProgress
from tidewheel.streams.cli.app import main
from tidewheel.streams.errors import ConfigError, StreamsError


@pytest.mark.parametrize("make", [words, windows], ids=["words", "windows"])
def test_live_workers_go_on_with_the_next_record(
    shop: Shop, spark: SparkSession, make: MakeTopology
) -> None:
    topology, records = make(shop.source, shop.sink), lines(3_000, 1, late_share=0.1)
    shop.send(records[:2_000])
    report = backfill(topology, shop.config, outputs="discard", spark=spark)
    assert report.records == 2_000
    assert not shop.cluster.read(shop.sink)
    shop.send(records[2_000:])
    shop.live(shop.app, topology)
    whole = f"{shop.app}-whole"
    backfill(topology, shop.named(whole), outputs="discard", spark=spark)
    found, wanted = shop.stores(shop.app, topology), shop.stores(whole, topology)
    assert found == wanted
    assert all(wanted.values())


@pytest.mark.parametrize("make", [words, windows], ids=["words", "windows"])
def test_a_backfill_equals_a_live_worker(
    shop: Shop, spark: SparkSession, make: MakeTopology
) -> None:
    topology = make(shop.source, shop.sink)
    shop.send(lines(2_000, 2, late_share=0.1))
    live = f"{shop.app}-live"
    shop.live(live, topology)
    outputs = shop.cluster.values_by_key(shop.sink)
    backfill(topology, shop.config, outputs="topics", spark=spark)
    both = shop.cluster.values_by_key(shop.sink)
    assert {key: Counter(values) for key, values in both.items()} == {
        key: Counter(values * 2) for key, values in outputs.items()
    }
    assert shop.stores(shop.app, topology) == shop.stores(live, topology)
    found, wanted = shop.progress(shop.app), shop.progress(live)
    for at, progress in found.items():
        if at.topic == shop.source:
            assert progress.committed_offset == wanted[at].committed_offset
            assert progress.stream_time_ms == wanted[at].stream_time_ms
            assert progress.operator_times_ms == wanted[at].operator_times_ms


def test_an_application_that_has_run_is_refused(shop: Shop, spark: SparkSession) -> None:
    topology = words(shop.source, shop.sink)
    shop.send(lines(100, 3, late_share=0))
    shop.live(shop.app, topology)
    with pytest.raises(BackfillRefused, match="tidewheel reset"):
        backfill(topology, shop.config, outputs="discard", spark=spark)
    with pytest.raises(BackfillRefused, match="has committed offsets"):
        check_backfill(topology, shop.config, outputs="discard")


def test_the_fate_of_outputs_must_be_said(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="outputs"):
        check_backfill(words(shop.source, shop.sink), shop.config)


def test_records_that_kafka_has_deleted_come_from_a_dump(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    cluster, topology = shop.cluster, windows(shop.source, shop.sink)
    shop.send(lines(2_000, 4, late_share=0.1))
    whole = f"{shop.app}-whole"
    backfill(topology, shop.named(whole), outputs="discard", spark=spark)
    dump = [
        (each.key, each.value, each.timestamp, each.partition, each.offset)
        for each in cluster.read(shop.source)
    ]
    columns = "key binary, value binary, timestamp bigint, partition int, offset bigint"
    spark.createDataFrame(dump, columns).write.parquet(str(tmp_path / "dump"))
    ends = cluster.log_ends(shop.source)
    cluster.admin.delete_records({at: end // 2 for at, end in ends.items()})
    backfill(
        topology,
        shop.config,
        outputs="discard",
        history={shop.source: FrameSource(source=str(tmp_path / "dump"), file_format="parquet")},
        spark=spark,
    )
    assert shop.stores(shop.app, topology) == shop.stores(whole, topology)
    assert cluster.committed(shop.app) == cluster.committed(whole)


def test_files_of_a_finished_run_do_not_count_after_a_reset(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = words(shop.source, shop.sink)
    shop.send(lines(100, 5, late_share=0))
    with monkeypatch.context() as patch:
        patch.setattr(computation, "delete_all", lambda _: None)  # as if killed before it
        backfill(topology, shop.config, outputs="discard", spark=spark)
    servers = ("--bootstrap-servers", shop.cluster.bootstrap_servers)
    assert main(["reset", shop.app, *servers, "--execute"]) == 0
    shop.send(lines(100, 6, late_share=0))
    assert backfill(topology, shop.config, outputs="discard", spark=spark).records == 200


def test_a_second_run_at_the_same_time_takes_over(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    topology, folder = words(shop.source, shop.sink), tmp_path / "outputs"
    shop.send(lines(500, 18, late_share=0))
    second: list[BackfillReport] = []

    def take_over(_: BulkProgress) -> None:
        if not second:
            second.append(backfill(topology, shop.config, outputs=str(folder), spark=spark))

    with pytest.raises(StreamsError, match="another run of this backfill has finished"):
        backfill(topology, shop.config, outputs=str(folder), spark=spark, on_progress=take_over)
    assert [(report.records, report.again) for report in second] == [(500, False)]
    assert len(output_files(spark, folder, shop.sink)) == 2_000
