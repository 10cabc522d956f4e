"""The restore helpers of this process: the port `tidewheel.tasks.restore.run_ports.RunMaker` over processes that come and go."""

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
from tidewheel.streams.processes.restore_helper.messages import (
    ACTIVE_MAX,
    Begin,
    Failed,
    FindSnapshot,
    Forget,
    Made,
    MakeRuns,
    Order,
    Progressed,
    Report,
    SnapshotFound,
)
from tidewheel.streams.processes.restore_helper.process import HELPER_COMMAND, HelperProcess
from tidewheel.tasks.restore.run_ports import RunOrder, RunProgress, RunReport, RunsFailed, RunsMade

#: A helper without anything to do ends after so long.
IDLE_S: Final = 60.0
#: Memory for the rows of all runs that are being made.
MEMORY_BYTES: Final = 512 * 1024 * 1024
#: What was found of a snapshot is true for so long: tasks of one store ask one after the other.
_FOUND_S: Final = 5.0

_Found = Callable[[StoreSnapshot | None], None]
_Tell = Callable[[RunReport], None]


class _Search(msgspec.Struct):
    """Who waits for the newest snapshot of a store, which is told by its name and its changelog's id."""

    store: tuple[str, bytes]
    waiting: list[_Found] = msgspec.field(default_factory=list[_Found])


class _Making(msgspec.Struct):
    """An order that is carried out, and by which helper."""

    order: RunOrder
    tell: _Tell
    helper: HelperProcess


class HostRestoreHelper:
    """Starts helpers when there is something to do: a second one when the first has enough. Any thread may call it.

    Args:
        begin: Makes what helpers are told first, given the memory for one run.
        snapshots: Whether there is a place for snapshots.
        readers: How many helpers there are at most.
        idle_s: How long one may have nothing to do.
        command: The program.
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
        self._making: dict[int, _Making] = {}
        self._searches: dict[int, tuple[_Search, HelperProcess]] = {}
        self._found: dict[tuple[str, bytes], tuple[float, StoreSnapshot | None]] = {}
        self._closed = False

    @property
    def has_snapshots(self) -> bool:
        """Return whether there is a place where snapshots are looked for."""
        return self._snapshots

    def pids(self) -> list[int]:
        """Return the processes that are there now."""
        with self._lock:
            return [helper.pid for helper in self._helpers]

    def find_snapshot(self, store: str, topic_id: bytes, found: _Found) -> None:
        """Look for the newest snapshot of a store, by its changelog's id."""
        wanted = store, topic_id
        with self._lock:
            if self._closed:
                return  # so is whoever asks
            when_s, snapshot = self._found.get(wanted, (-_FOUND_S, None))
            known = time.monotonic() - when_s < _FOUND_S
            if not known:
                under_way = [each for each, _ in self._searches.values() if each.store == wanted]
                if under_way:
                    under_way[0].waiting.append(found)
                    return
                self._search(_Search(wanted, [found]))
        if known:
            found(snapshot)

    def _search(self, search: _Search) -> None:
        number = next(self._numbers)
        helper = self._least_busy()
        self._searches[number] = (search, helper)
        store, topic_id = search.store
        helper.send(FindSnapshot(number=number, store=store, topic_id=topic_id))

    def make(self, order: RunOrder, tell: _Tell) -> None:
        """Begin with an order."""
        with self._lock:
            if self._closed:
                return  # so is whoever asks
            number = next(self._numbers)
            helper = self._least_busy()
            self._making[number] = _Making(order, tell, helper)
            helper.send(message_of(number, order))

    def forget(self, order: RunOrder) -> None:
        """Stop an order if it is under way, tell no more of it, and delete its directory. Idempotent."""
        with self._lock:
            numbers = [each for each, made in self._making.items() if made.order is order]
            for number in numbers:
                self._making.pop(number).helper.send(Forget(number=number))
        if not numbers:  # otherwise the helper deletes it, which may be writing there
            shutil.rmtree(order.directory, ignore_errors=True)

    def close(self) -> None:
        """End all helpers; what is under way is not told of any more. Idempotent."""
        with self._lock:
            self._closed = True
            self._making.clear()
            self._searches.clear()
            helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.close()

    # -- helpers; the lock is held ---------------------------------------------------------------------------------

    def _least_busy(self) -> HelperProcess:
        """Return the helper with the least to do; a new one if each has something and there may be one more."""
        load = {
            id(helper): sum(made.helper is helper for made in self._making.values())
            for helper in self._helpers
        }
        free = [helper for helper in self._helpers if not load[id(helper)]]
        if not free and len(self._helpers) < self._readers:
            return self._start()
        return min(self._helpers, key=lambda each: load[id(each)])

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

    # -- called by helpers' threads --------------------------------------------------------------------------------

    def _may_end(self, helper: HelperProcess) -> bool:
        with self._lock:
            busy = any(made.helper is helper for made in self._making.values())
            busy = busy or any(each is helper for _, each in self._searches.values())
            if not busy and helper in self._helpers:
                self._helpers.remove(helper)
            return not busy

    def _on_end(self, helper: HelperProcess, reason: str) -> None:
        """Tell whoever waits for a helper that it is gone."""
        with self._lock:
            if helper in self._helpers:
                self._helpers.remove(helper)
            lost = [each for each, made in self._making.items() if made.helper is helper]
            tells = [self._making.pop(number).tell for number in lost]
            unfound = [each for each, found in self._searches.items() if found[1] is helper]
            founds = [
                found for number in unfound for found in self._searches.pop(number)[0].waiting
            ]
        for tell in tells:
            tell(RunsFailed(reason=reason))
        for found in founds:
            found(None)

    def _on_report(self, report: Report) -> None:
        if isinstance(report, SnapshotFound):
            self._tell_found(report)
            return
        with self._lock:
            made = self._making.get(report.number)
            if made is None:
                return
            if not isinstance(report, Progressed):
                del self._making[report.number]
        made.tell(report_of(report))

    def _tell_found(self, report: SnapshotFound) -> None:
        with self._lock:
            if report.number not in self._searches:
                return
            search, _ = self._searches.pop(report.number)
            self._found[search.store] = (time.monotonic(), report.snapshot)
        for found in search.waiting:
            found(report.snapshot)


def message_of(number: int, order: RunOrder) -> Order:
    """Return an order as a helper is sent it."""
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
    )


def report_of(report: Progressed | Made | Failed) -> RunReport:
    """Return what a helper said as the port tells it."""
    match report:
        case Progressed():
            return RunProgress(position=report.position, records=report.records)
        case Made():
            files = tuple(RunFile(Path(each.path), each.run) for each in report.files)
            return RunsMade(runs=BuiltRuns(files, report.time), records=report.records)
        case Failed():
            return RunsFailed(reason=report.reason, snapshot=report.snapshot)
