"""Run building in a restore helper: sorts changelog ranges into files, downloads snapshots.

One thread reads all ranges with one consumer, a few at a time. Urgent orders come first; orders for
standbys and learners get a fifth. Calls that wait for the snapshot location run in other threads.
"""

import contextlib
import logging
import shutil
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial, reduce
from pathlib import Path
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import Run, SnapshotRefused, StoreSnapshot
from tidewheel.state_stores.bulk_restore.merge import limit_runs
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.bulk_restore.runs import RunBuilder
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.streams.kafka.consumers.changelog import STALL_S
from tidewheel.streams.processes.restore_helper.helper_messages import (
    ACTIVE_MAX,
    BuiltFile,
    Failed,
    FindSnapshot,
    Forget,
    MakeRuns,
    Order,
    Progressed,
    Report,
    RunsCreated,
    SnapshotFound,
)
from tidewheel.tasks.kafka.ports import ChangelogReader, Clock, OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.shard_rows import own_runs, rows_of
from tidewheel.tasks.restore.store_changelog_reader import ReadingTurns

_log = logging.getLogger("tidewheel.restore")

_POLL_RECORDS: Final = 20_000
_POLL_S: Final = 0.05
_PROGRESS_EVERY_S: Final = 0.25
#: One of this many started orders is for a copy (standby or learner), if one waits.
_COPY_EVERY: Final = 5
#: Limit for finding a snapshot; after it the changelog is read instead.
FIND_S: Final = 30.0
#: Threads of two pools, so finding a snapshot does not wait for downloads.
_DOWNLOAD_THREADS: Final = 4
_SEARCH_THREADS: Final = 4
#: Downloads fail if no file grows for this time. Files grow only by complete blocks
#: (`storage.BLOCK_BYTES`, with as much read ahead). Downloads share the bandwidth, so a slow link
#: needs this long for a block of each.
_DOWNLOAD_STALL_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Download:
    """A snapshot's run on disk, and its number of rows before other shards' were left out."""

    runs: BuiltRuns
    rows: int


class _Job:
    """An order in progress. `ReadingTurns` decides by `end` and `held` which orders are read.

    Attributes:
        end: Offset at which an urgent order ends; None for others, which wait for urgent ones.
        held: Buffered records, always 0 here; many would pause reading.
    """

    def __init__(self, order: MakeRuns, clock: Clock) -> None:
        self.order = order
        self.partition = TopicPartition(order.topic, order.partition)
        self.end = order.to_offset if order.urgent else None
        self.held = 0
        self.directory = Path(order.directory)
        self.spec = order.shape.spec()
        self.position = order.from_offset
        self.records = 0
        self.reported_s = self.moved_s = clock.monotonic_s()
        self.builder: RunBuilder | None = None
        self.downloads: list[Future[_Download]] = []

    @property
    def is_read(self) -> bool:
        return self.position >= self.order.to_offset

    @property
    def is_downloaded(self) -> bool:
        return all(download.done() for download in self.downloads)

    def bytes_here(self) -> int:
        size = 0
        for file in self.directory.glob("*.sst"):
            with contextlib.suppress(FileNotFoundError):  # a download deletes its broken file
                size += file.stat().st_size
        return size


