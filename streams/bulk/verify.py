"""Comparison of a store's changelog, its snapshot with the tail, and its local copies."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.bulk_restore.content import StoredRow, stored_rows
from tidewheel.state_stores.bulk_restore.ingest import ingest_runs
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import ChangelogFacts, SnapshotRefused
from tidewheel.state_stores.errors import StateStoreError, StoreLockedError
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import StartFrom, position_name
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.bulk.columns import RowDecoder
from tidewheel.streams.bulk.content import (
    Content,
    PartitionToRead,
    read_changelog,
    read_snapshot,
    reading_plan,
)
from tidewheel.streams.bulk.driver import (
    BulkDriver,
    OnProgress,
    bulk_driver,
    newest_snapshot,
    now_ms,
    stores_by_name,
)
from tidewheel.streams.bulk.executors import Counted, ExecutorWork, read_into_runs
from tidewheel.streams.bulk.stores import BulkStore, changelog_facts
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.topology.topology import Topology

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from collections.abc import Iterable
from dataclasses import field

#: Limit of differences listed per comparison.
_LISTED: Final = 10


_PREFIX: Final = "tidewheel-verify-"


@dataclass(frozen=True, slots=True)
class Difference:
    """Row that differs; `what` is `missing`, `too much` or `other value` in the second copy."""

    row: StoredRow
    what: str


@dataclass(slots=True)
class Comparison:
    rows: int = 0
    different: int = 0
    listed: list[Difference] = field(default_factory=list[Difference])

    def add(self, row: StoredRow, what: str) -> None:
        self.different += 1
        if len(self.listed) < _LISTED:
            self.listed.append(Difference(row, what))


def compare(first: Iterable[StoredRow], second: Iterable[StoredRow]) -> Comparison:
    """Compare two copies of a store, both in disk order.

    >>> a, b = StoredRow(b"a", b"1", 0, place=b"a"), StoredRow(b"b", b"1", 0, place=b"b")
    >>> comparison = compare([a, b], [b])
    >>> comparison.rows, comparison.different, [row.what for row in comparison.listed]
    (2, 1, ['missing'])
    """
    comparison = Comparison()
    second_rows = iter(second)
    second_row = next(second_rows, None)
    for row in first:
        comparison.rows += 1
        while second_row is not None and second_row.place < row.place:
            comparison.add(second_row, "too much")
            second_row = next(second_rows, None)
        if second_row is None or second_row.place != row.place:
            comparison.add(row, "missing")
            continue
        if second_row != row:
            comparison.add(row, "other value")
        second_row = next(second_rows, None)
    while second_row is not None:
        comparison.add(second_row, "too much")
        second_row = next(second_rows, None)
    return comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCopy:
    """Result of comparing one copy of a partition with its changelog.

    Attributes:
        copy: `snapshot`, or the directory of a task.
        different: Rows missing, unexpected or with another value in the copy.
    """

    store: str
    partition: int
    copy: str
    rows: int
    different: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Report of `verify`.

    Attributes:
        notes: Copies that were not compared, with reasons.
        broken: Snapshots with a missing or damaged file.
    """

    application_id: str
    copies: tuple[VerifiedCopy, ...]
    notes: tuple[str, ...]
    broken: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if all copies match their changelogs and no snapshot is broken."""
        return not self.broken and not any(copy.different for copy in self.copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalCopy:
    name: str
    path: Path
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToVerify:
    reading: PartitionToRead
    copies: tuple[_LocalCopy, ...]


@dataclass(frozen=True, slots=True)
class _Verified:
    compared: Mapping[str, Comparison]
    refused: str | None


def verify(
    topology: Topology,
    config: StreamsConfig,
    *,
    stores: Sequence[str] | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare stores with their changelogs: the newest snapshot with its tail, and local databases.

    Each copy is extended to the changelog's last stable offset as of this call. Databases are read
    through a checkpoint that shares their files; those of running workers are skipped. Expired rows
    do not count.

    Args:
        stores: Store names; None for all with a changelog.
        spark: Spark session; None for a temporary one at `master` (`local[*]` by default).

    Raises:
        ConfigError: PySpark or a store is missing.
        StreamsError: The cluster, the location or Spark failed.
    """
    with (
        bulk_driver(config, spark, what="verify", master=master, on_progress=on_progress) as driver,
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_existing(config.state_dir)) as folder,
    ):
        chosen = stores_by_name(topology, driver, stores)
        return verify_stores(driver, chosen, Path(folder))


