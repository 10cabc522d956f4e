"""Object stores without renames, with late listings and torn objects cost time but no key."""

import logging
from dataclasses import fields
from pathlib import Path

import pytest

from tests.bulk.changelogs import Changelogs, assert_restored, many_records, name_of
from tests.bulk.conftest import MakeConfig
from tests.bulk.objects import ObjectsDriver, bucket_url, objects, settle
from tests.integration.cluster import Cluster
from tidewheel import StreamsConfig
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.streams.bulk.driver import bulk_driver
from tidewheel.streams.bulk.restore import restore_stores
from tidewheel.streams.bulk.snapshots import make_snapshots

_KINDS = ("timestamped", "session")
_STORE = name_of(_KINDS[0])


class _Jobs:
    def __init__(self, changelogs: Changelogs, config: StreamsConfig, spark: SparkSession) -> None:
        self._changelogs = changelogs
        self._config = config
        self._spark = spark

    def snapshot(self) -> None:
        with bulk_driver(self._config, self._spark, what="test") as driver:
            make_snapshots(
                _with_objects(driver),
                self._changelogs.stores,
                str(self._config.snapshot_location),
                records_per_task=100,
            )

    def restore(self, disk: str) -> None:
        config = self._config.replace(state_dir=Path(self._config.state_dir) / disk)
        with bulk_driver(config, self._spark, what="test") as driver:
            restore_stores(_with_objects(driver), self._changelogs.stores)
        assert_restored(self._changelogs, config)

    @property
    def generation(self) -> int | None:
        place = SnapshotLocation(str(self._config.snapshot_location))
        newest = place.newest(self._config.application_id, _STORE)
        return None if newest is None else newest.generation


def _with_objects(driver: object) -> ObjectsDriver:
    return ObjectsDriver(
        **{field.name: getattr(driver, field.name) for field in fields(ObjectsDriver)}
    )


def _tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_a_snapshot_and_a_restore_at_an_object_store(
    cluster: Cluster,
    spark: SparkSession,
    make_config: MakeConfig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = make_config(snapshot_location=f"{bucket_url(tmp_path)}/snapshots")
    changelogs = Changelogs(cluster, config.application_id, _KINDS)
    jobs = _Jobs(changelogs, config, spark)
    changelogs.write([many_records(_KINDS, 200)])
    jobs.snapshot()
    assert jobs.generation is None, "nobody is told of it yet"
    jobs.restore("by its own objects")

    settle(tmp_path)
    assert jobs.generation == 0
    changelogs.write([many_records(_KINDS, 40, seed=8)])
    jobs.restore("on what was there")
    assert jobs.generation == 0, "this is not told of yet"
    settle(tmp_path)
    assert jobs.generation == 1

    newest = [file for name, file in objects(tmp_path).items() if "manifests/0000000001-" in name]
    runs = [file for name, file in objects(tmp_path).items() if name.endswith(".sst")]
    assert len(newest) == len(_KINDS)
    for file in [*newest, *runs]:
        _tear(file)
    with caplog.at_level(logging.WARNING):
        jobs.restore("beside what is torn")
    assert "the manifest is torn" in caplog.text
    # Once or twice per store: a partition with merged records is detected first.
    told = [text for text in caplog.messages if "the changelog is read in full instead" in text]
    assert all(any(f"/{kind}/runs/" in text for text in told) for kind in _KINDS)
    assert len(told) <= 2 * len(_KINDS)

    # More records than the snapshot has, which makes executors merge torn files.
    settle(tmp_path)
    for name, file in objects(tmp_path).items():
        if name.endswith(".sst"):
            _tear(file)
    caplog.clear()
    changelogs.write([many_records(_KINDS, 900, seed=9)])
    with caplog.at_level(logging.WARNING):
        jobs.snapshot()
    assert caplog.text.count("the changelog is read in full instead") >= len(_KINDS)
    settle(tmp_path)
    jobs.restore("on rebuilt objects")

    # Deleted, but still listed.
    for file in objects(tmp_path).values():
        file.unlink()
    jobs.restore("in an empty bucket")
