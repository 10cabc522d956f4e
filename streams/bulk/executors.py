"""Executor side of snapshots: reads changelog ranges, and builds, uploads and merges runs.

Spark may run an item twice, even concurrently. File names are therefore unique, and only files
named in a result are used.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import Run, SnapshotRefused
from tidewheel.state_stores.bulk_restore.merge import merge_runs
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.bulk_restore.runs import RUN_BYTES, RunBuilder
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.gc_tuning import collection_paused
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.streams.kafka.portable_settings import opened_url
from tidewheel.tasks.kafka.ports import OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

Counted = Callable[[int], None]

_PREFIX = "tidewheel-runs-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorWork:
    settings: ClientSettings
    location: str
    application_id: str
    shapes: Mapping[str, StoreShape]
    topics: Mapping[str, str]
    run_bytes: int = RUN_BYTES

    def place(self) -> SnapshotLocation:
        return SnapshotLocation(opened_url(self.location))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeToBuild:
    """Changelog range of a store's partition.

    Attributes:
        complete_from_zero: The range begins at the log's start, so its first run needs no deletes.
        may_begin_later: Resume at the new log start if retention deletes records meanwhile.
        slowest_ms: Stream time of the task's slowest key range, by which rows expire.
    """

    store: str
    partition: int
    from_offset: int
    to_offset: int
    complete_from_zero: bool
    may_begin_later: bool
    slowest_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsToMerge:
    store: str
    partition: int
    runs: tuple[Run, ...]
    complete_from_zero: bool

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedRuns:
    """Uploaded runs (sorted files), or the reason why an input file was refused."""

    store: str
    partition: int
    runs: tuple[Run, ...]
    time: StoreTime = field(default_factory=StoreTime)
    refused: str | None = None


def build_range(work: ExecutorWork, task: RangeToBuild, count: Counted) -> UploadedRuns:
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        built = read_into_runs(work, task, Path(folder), count)
        place = work.place()
        runs = tuple(_uploaded(work, task.store, file, place) for file in built.files)
    return UploadedRuns(store=task.store, partition=task.partition, runs=runs, time=built.time)


def read_into_runs(
    work: ExecutorWork, task: RangeToBuild, directory: Path, count: Counted
) -> BuiltRuns:
    builder = RunBuilder(
        work.shapes[task.store].spec(),
        directory,
        partition=task.partition,
        from_offset=task.from_offset,
        complete_from_zero=task.complete_from_zero,
        max_bytes=work.run_bytes,
        slowest_ms=task.slowest_ms,
    )
    position = task.from_offset
    # Rows form no reference cycles; garbage collection took a third of the time.
    with collection_paused():
        for run in _runs_of(work, task):
            reached = run.offsets[-1] + 1
            builder.add(run.raw_keys, run.raw_values, run.timestamps, reached)
            count(reached - position)
            position = reached
        count(task.to_offset - position)
        return builder.finish(task.to_offset)


def _runs_of(work: ExecutorWork, task: RangeToBuild) -> Iterator[SourceRecords]:
    partition = TopicPartition(work.topics[task.store], task.partition)
    position = task.from_offset
    while True:
        try:
            for run in read_range(work.settings, partition, position, task.to_offset):
                yield run
                position = run.offsets[-1] + 1
        except OffsetOutOfRangeError as error:
            log_start = _log_start(work, partition)
            if not task.may_begin_later or log_start <= position:
                raise StreamsError(f"{error}; run it again, or with --full") from error
            position = log_start
        else:
            return


def _log_start(work: ExecutorWork, partition: TopicPartition) -> int:
    admin = KafkaResetAdmin(work.settings)
    try:
        return admin.beginning_offsets([partition])[partition]
    finally:
        admin.close()


def merge_into_one(work: ExecutorWork, task: RunsToMerge, count: Counted) -> UploadedRuns:
    try:
        runs = _merged_and_uploaded(work, task)
    except SnapshotRefused as error:
        return UploadedRuns(store=task.store, partition=task.partition, runs=(), refused=str(error))
    count(task.rows)
    return UploadedRuns(store=task.store, partition=task.partition, runs=runs)


def _merged_and_uploaded(work: ExecutorWork, task: RunsToMerge) -> tuple[Run, ...]:
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        place = work.place()
        files = fetched(place, task.runs, Path(folder))
        with collection_paused():
            merged = merge_runs(
                files, Path(folder, "merged.sst"), drop_deletes=task.complete_from_zero
            )
        return () if merged is None else (_uploaded(work, task.store, merged, place),)


def fetched(place: SnapshotLocation, runs: Sequence[Run], directory: Path) -> list[RunFile]:
    return [RunFile(place.download(run, directory), run) for run in runs]


def _uploaded(work: ExecutorWork, store: str, file: RunFile, place: SnapshotLocation) -> Run:
    now_ms = time.time_ns() // 1_000_000
    name = place.run_name(work.application_id, store, file.run, now_ms=now_ms)
    try:
        place.upload(file.path, name)
    except OSError as error:
        raise StreamsError(
            f"store {store} partition {file.run.partition}: can't upload {name} to {place!r} ({error}); check that Spark's "
            "executors may write there"
        ) from error
    return msgspec.structs.replace(file.run, file=name)