def verify_stores(
    driver: BulkDriver, stores: Mapping[str, BulkStore], folder: Path
) -> VerifyReport:
    """Compare stores; `folder` receives checkpoints, so it must be on the databases' disk."""
    facts = changelog_facts(list(stores.values()), driver.admin, now_ms())
    notes: list[str] = []
    local = _local_copies(driver, stores, facts, folder, notes)
    tasks = _tasks(driver, stores, facts, local, notes)
    url = driver.config.snapshot_location
    work = driver.work(list(stores.values()), "" if url is None else str(url))
    results = driver.run(
        partial(_verify, driver.config.rocksdb),
        work,
        tasks,
        step="comparing",
        total=sum(_offsets(task) for task in tasks),
    )
    copies: list[VerifiedCopy] = []
    broken: list[str] = []
    for task, result in zip(tasks, results, strict=True):
        reading = task.reading
        described = _Describing(stores[reading.store])
        if result.refused is not None:
            broken.append(
                f"store {reading.store} partition {reading.partition}: {result.refused}; run `tidewheel snapshot --full`"
            )
        copies += [
            VerifiedCopy(
                store=reading.store,
                partition=reading.partition,
                copy=name,
                rows=comparison.rows,
                different=comparison.different,
                differences=tuple(map(described.text, comparison.listed)),
            )
            for name, comparison in result.compared.items()
        ]
    return VerifyReport(
        application_id=driver.config.application_id,
        copies=tuple(copies),
        notes=tuple(notes),
        broken=tuple(broken),
    )


def _existing(state_dir: Path) -> Path | None:
    return state_dir if state_dir.is_dir() else None


def _offsets(task: _ToVerify) -> int:
    reading = task.reading
    tails = [copy.position for copy in task.copies]
    if reading.runs is not None:
        tails.append(reading.runs.to_offset)
    return sum(reading.to_offset - begin for begin in (reading.log_start, *tails))


def _tasks(
    driver: BulkDriver,
    stores: Mapping[str, BulkStore],
    facts: Mapping[TopicPartition, ChangelogFacts],
    local: Mapping[TopicPartition, list[_LocalCopy]],
    notes: list[str],
) -> list[_ToVerify]:
    url = driver.config.snapshot_location
    place = None if url is None else SnapshotLocation(str(url))
    tasks: list[_ToVerify] = []
    for store in stores.values():
        topic_id = facts[store.changelog(0)].topic_id
        snapshot = newest_snapshot(place, driver.config.application_id, store.name, topic_id)
        if snapshot is None:
            notes.append(f"store {store.name}: there is no snapshot")
        for number in range(store.partitions):
            partition = store.changelog(number)
            reading, plan = reading_plan(store, snapshot, facts[partition])
            if plan.refused is not None:
                notes.append(
                    f"store {store.name} partition {number}: its snapshot is not followed: {plan.refused}"
                )
            tasks.append(_ToVerify(reading=reading, copies=tuple(local.get(partition, ()))))
    return tasks


def _local_copies(
    driver: BulkDriver,
    stores: Mapping[str, BulkStore],
    facts: Mapping[TopicPartition, ChangelogFacts],
    folder: Path,
    notes: list[str],
) -> dict[TopicPartition, list[_LocalCopy]]:
    config = driver.config
    if not driver.runs_here:
        notes.append("databases on this machine are not compared: Spark's executors run elsewhere")
        return {}
    copies: dict[TopicPartition, list[_LocalCopy]] = {}
    application = config.state_dir / config.application_id
    slots = sorted(int(entry.name) for entry in application.glob("*") if entry.name.isdecimal())
    for slot in slots:
        try:
            directory = StateDirectory.acquire(config.state_dir, config.application_id, slot=slot)
        except StoreLockedError as error:
            notes.append(f"slot {slot} is not compared: {error}")
            continue
        with directory:
            for task_id in directory.tasks():
                path = directory.task_directory(task_id)
                copy = folder / f"{slot}-{task_id}"
                for partition, local_copy in _copied(
                    config, stores, TaskId.parse(task_id), path, copy, facts, notes
                ):
                    copies.setdefault(partition, []).append(local_copy)
    return copies


