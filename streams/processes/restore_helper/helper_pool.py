"""The restore helpers of this process: the port `tidewheel.tasks.restore.run_ports.RunMaker`."""

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from tidewheel.state_stores.bulk_restore.manifest import StoreSnapshot
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.streams.processes.restore_helper.helper_messages import (
    ACTIVE_MAX,
    Begin,
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
from tidewheel.streams.processes.restore_helper.helper_process import HELPER_COMMAND, HelperProcess
from tidewheel.tasks.restore.run_ports import (
    RunOrder,
    RunProgress,
    RunReport,
    RunsBuilt,
    RunsFailed,
)

#: An idle helper ends after this time.
IDLE_S: Final = 60.0
#: Memory of all helpers together for rows of runs in progress.
MEMORY_BYTES: Final = 512 * 1024 * 1024
#: Time to reuse a found snapshot: a store's tasks search for it shortly after each other.
_CACHE_S: Final = 5.0

_OnFound = Callable[[StoreSnapshot | None], None]
_OnReport = Callable[[RunReport], None]


class _Search(msgspec.Struct):
    """A search for a store's newest snapshot; `store` is its name and its changelog's topic id."""

    store: tuple[str, bytes]
    waiting: list[_OnFound] = msgspec.field(default_factory=list[_OnFound])


class _SentOrder(msgspec.Struct):
    order: RunOrder
    on_report: _OnReport
    helper: HelperProcess


class RestoreHelperPool:
    """Sends orders to helpers; starts another one if all are busy. Any thread may call it.

    Args:
        begin: Makes a helper's first message; its argument is the memory for one run, in bytes.
        snapshots: True if a snapshot location is configured.
        readers: Maximum number of helpers.
    """

    def __init__(
        self,
        begin: Callable[[int], Begin],
        *,
        snapshots: bool,
        readers: int,
        idle_s: float = IDLE_S,
        command: Sequence[str] = HELPER_COMMAND,
    ) -> None:
        self._begin = begin
        self._snapshots = snapshots
        self._readers = readers
        self._idle_s = idle_s
        self._command = command
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._helpers: list[HelperProcess] = []
        self._jobs: dict[int, _SentOrder] = {}
        self._searches: dict[int, tuple[_Search, HelperProcess]] = {}
        self._cache: dict[tuple[str, bytes], tuple[float, StoreSnapshot | None]] = {}
        self._closed = False

    @property
    def has_snapshots(self) -> bool:
        return self._snapshots

    def pids(self) -> list[int]:
        with self._lock:
            return [helper.pid for helper in self._helpers]

    def find_snapshot(self, store: str, topic_id: bytes, found: _OnFound) -> None:
        key = store, topic_id
        with self._lock:
            if self._closed:
                return  # without an answer: the caller is closed too
            found_s, snapshot = self._cache.get(key, (-_CACHE_S, None))
            is_cached = time.monotonic() - found_s < _CACHE_S
            if not is_cached:
                running = [search for search, _ in self._searches.values() if search.store == key]
                if running:
                    running[0].waiting.append(found)
                    return
                self._search(_Search(key, [found]))
        if is_cached:
            found(snapshot)

    def _search(self, search: _Search) -> None:
        number = next(self._numbers)
        helper = self._least_busy()
        self._searches[number] = (search, helper)
        store, topic_id = search.store
        helper.send(FindSnapshot(number=number, store=store, topic_id=topic_id))

    def make(self, order: RunOrder, tell: _OnReport) -> None:
        with self._lock:
            if self._closed:
                return  # the caller is closed too
            number = next(self._numbers)
            helper = self._least_busy()
            self._jobs[number] = _SentOrder(order, tell, helper)
            helper.send(message_of(number, order))

    def forget(self, order: RunOrder) -> None:
        """Cancel an order if it is in progress, and delete its directory. Idempotent."""
        with self._lock:
            numbers = [number for number, job in self._jobs.items() if job.order is order]
            for number in numbers:
                self._jobs.pop(number).helper.send(Forget(number=number))
        if not numbers:  # a helper deletes the directory itself: it may still write there
            shutil.rmtree(order.directory, ignore_errors=True)

    def close(self) -> None:
        """End all helpers; orders in progress get no more reports. Idempotent."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
            self._searches.clear()
            helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.close()

    # -- helpers; the lock is held -----------------------------------------------------------------

    def _least_busy(self) -> HelperProcess:
        load = {
            id(helper): sum(job.helper is helper for job in self._jobs.values())
            for helper in self._helpers
        }
        free = [helper for helper in self._helpers if not load[id(helper)]]
        if not free and len(self._helpers) < self._readers:
            return self._start()
        return min(self._helpers, key=lambda helper: load[id(helper)])

    def _start(self) -> HelperProcess:
        helper = HelperProcess(
            self._begin(MEMORY_BYTES // self._readers // ACTIVE_MAX),
            on_report=self._on_report,
            on_end=self._on_end,
            may_end=self._may_end,
            idle_s=self._idle_s,
            command=self._command,
        )
        self._helpers.append(helper)
        return helper

    # -- called by helpers' threads ----------------------------------------------------------------

    def _may_end(self, helper: HelperProcess) -> bool:
        with self._lock:
            busy = any(job.helper is helper for job in self._jobs.values())
            busy = busy or any(searcher is helper for _, searcher in self._searches.values())
            if not busy and helper in self._helpers:
                self._helpers.remove(helper)
            return not busy

    def _on_end(self, helper: HelperProcess, reason: str) -> None:
        """Report a dead helper's orders as failed and answer its searches with None."""
        with self._lock:
            if helper in self._helpers:
                self._helpers.remove(helper)
            jobs = [number for number, job in self._jobs.items() if job.helper is helper]
            listeners = [self._jobs.pop(number).on_report for number in jobs]
            searches = [
                number for number, (_, searcher) in self._searches.items() if searcher is helper
            ]
            waiting = [
                found for number in searches for found in self._searches.pop(number)[0].waiting
            ]
        for listener in listeners:
            listener(RunsFailed(reason=reason))
        for found in waiting:
            found(None)

    def _on_report(self, report: Report) -> None:
        if isinstance(report, SnapshotFound):
            self._on_snapshot_found(report)
            return
        with self._lock:
            job = self._jobs.get(report.number)
            if job is None:
                return
            if not isinstance(report, Progressed):
                del self._jobs[report.number]
        job.on_report(report_of(report))

    def _on_snapshot_found(self, report: SnapshotFound) -> None:
        with self._lock:
            if report.number not in self._searches:
                return
            search, _ = self._searches.pop(report.number)
            self._cache[search.store] = (time.monotonic(), report.snapshot)
        for found in search.waiting:
            found(report.snapshot)


def message_of(number: int, order: RunOrder) -> Order:
    return MakeRuns(
        number=number,
        shape=StoreShape.of(order.spec),
        topic=order.partition.topic,
        partition=order.partition.partition,
        snapshot=order.snapshot,
        from_offset=order.from_offset,
        to_offset=order.to_offset,
        complete_from_zero=order.complete_from_zero,
        urgent=order.urgent,
        directory=str(order.directory),
        slowest_ms=order.slowest_ms,
        shard=order.partition.shard,
    )


def report_of(report: Progressed | RunsCreated | Failed) -> RunReport:
    match report:
        case Progressed():
            return RunProgress(position=report.position, records=report.records)
        case RunsCreated():
            files = tuple(RunFile(Path(file.path), file.run) for file in report.files)
            return RunsBuilt(runs=BuiltRuns(files, report.time), records=report.records)
        case Failed():
            return RunsFailed(reason=report.reason, snapshot=report.snapshot)
