"""Snapshots, restores, frames and comparisons of an application that ran on a real broker."""

import json
import logging
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bulk.conftest import MakeConfig
from tests.bulk.counting import COUNTS, PER_SECOND, counting, program
from tests.integration.cluster import PATIENCE_S, Cluster
from tests.integration.outcome import wait_for_counts
from tidewheel import KafkaStreams, Serdes, StreamsConfig, Topology, ValueAndTimestamp
from tidewheel.bulk import restore, snapshot, state_dataframe, verify
from tidewheel.rebalance.model import Shard, TaskId
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.state_stores.layout.envelope import wrap_value
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.streams.cli.app import main
from tidewheel.streams.errors import ConfigError, StoreLockedError
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.restore.store_restore import RestoreEvent

_CANARY = "canary-of-bulk-work"
_RECORDS = [(b"key-%03d" % (index * 7 % 300), b"x") for index in range(3_000)]


@dataclass(frozen=True)
class _World:
    cluster: Cluster
    config: StreamsConfig
    source: str
    topology: Topology
    counts: dict[str, ValueAndTimestamp[int]]

    def run(
        self, config: StreamsConfig
    ) -> tuple[dict[str, ValueAndTimestamp[int]], list[RestoreEvent]]:
        return _run(self.cluster, self.topology, config, self.source)


def _run(
    cluster: Cluster, topology: Topology, config: StreamsConfig, source: str
) -> tuple[dict[str, ValueAndTimestamp[int]], list[RestoreEvent]]:
    events: list[RestoreEvent] = []
    app = KafkaStreams(topology, config, options=RunOptions(fixed=True))
    app.set_restore_listener(events.append)
    app.start()
    try:
        assert app.wait_until_running(PATIENCE_S), repr(app.error)
        cluster.wait_until_consumed(config.application_id, source)
        return wait_for_counts(app, COUNTS, len(_RECORDS)), events
    finally:
        assert app.close(timeout=int(PATIENCE_S * 1000))


@pytest.fixture
def world(cluster: Cluster, make_config: MakeConfig, unique: str) -> _World:
    return _world(cluster, make_config, unique)