def _copied(
    config: StreamsConfig,
    stores: Mapping[str, BulkStore],
    task: TaskId,
    path: Path,
    copy: Path,
    facts: Mapping[TopicPartition, ChangelogFacts],
    notes: list[str],
) -> Iterator[tuple[TopicPartition, _LocalCopy]]:
    """Yield a checkpoint of a task's database per store that the changelog can bring up to date."""
    local_stores = [
        store
        for store in stores.values()
        if store.spec.persistent
        and store.subtopology == task.subtopology
        and task.partition < store.partitions
    ]
    if not local_stores:
        return
    if not task.shard.is_whole:
        notes.append(f"{path} is not compared: it has the rows of shard {task.shard} only")
        return
    try:
        database = TaskDatabase.open(
            path,
            [store.name for store in local_stores],
            config.rocksdb,
            SharedResources.create(config.rocksdb),
        )
    except StateStoreError as error:
        notes.append(f"{path} is not compared: {error}")
        return
    with contextlib.closing(database):
        for store in local_stores:
            where = store.changelog(task.partition)
            about = facts[where]
            position = Position.decode(database.position(position_name(*where)))
            start, reason = about.start_from(position)
            if start is not StartFrom.POSITION or position is None:
                notes.append(f"store {store.name} in {path} is not compared: {reason}")
                continue
            if position.offset > about.stable_end:
                notes.append(
                    f"store {store.name} in {path} is not compared: its position {position.offset} is past an open "
                    f"transaction, which begins at offset {about.stable_end} of {where}; run it again when that has ended"
                )
                continue
            own_path = copy.with_name(f"{copy.name}-{store.name}")
            database.checkpoint(own_path)
            yield where, _LocalCopy(name=str(path), path=own_path, position=position.offset)


def _verify(
    options: RocksDBOptions, work: ExecutorWork, task: _ToVerify, count: Counted
) -> _Verified:
    reading = task.reading
    spec = work.shapes[reading.store].spec()
    compared: dict[str, Comparison] = {}
    refused: str | None = None
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        root = Path(folder)

        def fresh(name: str) -> Path:
            path = root / name
            path.mkdir()
            return path

        truth = read_changelog(work, reading, fresh("changelog"), count)
        if reading.runs is not None:
            try:
                snapshot_rows = read_snapshot(work, reading, reading.runs, fresh("snapshot"), count)
                compared["snapshot"] = compare_contents(spec, truth, snapshot_rows)
            except SnapshotRefused as error:
                refused = str(error)
        for number, copy in enumerate(task.copies):
            tail = read_into_runs(work, reading.tail(copy.position), fresh(str(number)), count)
            database = TaskDatabase.open(
                copy.path, [spec.name], options, SharedResources.create(options)
            )
            with contextlib.closing(database):
                ingest_runs(
                    database,
                    spec,
                    tail.files,
                    time=tail.time,
                    position_name="verified",
                    position=None,
                    from_nothing=False,
                )
                observed_ms, _ = read_store_time(database, spec.name)
                observed_ms = max(observed_ms, truth.time.observed_ms)
                rows = stored_rows(spec, database.iterate(spec.name, None, None), observed_ms)
                compared[copy.name] = compare(truth.rows(spec, observed_ms=observed_ms), rows)
    return _Verified(compared, refused)


def compare_contents(spec: StoreSpec, first: Content, second: Content) -> Comparison:
    """Compare two contents at the later of their stream times (see `Content.rows`)."""
    observed_ms = first.time.later(second.time).observed_ms
    return compare(
        first.rows(spec, observed_ms=observed_ms), second.rows(spec, observed_ms=observed_ms)
    )


class _Describing:
    def __init__(self, store: BulkStore) -> None:
        self._reader = RowDecoder(store.spec, store.topic, "string", "string")

    def text(self, difference: Difference) -> str:
        row: StoredRow = difference.row
        key: Any = row.key
        with contextlib.suppress(Exception):  # Show the raw key if it can't be decoded.
            key, _ = self._reader.decoded(row)
        start_text = "" if row.start is None else f" from {row.start}"
        return f"{key!r}{start_text}: {difference.what}"
