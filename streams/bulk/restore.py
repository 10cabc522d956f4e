"""Restore of task directories: takes a current snapshot and ingests its runs locally."""

import contextlib
import logging
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import (
    ChangelogFacts,
    Manifest,
    PartitionRuns,
    SnapshotRefused,
)
from tidewheel.state_stores.bulk_restore.merge import limit_runs
from tidewheel.state_stores.bulk_restore.plan import RestoreFrom, plan_restore
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.bulk.driver import (
    BulkDriver,
    OnProgress,
    bulk_driver,
    now_ms,
    reached,
    stores_by_name,
)
from tidewheel.streams.bulk.executors import fetched
from tidewheel.streams.bulk.snapshots import make_snapshots
from tidewheel.streams.bulk.stores import (
    BulkStore,
    changelog_facts,
    check_no_headers,
    slowest_positions,
)
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.restore.shard_rows import own_runs
from tidewheel.tasks.task.state_manager import StateManager, StateSettings

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

_log = logging.getLogger("tidewheel")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStore:
    """Restore result of a store of one task.

    Attributes:
        rows: Rows ingested; 0 if the existing data is valid.
        offset: Changelog offset at which the worker resumes.
    """

    task_id: TaskId
    store: str
    slot: int
    rows: int
    file_bytes: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    application_id: str
    stores: tuple[RestoredStore, ...]

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self.stores)


def restore(
    topology: Topology,
    config: StreamsConfig,
    *,
    stores: Sequence[str] | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    slots: int = 1,
    on_progress: OnProgress | None = None,
) -> RestoreReport:
    """Fill the task directories of this machine's workers before they start.

    Updates the snapshot (a temporary one without `snapshot_location`) and ingests its runs.
    Valid local data stays; workers later read only newer changelog records.

    Args:
        stores: Store names; None for all persistent stores with a changelog.
        spark: Spark session; None for a temporary one at `master` (`local[*]` by default).
        slots: Number of workers here; tasks, also those of shards, are spread over slots 0, 1, …

    Raises:
        ConfigError: PySpark or a store is missing, or remote executors lack a `snapshot_location`.
        StoreLockedError: A worker runs in one of the slots.
        StreamsError: The cluster, the location or Spark failed; run it again to resume.
    """
    with bulk_driver(
        config, spark, what="restore", master=master, on_progress=on_progress
    ) as driver:
        chosen = stores_by_name(topology, driver, stores)
        check_no_headers(chosen.values(), "a restore by Spark")
        return restore_stores(driver, chosen, slots=slots)


def restore_stores(
    driver: BulkDriver, stores: Mapping[str, BulkStore], *, slots: int = 1
) -> RestoreReport:
    config = driver.config
    persistent = {name: store for name, store in stores.items() if store.spec.persistent}
    with contextlib.ExitStack() as stack:
        # Lock slots first: reading changelogs is pointless if a worker has one.
        directories = [
            stack.enter_context(
                StateDirectory.acquire(config.state_dir, config.application_id, slot=slot)
            )
            for slot in range(slots)
        ]
        url = stack.enter_context(_location(driver, directories[0]))
        manifest = make_snapshots(driver, persistent, url)
        # Read after the snapshot was made: with earlier stream times, key ranges might need rows
        # that it left out as expired, and its runs would be refused.
        positions = slowest_positions(persistent.values(), driver.admin, config.application_id)
        facts = changelog_facts(list(persistent.values()), driver.admin, now_ms())
        ingesting = _Ingesting(driver, persistent, url, manifest, positions)
        tasks = sorted(
            {
                task_id
                for store in persistent.values()
                for number in range(store.partitions)
                for task_id in store.tasks(number)
            }
        )
        done = [
            restored
            for index, task_id in enumerate(tasks)
            for restored in ingesting.into(directories[index % slots], task_id, facts)
        ]
    return RestoreReport(application_id=config.application_id, stores=tuple(done))


@contextlib.contextmanager
def _location(driver: BulkDriver, directory: StateDirectory) -> Generator[str]:
    if driver.config.snapshot_location is not None:
        yield str(driver.config.snapshot_location)
        return
    if not driver.runs_here:
        raise ConfigError(
            "snapshot_location is not set, and Spark's executors run on other machines: give a place that they and this "
            "machine can reach, such as snapshot_location='s3://bucket/snapshots'"
        )
    with _scratch(directory) as folder:
        yield str(folder)