class RestoreHelper:
    """Executes orders to find snapshots and build runs. One thread calls `accept` and `step`.

    Args:
        make_reader: Makes the one reader of changelogs.
        send: Sends a report; called by several threads.
        run_bytes: Memory for the rows of one run.
    """

    def __init__(
        self,
        application_id: str,
        *,
        make_reader: Callable[[], ChangelogReader],
        location: Callable[[], SnapshotLocation],
        send: Callable[[Report], None],
        clock: Clock,
        run_bytes: int,
        find_s: float = FIND_S,
    ) -> None:
        self._application_id = application_id
        self._make_reader = make_reader
        #: Cached: one location object logs each broken file only once.
        self._location = cache(location)
        self._send = send
        self._clock = clock
        self._run_bytes = run_bytes
        self._find_s = find_s
        self._waiting: list[MakeRuns] = []
        self._active: dict[TopicPartition, _Job] = {}
        self._started_count = 0
        self._reader: ChangelogReader | None = None
        self._turns = ReadingTurns(clock, time.sleep)
        #: Time of the last download progress, and the bytes on disk at that time.
        self._arrived_s, self._bytes_here = clock.monotonic_s(), 0
        self._downloaders = ThreadPoolExecutor(
            _DOWNLOAD_THREADS, thread_name_prefix="tidewheel-download"
        )
        self._searchers = ThreadPoolExecutor(_SEARCH_THREADS, thread_name_prefix="tidewheel-search")

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._active

    def accept(self, order: Order) -> None:
        match order:
            case FindSnapshot():
                self._search(order)
            case MakeRuns():
                self._waiting.append(order)
            case Forget():
                self._forget(order.number)

    def step(self) -> None:
        self._start_jobs()
        if self._reader is not None and any(not job.is_read for job in self._active.values()):
            self._read(self._reader)
        else:
            time.sleep(_POLL_S)
        for job in list(self._active.values()):
            self._check(job)
        self._check_downloads()

    def close(self) -> None:
        for pool in (self._downloaders, self._searchers):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._reader is not None:
            self._reader.close()

    # -- snapshots ---------------------------------------------------------------------------------

    def _search(self, order: FindSnapshot) -> None:
        """Start a search. The waiting task gets None after `find_s` and reads the changelog."""
        search = self._searchers.submit(self._find, order)
        timer = threading.Timer(self._find_s, self._end_search, (order, search))
        timer.daemon = True
        timer.start()
        search.add_done_callback(lambda _: timer.cancel())

    def _end_search(self, order: FindSnapshot, search: Future[None]) -> None:
        search.cancel()
        if search.done() and not search.cancelled():
            return
        _log.warning(
            "no snapshot of store %s is used: the snapshot location has not answered for %g s; the "
            "changelog is read instead; check the location",
            order.store,
            self._find_s,
        )
        # The worker ignores a second answer.
        self._send(SnapshotFound(number=order.number, snapshot=None))

    def _find(self, order: FindSnapshot) -> None:
        snapshot: StoreSnapshot | None = None
        try:
            snapshot = self._location().newest(self._application_id, order.store, order.topic_id)
        except Exception as error:  # noqa: BLE001 - a location may raise anything; the changelog remains
            _log.warning("no snapshot of store %s is used: %s", order.store, error)
        self._send(SnapshotFound(number=order.number, snapshot=snapshot))

    def _start_downloads(self, job: _Job) -> None:
        snapshot = job.order.snapshot
        if snapshot is None:
            return
        location = self._location()
        if all(active.is_downloaded for active in self._active.values()):
            self._arrived_s = self._clock.monotonic_s()  # first download: the stall time starts now
        for run in snapshot.runs:
            job.downloads.append(self._downloaders.submit(_download, location, run, job))

    def _check_downloads(self) -> None:
        """Fail all downloads if none of them got a byte in `_DOWNLOAD_STALL_S`."""
        now_s = self._clock.monotonic_s()
        waiting = [job for job in self._active.values() if not job.is_downloaded]
        if waiting and now_s - self._arrived_s <= _DOWNLOAD_STALL_S:
            return
        bytes_here = sum(job.bytes_here() for job in waiting)
        is_stalled = bytes_here == self._bytes_here
        self._arrived_s, self._bytes_here = now_s, bytes_here
        if is_stalled:
            for job in waiting:
                self._fail(
                    job,
                    f"{job.partition}: the snapshot location has sent nothing for "
                    f"{_DOWNLOAD_STALL_S:g} s; check it",
                    snapshot=True,
                )

    # -- starting and ending ----------------------------------------------------------------------

    def _start_jobs(self) -> None:
        while len(self._active) < ACTIVE_MAX:
            order = self._next()
            if order is None:
                return
            self._waiting.remove(order)
            self._started_count += 1
            job = _Job(order, self._clock)
            self._fail_on_error(job, partial(self._start, job))

    def _next(self) -> MakeRuns | None:
        free = [
            order
            for order in self._waiting
            if TopicPartition(order.topic, order.partition) not in self._active
        ]
        is_copys_turn = self._started_count % _COPY_EVERY == _COPY_EVERY - 1
        return min(free, key=lambda order: order.urgent is is_copys_turn, default=None)

    def _start(self, job: _Job) -> None:
        order = job.order
        self._active[job.partition] = job
        job.directory.mkdir(mode=0o700)
        self._start_downloads(job)
        job.builder = RunBuilder(
            job.spec,
            job.directory,
            partition=order.partition,
            from_offset=order.from_offset,
            complete_from_zero=order.complete_from_zero,
            max_bytes=self._run_bytes,
            slowest_ms=order.slowest_ms,
        )
        if not job.is_read:
            if self._reader is None:
                self._reader = self._make_reader()
                self._reader.assign({})
            self._reader.add({job.partition: order.from_offset})

    def _drop(self, job: _Job) -> None:
        self._active.pop(job.partition, None)
        self._turns.forget([job.partition])
        for download in job.downloads:
            download.cancel()
        if self._reader is not None:
            self._reader.remove([job.partition])

    def _forget(self, number: int) -> None:
        self._waiting = [order for order in self._waiting if order.number != number]
        for job in [job for job in self._active.values() if job.order.number == number]:
            self._drop(job)
            shutil.rmtree(job.directory, ignore_errors=True)

    def _fail(self, job: _Job, reason: str, *, snapshot: bool = False) -> None:
        self._drop(job)
        self._send(Failed(number=job.order.number, reason=reason, snapshot=snapshot))

    def _fail_on_error(self, job: _Job, action: Callable[[], object]) -> None:
        try:
            action()
        except SnapshotRefused as error:
            self._fail(job, str(error), snapshot=True)
        except (StreamsError, OSError) as error:
            self._fail(job, f"no runs of {job.partition}: {error}")

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, reader: ChangelogReader) -> None:
        self._turns.share(reader, [job for job in self._active.values() if not job.is_read])
        try:
            runs = reader.poll(_POLL_RECORDS, _POLL_S)
        except OffsetOutOfRangeError as error:
            if error.partition in self._active:
                self._fail(self._active[error.partition], str(error))
            return
        except StreamsError as error:
            for job in list(self._active.values()):
                self._fail(job, str(error))
            return
        for run in runs:
            reading = self._active.get(TopicPartition(run.topic, run.partition))
            if reading is not None:
                self._fail_on_error(reading, partial(_add_records, reading, run))
        positions = reader.positions()
        for partition, job in self._active.items():
            position = positions.get(partition, 0)
            if position > job.position:
                job.position = position
                job.moved_s = self._clock.monotonic_s()

    def _check(self, job: _Job) -> None:
        if self._active.get(job.partition) is not job:
            return
        now_s = self._clock.monotonic_s()
        if job.is_read and self._reader is not None:
            self._reader.remove([job.partition])
        if job.is_read and job.is_downloaded:
            self._fail_on_error(job, partial(self._finish, job))
        elif not job.is_read and now_s - job.moved_s > STALL_S:
            self._fail(
                job,
                f"{job.partition}: no record arrived for {STALL_S:g} s at offset {job.position}, but "
                f"the log ends at {job.order.to_offset}; check that the partition has a leader",
            )
        elif now_s - job.reported_s >= _PROGRESS_EVERY_S:
            job.reported_s = now_s
            self._send(
                Progressed(
                    number=job.order.number,
                    position=min(job.position, job.order.to_offset),
                    records=job.records + _downloaded_rows(job.downloads),
                )
            )

    def _finish(self, job: _Job) -> None:
        order = job.order
        downloaded = _downloaded_files(job.downloads)
        assert job.builder is not None, "set at its start"
        built = job.builder.finish(order.to_offset)
        files = limit_runs(
            [*(file for download in downloaded for file in download.runs.files), *built.files],
            job.directory,
            complete_from_zero=order.complete_from_zero or order.snapshot is not None,
        )
        times = [built.time, *(download.runs.time for download in downloaded)]
        if order.snapshot is not None and order.shard.is_whole:
            times.append(order.snapshot.time)  # also that of a snapshot without runs
        self._drop(job)
        self._send(
            RunsCreated(
                number=order.number,
                files=tuple(BuiltFile(path=str(file.path), run=file.run) for file in files),
                time=reduce(StoreTime.later, times),
                records=job.records + _downloaded_rows(job.downloads),
            )
        )


