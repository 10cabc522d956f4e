"""What a restore helper does: reads stretches of changelogs into sorted runs, and brings those of snapshots.

One thread reads all stretches with one client, a few at a time, and shares it as a worker does: what a task waits for
first, copies a fifth of the time. Whatever waits for the snapshot location is done in threads beside it.
"""

import contextlib
import logging
import shutil
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import Run, SnapshotRefused, StoreSnapshot
from tidewheel.state_stores.bulk_restore.merge import limit_runs
from tidewheel.state_stores.bulk_restore.run_files import RunFile
from tidewheel.state_stores.bulk_restore.runs import RunBuilder
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.restore import StoreTime
from tidewheel.streams.kafka.consumers.changelog import STALL_S
from tidewheel.streams.processes.restore_helper.messages import (
    ACTIVE_MAX,
    Failed,
    FindSnapshot,
    Forget,
    Made,
    MadeFile,
    MakeRuns,
    Order,
    Progressed,
    Report,
    SnapshotFound,
)
from tidewheel.tasks.ports import ChangelogReader, Clock, OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.store_changelog_reader import ReadingTurns

_log = logging.getLogger("tidewheel.restore")

_POLL_RECORDS: Final = 20_000
_POLL_S: Final = 0.05
#: How often it is said how far an order is.
_SAY_EVERY_S: Final = 0.25
#: Among those that begin every so manieth is a copy's, if one waits.
_COPY_EVERY: Final = 5
#: A location that has not told its newest snapshot by then counts as one without: the changelog is there.
FIND_S: Final = 30.0
#: Files that are brought at once, and snapshots that are looked for at once: a question is not to wait for files.
_BRINGERS: Final = 4
_FINDERS: Final = 4
#: A location that has sent nothing of a snapshot's files for so long is not waited for any more. All that are brought share the
#: line, and a block of each (`places.BLOCK_BYTES`, and as much read ahead) must come in that time.
_BRING_S: Final = 120.0


class _Stretch:
    """One order that is carried out. `partition`, `end` and `held` are what reading takes turns by."""

    def __init__(self, order: MakeRuns, clock: Clock) -> None:
        self.order = order
        self.partition = TopicPartition(order.topic, order.partition)
        self.end = order.to_offset if order.urgent else None
        self.held = 0
        self.directory = Path(order.directory)
        self.position = order.from_offset
        self.records = 0
        self.said_s = self.moved_s = clock.monotonic_s()
        self.builder: RunBuilder | None = None
        self.brought: list[Future[RunFile]] = []

    @property
    def is_read(self) -> bool:
        return self.position >= self.order.to_offset

    @property
    def is_brought(self) -> bool:
        return all(each.done() for each in self.brought)

    def bytes_here(self) -> int:
        """Return how many bytes of files are here."""
        size = 0
        for each in self.directory.glob("*.sst"):
            with contextlib.suppress(FileNotFoundError):  # one that is broken is deleted at once
                size += each.stat().st_size
        return size