@contextlib.contextmanager
def _scratch(directory: StateDirectory) -> Generator[Path]:
    """Yield a folder on the slot's disk; the slot's next owner removes leftovers."""
    with tempfile.TemporaryDirectory(dir=directory.restore_directory()) as folder:
        yield Path(folder)


class _Ingesting:
    def __init__(
        self,
        driver: BulkDriver,
        stores: Mapping[str, BulkStore],
        url: str,
        manifest: Manifest,
        positions: Mapping[TaskId, int | None],
    ) -> None:
        self._driver = driver
        self._stores = stores
        self._url = url
        self._manifest = manifest
        self._positions = positions
        self._resources = SharedResources.create(driver.config.rocksdb)

    def into(
        self,
        directory: StateDirectory,
        task_id: TaskId,
        facts: Mapping[TopicPartition, ChangelogFacts],
    ) -> list[RestoredStore]:
        stores = [
            store for store in self._stores.values() if store.subtopology == task_id.subtopology
        ]
        path = directory.task_directory(str(task_id))
        options = self._driver.config.rocksdb
        manager = StateManager(
            task_id,
            tuple(store.spec for store in stores),
            StateSettings(
                application_id=self._driver.config.application_id,
                cache_enabled=False,
                read_cache_bytes_per_store=0,
            ),
            open_persistent=lambda families: TaskDatabase.open(
                path, families, options, self._resources
            ),
            open_in_memory=InMemoryDatabase,
            now=now_ms,
        )
        manager.slowest_position_ms = self._positions.get(task_id)
        manager.open()
        try:
            return [
                self._store(manager, store, directory, facts[store.changelog(task_id.partition)])
                for store in stores
                if task_id.partition < store.partitions
            ]
        finally:
            manager.close()

    def _store(
        self,
        manager: StateManager,
        store: BulkStore,
        directory: StateDirectory,
        facts: ChangelogFacts,
    ) -> RestoredStore:
        snapshot = self._manifest.stores[store.name]
        plan = plan_restore(
            manager.position(store.name),
            snapshot,
            store.spec,
            facts,
            slowest_ms=manager.slowest_ms(store.name),
        )
        runs, rows, file_bytes = plan.snapshot, 0, 0
        if runs is not None:
            manager.topic_ids[store.topic] = facts.topic_id
            with _scratch(directory) as folder:
                runs, files = self._ingest(manager, store, runs, folder)
            rows = sum(file.run.rows for file in files)
            file_bytes = sum(file.run.file_bytes for file in files)
        elif plan.kind is RestoreFrom.CHANGELOG:
            raise StreamsError(
                f"store {store.name} partition {facts.partition}: the snapshot that was made just now can't be used: "
                f"{plan.refused}; run it again"
            )
        return RestoredStore(
            task_id=manager.task_id,
            store=store.name,
            slot=directory.slot,
            rows=rows,
            file_bytes=file_bytes,
            offset=plan.from_offset if runs is None else runs.to_offset,
            reason=plan.reason,
        )

    def _ingest(
        self, manager: StateManager, store: BulkStore, runs: PartitionRuns, folder: Path
    ) -> tuple[PartitionRuns, Sequence[RunFile]]:
        place = SnapshotLocation(self._url)
        try:
            with reached(place):
                files = fetched(place, runs.runs, folder)
        except SnapshotRefused as error:
            _log.warning("%s; the changelog is read in full instead", error)
            manifest = make_snapshots(self._driver, {store.name: store}, self._url, full=True)
            self._manifest.stores[store.name] = manifest.stores[store.name]
            renewed = manifest.stores[store.name].partition(runs.partition)
            assert renewed is not None, "a snapshot of ours has all partitions"
            runs = renewed
            with reached(place):
                files = fetched(place, runs.runs, folder)
        built = own_runs(BuiltRuns(tuple(files), runs.time), store.spec, manager.task_id.shard)
        files = limit_runs(built.files, folder, complete_from_zero=True)
        manager.ingest(
            store.name,
            BuiltRuns(tuple(files), built.time),
            offset=runs.to_offset,
            caught_up_at_ms=runs.caught_up_at_ms,
            from_nothing=True,
        )
        return runs, files