def _add_records(job: _Job, run: SourceRecords) -> None:
    assert job.builder is not None, "set at its start"
    stop = bisect_left(run.offsets, job.order.to_offset)
    if stop < len(run):
        run = run.slice(0, stop)
    if not len(run):
        return
    own, shard = run, job.order.shard
    if not shard.is_whole:
        own = run.take(rows_of(shard, job.spec, run))
    job.builder.add(own.raw_keys, own.raw_values, own.timestamps, run.offsets[-1] + 1)
    job.records += len(run)


def _download(location: SnapshotLocation, run: Run, job: _Job) -> _Download:
    file = RunFile(location.download(run, job.directory), run)
    snapshot = job.order.snapshot
    assert snapshot is not None, "its runs are downloaded"
    runs = BuiltRuns((file,), snapshot.time)
    return _Download(own_runs(runs, job.spec, job.order.shard), run.rows)


def _downloaded_rows(downloads: Sequence[Future[_Download]]) -> int:
    done = [download for download in downloads if download.done() and not download.cancelled()]
    return sum(download.result().rows for download in done if download.exception() is None)


def _downloaded_files(downloads: Sequence[Future[_Download]]) -> list[_Download]:
    files: list[_Download] = []
    for download in downloads:
        try:
            files.append(download.result())
        except SnapshotRefused:
            raise
        except Exception as error:  # a location may raise anything
            raise SnapshotRefused(
                f"a file of the snapshot could not be downloaded: {error}"
            ) from error
    return files