class RestoreHelper:
    """Carries out orders. `take` and `step` are called by one thread.

    Args:
        application_id: Whose snapshots are looked for.
        make_reader: Makes the one reader of changelogs.
        location: Makes where snapshots are.
        say: Sends a report; called by that thread and others.
        clock: Time.
        run_bytes: Memory for the rows of one run.
        find_s: How long the location may take to tell its newest snapshot.
    """

    def __init__(
        self,
        application_id: str,
        *,
        make_reader: Callable[[], ChangelogReader],
        location: Callable[[], SnapshotLocation],
        say: Callable[[Report], None],
        clock: Clock,
        run_bytes: int,
        find_s: float = FIND_S,
    ) -> None:
        self._application_id = application_id
        self._make_reader = make_reader
        #: One for all questions: it says once of each broken file what is wrong with it.
        self._location = cache(location)
        self._say = say
        self._clock = clock
        self._run_bytes = run_bytes
        self._find_s = find_s
        self._waiting: list[MakeRuns] = []
        self._active: dict[TopicPartition, _Stretch] = {}
        self._begun = 0
        self._reader: ChangelogReader | None = None
        self._turns = ReadingTurns(clock, time.sleep)
        #: When more of some snapshot's files had come, or was first waited for, and how many bytes were here then.
        self._came_s, self._here = clock.monotonic_s(), 0
        self._bringers = ThreadPoolExecutor(_BRINGERS, thread_name_prefix="tidewheel-bring")
        self._finders = ThreadPoolExecutor(_FINDERS, thread_name_prefix="tidewheel-find")

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing that `step` could do."""
        return not self._waiting and not self._active

    def take(self, order: Order) -> None:
        """Take an order."""
        match order:
            case FindSnapshot():
                self._look_for(order)
            case MakeRuns():
                self._waiting.append(order)
            case Forget():
                self._forget(order.number)

    def step(self) -> None:
        """Do a little of what was ordered."""
        self._begin_some()
        if self._reader is not None and any(not each.is_read for each in self._active.values()):
            self._read(self._reader)
        else:
            time.sleep(_POLL_S)  # for what is brought
        for stretch in list(self._active.values()):
            self._look_at(stretch)
        self._look_at_what_comes()

    def close(self) -> None:
        """Stop everything; the files stay."""
        for each in (self._bringers, self._finders):
            each.shutdown(wait=False, cancel_futures=True)
        if self._reader is not None:
            self._reader.close()

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _look_for(self, order: FindSnapshot) -> None:
        """Begin to look for a snapshot, and answer without one if that takes too long: a task waits for it."""
        found = self._finders.submit(self._find, order)
        patience = threading.Timer(self._find_s, self._give_up, (order, found))
        patience.daemon = True
        patience.start()
        found.add_done_callback(lambda _: patience.cancel())

    def _give_up(self, order: FindSnapshot, found: Future[None]) -> None:
        found.cancel()
        if found.done() and not found.cancelled():
            return
        _log.warning(
            "no snapshot of store %s can be had: the snapshot location has not answered for %g s; the changelog is used, look "
            "at the location",
            order.store,
            self._find_s,
        )
        # What is found later is an answer to nobody's question.
        self._say(SnapshotFound(number=order.number, snapshot=None))

    def _find(self, order: FindSnapshot) -> None:
        snapshot: StoreSnapshot | None = None
        try:
            snapshot = self._location().newest(self._application_id, order.store, order.topic_id)
        except Exception as error:  # noqa: BLE001 - a location may fail in its own ways; the changelog is there
            _log.warning("no snapshot of store %s can be had: %s", order.store, error)
        self._say(SnapshotFound(number=order.number, snapshot=snapshot))

    def _bring(self, stretch: _Stretch) -> None:
        """Begin to bring the files of a snapshot here."""
        snapshot = stretch.order.snapshot
        if snapshot is None:
            return
        location = self._location()
        if all(each.is_brought for each in self._active.values()):
            self._came_s = self._clock.monotonic_s()  # nothing was waited for until now
        for run in snapshot.runs:
            stretch.brought.append(
                self._bringers.submit(_brought, location, run, stretch.directory)
            )

    def _look_at_what_comes(self) -> None:
        """Give up the snapshots whose files are waited for, if nothing has come of any: some wait in line for others."""
        now_s = self._clock.monotonic_s()
        waiting = [each for each in self._active.values() if not each.is_brought]
        if waiting and now_s - self._came_s <= _BRING_S:
            return
        here = sum(each.bytes_here() for each in waiting)
        nothing_came, self._came_s, self._here = here == self._here, now_s, here
        if nothing_came:
            for each in waiting:
                self._fail(
                    each,
                    f"{each.partition}: the snapshot location has sent nothing for {_BRING_S:g} s; look at it",
                    snapshot=True,
                )

    # -- beginning and ending --------------------------------------------------------------------------------------

    def _begin_some(self) -> None:
        while len(self._active) < ACTIVE_MAX:
            order = self._next()
            if order is None:
                return
            self._waiting.remove(order)
            self._begun += 1
            stretch = _Stretch(order, self._clock)
            self._guarded(stretch, partial(self._begin, stretch))

    def _next(self) -> MakeRuns | None:
        """Return whose turn it is: what tasks wait for, and now and then a copy."""
        free = [
            each
            for each in self._waiting
            if TopicPartition(each.topic, each.partition) not in self._active
        ]
        copies_turn = self._begun % _COPY_EVERY == _COPY_EVERY - 1
        return min(free, key=lambda each: each.urgent is copies_turn, default=None)

    def _begin(self, stretch: _Stretch) -> None:
        order = stretch.order
        self._active[stretch.partition] = stretch
        stretch.directory.mkdir(mode=0o700)
        self._bring(stretch)
        stretch.builder = RunBuilder(
            order.shape.spec(),
            stretch.directory,
            partition=order.partition,
            from_offset=order.from_offset,
            complete_from_zero=order.complete_from_zero,
            max_bytes=self._run_bytes,
            slowest_ms=order.slowest_ms,
        )
        if not stretch.is_read:
            if self._reader is None:
                self._reader = self._make_reader()
                self._reader.assign({})
            self._reader.add({stretch.partition: order.from_offset})

    def _drop(self, stretch: _Stretch) -> None:
        self._active.pop(stretch.partition, None)
        self._turns.forget([stretch.partition])
        for each in stretch.brought:
            each.cancel()
        if self._reader is not None:
            self._reader.remove([stretch.partition])

    def _forget(self, number: int) -> None:
        self._waiting = [each for each in self._waiting if each.number != number]
        for stretch in [each for each in self._active.values() if each.order.number == number]:
            self._drop(stretch)
            shutil.rmtree(stretch.directory, ignore_errors=True)

    def _fail(self, stretch: _Stretch, reason: str, *, snapshot: bool = False) -> None:
        self._drop(stretch)
        self._say(Failed(number=stretch.order.number, reason=reason, snapshot=snapshot))

    def _guarded(self, stretch: _Stretch, action: Callable[[], object]) -> None:
        try:
            action()
        except SnapshotRefused as error:
            self._fail(stretch, str(error), snapshot=True)
        except (StreamsError, OSError) as error:
            self._fail(stretch, f"no runs of {stretch.partition}: {error}")

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, reader: ChangelogReader) -> None:
        self._turns.share(reader, [each for each in self._active.values() if not each.is_read])
        try:
            runs = reader.poll(_POLL_RECORDS, _POLL_S)
        except OffsetOutOfRangeError as error:
            if error.partition in self._active:
                self._fail(self._active[error.partition], str(error))
            return
        except StreamsError as error:
            for stretch in list(self._active.values()):
                self._fail(stretch, str(error))
            return
        for run in runs:
            mine = self._active.get(TopicPartition(run.topic, run.partition))
            if mine is not None:
                self._guarded(mine, partial(_add, mine, run))
        positions = reader.positions()
        for partition, stretch in self._active.items():
            position = positions.get(partition, 0)
            if position > stretch.position:
                stretch.position = position
                stretch.moved_s = self._clock.monotonic_s()

    def _look_at(self, stretch: _Stretch) -> None:
        if self._active.get(stretch.partition) is not stretch:
            return
        now_s = self._clock.monotonic_s()
        if stretch.is_read and self._reader is not None:
            self._reader.remove([stretch.partition])
        if stretch.is_read and stretch.is_brought:
            self._guarded(stretch, partial(self._finish, stretch))
        elif not stretch.is_read and now_s - stretch.moved_s > STALL_S:
            self._fail(
                stretch,
                f"{stretch.partition}: nothing came for {STALL_S:g} s at offset {stretch.position}, though the log goes on to "
                f"{stretch.order.to_offset}; check that the partition has a leader",
            )
        elif now_s - stretch.said_s >= _SAY_EVERY_S:
            stretch.said_s = now_s
            self._say(
                Progressed(
                    number=stretch.order.number,
                    position=min(stretch.position, stretch.order.to_offset),
                    records=stretch.records + _rows_of(stretch.brought),
                )
            )

    def _finish(self, stretch: _Stretch) -> None:
        order = stretch.order
        brought = _results_of(stretch.brought)
        assert stretch.builder is not None, "it has begun"
        built = stretch.builder.finish(order.to_offset)
        files = limit_runs(
            [*brought, *built.files],
            stretch.directory,
            complete_from_zero=order.complete_from_zero or order.snapshot is not None,
        )
        before = StoreTime() if order.snapshot is None else order.snapshot.time
        self._drop(stretch)
        self._say(
            Made(
                number=order.number,
                files=tuple(MadeFile(path=str(each.path), run=each.run) for each in files),
                time=before.later(built.time),
                records=stretch.records + _rows_of(stretch.brought),
            )
        )


def _add(stretch: _Stretch, run: SourceRecords) -> None:
    """Put the records of a stretch into its builder."""
    assert stretch.builder is not None, "it has begun"
    stop = bisect_left(run.offsets, stretch.order.to_offset)
    if stop < len(run):
        run = run.slice(0, stop)
    if len(run):
        stretch.builder.add(run.raw_keys, run.raw_values, run.timestamps, run.offsets[-1] + 1)
        stretch.records += len(run)


def _brought(location: SnapshotLocation, run: Run, directory: Path) -> RunFile:
    """Bring a file of a snapshot here."""
    return RunFile(location.download(run, directory), run)


def _rows_of(brought: Sequence[Future[RunFile]]) -> int:
    """Return how many rows are in the files that are here."""
    here = [each for each in brought if each.done() and not each.cancelled()]
    return sum(each.result().run.rows for each in here if each.exception() is None)


def _results_of(brought: Sequence[Future[RunFile]]) -> list[RunFile]:
    """Return the files; raises `SnapshotRefused` if one could not be brought."""
    files: list[RunFile] = []
    for each in brought:
        try:
            files.append(each.result())
        except SnapshotRefused:
            raise
        except Exception as error:  # a location may fail in its own ways
            raise SnapshotRefused(
                f"a file of the snapshot could not be brought: {error}"
            ) from error
    return files
