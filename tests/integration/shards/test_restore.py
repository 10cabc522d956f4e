"""A shard's restore from sorted runs and from snapshots writes its own rows only."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.programs.jobs import JOBS, STORE
from tests.integration.programs.probes import runs_from
from tests.integration.test_restore_in_bulk import forget_state, send, take_snapshot
from tidewheel import KafkaStreams
from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.streams.worker.application import wiring
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.kafka.internal_topics import offsets_group
from tidewheel.tasks.key_ranges.key_ranges import shard_of

_RUNS_FROM: Final = 5_000
_KEYS: Final = 12_000
OF: Final = 4
#: Largest part of the partition's rows that one of four shards may write.
_PART_MAX: Final = 0.3


@pytest.fixture(autouse=True)
def _runs_pay_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "RunSettings", runs_from(_RUNS_FROM))


def test_K8_a_shard_writes_less_than_a_third_of_its_partitions_rows(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    source, sink, app_id = f"in-{unique}", f"out-{unique}", config["application_id"]
    cluster.create({source: 1, sink: 1})
    changelog = TopicPartition(f"{app_id}-{STORE}-changelog", 0)
    config |= {"partition_shards": OF, "group_instance_id": "one"}
    send(cluster, source, range(_KEYS))

    def run(tasks: list[TaskId], **settings: Any) -> KafkaStreams:
        return start_app(
            JOBS["count_by_key"](source, sink),
            config | settings,
            options=RunOptions(tasks=tuple(tasks), slot=0),
        )

    shards = [TaskId(0, 0, shard) for shard in Shard.all_of(OF)]
    everyone = run(shards)
    groups = [offsets_group(app_id, task.shard) for task in shards]
    until(
        lambda: all(
            cluster.committed(group).get(TopicPartition(source, 0)) == _KEYS for group in groups
        ),
        "all shards have read all",
    )
    assert everyone.close(timeout=30_000)
    written = cluster.ends(changelog.topic)

    own = shards[2]
    keys = [b"key-%07d" % number for number in range(_KEYS)]
    expected = {key for key in keys if shard_of(key, OF) == own.shard}
    location = Path(config["state_dir"]).with_name("snapshots")
    for begin in ("changelog", "snapshot"):
        settings = {}
        if begin == "snapshot":
            take_snapshot(cluster, config, JOBS["count_by_key"](source, sink), location)
            settings["snapshot_location"] = str(location)
        forget_state(config)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            app = run([own], **settings)
        assert f"restoring from {begin}" in caplog.text
        store = app.store(STORE)
        assert {key.encode() for key, _ in store.all()} == expected
        assert sum(1 for _ in store.range(None, None)) == len(expected)
        foreign = [key.decode() for key in keys[:1_000] if key not in expected]
        assert all(store.get(key) is None for key in foreign)
        assert app.close(timeout=30_000)
        assert app.error is None
        rows = rows_on_disk(Path(config["state_dir"]) / app_id / "0" / "0_0-2of4")
        assert rows == expected
        record_property(begin, f"{len(rows):,} of {_KEYS:,} rows")
        assert len(rows) <= _PART_MAX * _KEYS
    assert cluster.ends(changelog.topic) == written


def rows_on_disk(path: Path) -> set[bytes]:
    options = RocksDBOptions()
    database = TaskDatabase.open(path, [STORE], options, SharedResources.create(options))
    try:
        return {key for key, _ in database.iterate(STORE, None, None)}
    finally:
        database.close()