def _world(cluster: Cluster, make_config: MakeConfig, unique: str, **options: object) -> _World:
    source = f"in-{unique}"
    cluster.create({source: 2})
    # Old windows would expire during the test.
    cluster.send(source, _RECORDS, first_timestamp=time.time_ns() // 1_000_000)
    secret = {"sasl.password": _CANARY}
    config = make_config(
        commit_interval_ms=50, consumer=secret, producer=secret, admin=secret, **options
    )
    topology = counting(source)
    counts, _ = _run(cluster, topology, config, source)
    assert {key: counted.value for key, counted in counts.items()} == Counter(
        key.decode() for key, _ in _RECORDS
    )
    return _World(cluster, config, source, topology, counts)


def test_R2_a_worker_continues_from_state_that_spark_restored(
    world: _World, spark: SparkSession
) -> None:
    fresh = world.config.replace(state_dir=Path(world.config.state_dir) / "fresh")
    report = restore(world.topology, fresh, spark=spark)
    assert sorted((str(each.task_id), each.store) for each in report.stores) == [
        (task, store) for task in ("0_0", "0_1") for store in (COUNTS, PER_SECOND)
    ]
    assert sum(each.rows for each in report.stores if each.store == COUNTS) == len(world.counts)
    counts, events = world.run(fresh)
    assert counts == world.counts
    assert not sum(event.restored for event in events)
    again = restore(world.topology, fresh, spark=spark)
    assert again.rows == 0


def test_K8_shards_continue_from_state_that_spark_restored(
    cluster: Cluster, make_config: MakeConfig, unique: str, spark: SparkSession
) -> None:
    """Each shard has its own rows only; a second restore finds them complete."""
    world = _world(cluster, make_config, unique, partition_shards=4)
    fresh = world.config.replace(state_dir=Path(world.config.state_dir) / "fresh")
    report = restore(world.topology, fresh, spark=spark)
    shards = Shard.all_of(4)
    tasks = [TaskId(0, partition, shard) for partition in (0, 1) for shard in shards]
    assert sorted((each.task_id, each.store) for each in report.stores) == [
        (task, store) for task in tasks for store in (COUNTS, PER_SECOND)
    ]
    for task in tasks:
        rows = {each.store: each.rows for each in report.stores if each.task_id == task}
        directory = Path(fresh.state_dir) / fresh.application_id / "0" / f"{task}".replace("/", "-")
        assert rows == _rows_of_shard(fresh, directory, task.shard)
    assert sum(each.rows for each in report.stores if each.store == COUNTS) == len(world.counts)
    counts, events = world.run(fresh)
    assert counts == world.counts
    assert not sum(event.restored for event in events)
    again = restore(world.topology, fresh, spark=spark)
    assert again.rows == 0


def _rows_of_shard(config: StreamsConfig, directory: Path, shard: Shard) -> dict[str, int]:
    """Return the number of rows of each store in a database, which are all the shard's."""
    resources = SharedResources.create(config.rocksdb)
    database = TaskDatabase.open(directory, [COUNTS, PER_SECOND], config.rocksdb, resources)
    try:
        keys = {
            COUNTS: [key for key, _ in database.iterate(COUNTS, None, None)],
            # A row's key in a window store: segment (8 bytes), key, start and number (12 bytes).
            PER_SECOND: [key[8:-12] for key, _ in database.iterate(PER_SECOND, None, None)],
        }
    finally:
        database.close()
    assert {shard_of(key, shard.of) for of_store in keys.values() for key in of_store} <= {shard}
    return {store: len(of_store) for store, of_store in keys.items()}


def test_a_slot_in_use_is_neither_restored_nor_compared(world: _World, spark: SparkSession) -> None:
    app = KafkaStreams(world.topology, world.config, options=RunOptions(fixed=True))
    app.start()
    try:
        assert app.wait_until_running(PATIENCE_S)
        with pytest.raises(StoreLockedError, match="slot 0"):
            restore(world.topology, world.config, spark=spark)
        report = verify(world.topology, world.config, spark=spark)
    finally:
        assert app.close(timeout=int(PATIENCE_S * 1000))
    assert any("slot 0 is not compared" in note for note in report.notes)


def test_a_store_is_a_frame(world: _World, spark: SparkSession) -> None:
    without = state_dataframe(world.topology, world.config, COUNTS, spark=spark)
    assert dict(without.dtypes) == {
        "key": "string",
        "value": "bigint",
        "timestamp": "bigint",
    }
    expected = {(key, each.value, each.timestamp) for key, each in world.counts.items()}
    assert {tuple(row) for row in without.collect()} == expected
    snapshot(world.topology, world.config, spark=spark)
    assert {
        tuple(row)
        for row in state_dataframe(world.topology, world.config, COUNTS, spark=spark).collect()
    } == expected
    windows = state_dataframe(world.topology, world.config, PER_SECOND, spark=spark)
    assert windows.columns == ["key", "window_start", "window_end", "value", "timestamp"]
    totals = windows.groupBy("key").sum("value").collect()
    assert {row[0]: row[1] for row in totals} == {
        key: each.value for key, each in world.counts.items()
    }


def test_differences_are_listed(world: _World, spark: SparkSession) -> None:
    snapshot(world.topology, world.config, spark=spark)
    report = verify(world.topology, world.config, spark=spark)
    assert report.equal
    assert len(report.copies) == 8, "two stores, two partitions, a snapshot and a database of each"
    _change_a_row(world.config, "0_0", b"key-000")
    _change_a_row(world.config, "0_1", b"key-000")
    report = verify(world.topology, world.config, stores=[COUNTS], spark=spark)
    assert not report.equal
    wrong = [copy for copy in report.copies if copy.different]
    assert [Path(copy.copy).name for copy in wrong] == ["0_0", "0_1"]
    assert sorted(difference for copy in wrong for difference in copy.differences) == [
        "'key-000': other value",
        "'key-000': too much",
    ]


def _change_a_row(config: StreamsConfig, task: str, key: bytes) -> None:
    path = Path(config.state_dir) / config.application_id / "0" / task
    resources = SharedResources.create(config.rocksdb)
    database = TaskDatabase.open(path, [COUNTS], config.rocksdb, resources)
    value = Serdes.int64().serialize("", 1_000_000)
    assert value is not None
    database.write({COUNTS: [(key, wrap_value(value, 1))]}, {})
    database.close()


def test_a_broken_run_is_rejected_and_built_again(
    world: _World, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot(world.topology, world.config, stores=[COUNTS], spark=spark)
    location = Path(str(world.config.snapshot_location))
    (run, *_) = sorted(location.glob(f"{world.config.application_id}/{COUNTS}/runs/0/*.sst"))
    data = bytearray(run.read_bytes())
    data[len(data) // 2] ^= 0xFF
    run.write_bytes(data)
    fresh = world.config.replace(state_dir=Path(world.config.state_dir) / "fresh")
    report = verify(world.topology, world.config, stores=[COUNTS], spark=spark)
    assert not report.equal, "nobody can use it"
    (broken,) = report.broken
    assert "its checksum is wrong" in broken
    with caplog.at_level(logging.WARNING):
        restore(world.topology, fresh, spark=spark)
    assert "the changelog is read in full instead" in caplog.text
    assert not verify(world.topology, world.config, stores=[COUNTS], spark=spark).broken
    counts, _ = world.run(fresh)
    assert counts == world.counts


def test_no_secret_reaches_spark(
    world: _World, spark: SparkSession, spark_files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        snapshot(world.topology, world.config, spark=spark)
        frame = state_dataframe(world.topology, world.config, COUNTS, spark=spark)
        assert frame.count() == len(world.counts)
    places = [spark_files, Path(str(world.config.snapshot_location))]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert any(path.stat().st_size for path in files if path.is_relative_to(spark_files / "events"))
    assert [path for path in files if _CANARY.encode() in path.read_bytes()] == []
    assert _CANARY not in str(spark.sparkContext.getConf().getAll())
    assert _CANARY not in (frame.rdd.toDebugString() or b"").decode()
    assert _CANARY not in caplog.text


def test_the_commands(
    world: _World,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "counting_program.py"
    path.write_text(program(world.source, world.config))
    target = f"{path}:topology"

    def lines(*arguments: str, code: int = 0) -> list[dict[str, object]]:
        assert main([*arguments, "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    made = [line for line in lines("snapshot", target) if "store" in line]
    assert {line["store"]: line["generation"] for line in made} == {COUNTS: 0, PER_SECOND: 0}
    listed = lines("state", "list", target)
    assert {line["store"]: line["snapshot_generation"] for line in listed} == {
        COUNTS: 0,
        PER_SECOND: 0,
    }
    (row,) = [line for line in lines("state", "get", target, COUNTS, "key-007") if "key" in line]
    assert row["value"] == world.counts["key-007"].value
    scanned = [
        line for line in lines("state", "scan", target, COUNTS, "--limit", "7") if "key" in line
    ]
    assert len(scanned) == 7
    assert not any(line.get("different") for line in lines("state", "verify", target))
    restored = [
        line
        for line in lines("restore", target, "--state-dir", str(tmp_path / "elsewhere"))
        if "task" in line
    ]
    assert {line["task"] for line in restored} == {"0_0", "0_1"}
    assert lines("state", "get", target, COUNTS, "nobody", code=1) is not None


def test_a_snapshot_without_a_location_is_refused(world: _World) -> None:
    with pytest.raises(ConfigError, match="snapshot_location is not set"):
        snapshot(world.topology, world.config.replace(snapshot_location=None))
