"""Restores the stores of tasks in a thread of its own, so that tasks that run keep running.

For each task: open its databases, decide per store where to begin (`state_stores.restore.restore_start`), read the
changelogs to the end that was fixed before reading began, write the last value per key, then hand the task over. "Done"
is judged by position, never by the last record seen, because control records and compaction leave gaps (hole H29).
"""

import logging
import queue
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from rebalance.model import TopicPartition
from state_stores.errors import StoreCorruptedError
from state_stores.restore import StartFrom, fold, restore_start
from tasks.active_task import ActiveTask
from tasks.ports import Admin, ChangelogReader, Clock, TopicDescription
from tasks.processing.record_batch import SourceRecords
from tasks.source_restore import SourceRestore

_log = logging.getLogger(__name__)

#: Records of one poll; a poll is folded and written as one batch per task.
_POLL_RECORDS = 20_000

#: Kafka's default for how long tombstones outlive compaction.
DELETE_RETENTION_MS = 86_400_000

#: Longer than any position is old.
_FOR_EVER_MS: Final = 1 << 62


EventKind = Literal["start", "batch", "end", "suspended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreEvent:
    """Progress of restoring one store from one changelog partition.

    `start` and `end` are offsets; `restored` counts the records read so far ("batch", "end") or 0 ("start").

    >>> event = RestoreEvent(
    ...     kind="batch", store="counts", topic="app-counts-changelog", partition=0, start=0, end=200, restored=50
    ... )
    >>> f"{event.restored / (event.end - event.start):.0%}"
    '25%'
    """

    kind: EventKind
    store: str
    topic: str
    partition: int
    start: int
    end: int
    restored: int


@dataclass(slots=True)
class _Restoring:
    task: ActiveTask
    store: str
    start: int
    end: int
    position: int
    #: When `end` was the end: what is behind it was written later.
    planned_ms: int
    restored: int = 0
    #: Set where the partition is an input: its records go through the table's operator.
    source: SourceRestore | None = None

    def rows(self, run: SourceRecords) -> Sequence[tuple[bytes, bytes | None]]:
        """Return the rows that some records leave behind."""
        if self.source is not None:
            return self.source.rows(run)
        spec = self.task.stores.specs[self.store]
        return fold(spec, run.raw_keys, run.raw_values, run.timestamps)

    def event(self, kind: EventKind, partition: TopicPartition) -> RestoreEvent:
        return RestoreEvent(
            kind=kind,
            store=self.store,
            topic=partition.topic,
            partition=partition.partition,
            start=self.start,
            end=self.end,
            restored=self.restored,
        )


class StateUpdater:
    """The restoring thread of one worker.

    Tasks go in by `add` in state RESTORING and come out of `take_restored`; an error that stopped the thread is raised by
    the next `take_restored`.
    """

    def __init__(
        self,
        *,
        admin: Admin,
        make_reader: Callable[[], ChangelogReader],
        clock: Clock,
        wipe: Callable[[ActiveTask], None],
        on_event: Callable[[RestoreEvent], None],
        woken: Callable[[], None],
        committed: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        self._admin = admin
        self._make_reader = make_reader
        self._clock = clock
        self._wipe = wipe
        self._on_event = on_event
        self._woken = woken
        #: The committed offset of each input: tables that are restored from their topic stop there.
        self._committed = committed
        self._incoming: queue.SimpleQueue[list[ActiveTask]] = queue.SimpleQueue()
        self._restored: queue.SimpleQueue[ActiveTask] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: Changelog records read since the start, and those still to read; for the metrics.
        self.restored_records = 0
        self.remaining_records = 0

    def add(self, tasks: list[ActiveTask]) -> None:
        """Restore these tasks; starts the thread if none is running."""
        self._incoming.put(tasks)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name="tidewheel-state-updater", daemon=True
            )
            self._thread.start()

    def take_restored(self) -> list[ActiveTask]:
        """Return the tasks that are ready since the last call; raises what stopped the thread."""
        if self._error is not None:
            raise self._error
        tasks: list[ActiveTask] = []
        while not self._restored.empty():
            tasks.append(self._restored.get_nowait())
        return tasks

    def close(self) -> None:
        """Stop restoring and wait for the thread; tasks not handed over are left to the caller."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._incoming.empty():
                self._restore(self._incoming.get_nowait())
        except BaseException as error:  # noqa: BLE001 - raised again in the worker's thread by take_restored
            self._error = error
        finally:
            self._woken()

    def _restore(self, tasks: list[ActiveTask]) -> None:
        for task in tasks:
            self._open(task)
        wanted = self._plan(tasks)
        waiting: dict[int, int] = {id(task): 0 for task in tasks}
        for entry in wanted.values():
            waiting[id(entry.task)] += 1
        for task in tasks:
            if not waiting[id(task)]:
                self._hand_over(task)
        if wanted:
            self._read(wanted, waiting)

    def _open(self, task: ActiveTask) -> None:
        try:
            task.stores.open()
        except StoreCorruptedError as error:
            _log.warning(
                "task %s: %s; wiping it and restoring from the changelog", task.task_id, error
            )
            self._wipe(task)
            task.stores.open()

    def _plan(self, tasks: list[ActiveTask]) -> dict[TopicPartition, _Restoring]:
        """Decide where each store begins and ends; stores with nothing to read are done at once."""
        changelogs = {
            partition: (task, store)
            for task in tasks
            for partition, store in (task.stores.changelogs | task.source_stores).items()
        }
        if not changelogs:
            return {}
        topics = self._admin.describe_topics(
            sorted({partition.topic for partition in changelogs}),
            config=["delete.retention.ms", "cleanup.policy"],
        )
        starts = self._admin.beginning_offsets(list(changelogs))
        ends = self._admin.end_offsets(list(changelogs))
        now_ms = self._clock.now_ms()
        wanted: dict[TopicPartition, _Restoring] = {}
        for partition, (task, store) in changelogs.items():
            topic = topics[partition.topic]
            task.stores.topic_ids[partition.topic] = topic.topic_id
            position = task.stores.position(store)
            source = None
            end = ends[partition]
            if partition in task.source_stores:
                if partition not in self._committed:
                    # Nobody has processed anything of the input yet, so the table has no rows.
                    with task.stores.trusted():
                        task.stores.forget(store)
                    continue
                source, end = task.source_restore(partition), self._committed[partition]
            begin, reason = restore_start(
                position,
                topic_id=topic.topic_id,
                log_start=starts[partition],
                log_end=end,
                tombstone_retention_ms=_tombstone_retention_ms(topic),
                now_ms=now_ms,
            )
            if (
                source is not None
                and source.extracts
                and position is not None
                and position.offset < end
            ):
                begin, reason = StartFrom.BEGINNING, "extracted timestamps depend on all records"
            start = starts[partition]
            if begin is StartFrom.POSITION and position is not None:
                start = position.offset
            else:
                with task.stores.trusted():
                    task.stores.forget(store)
            _log.info(
                "task %s store %s: restoring from %s: %s", task.task_id, store, begin.value, reason
            )
            if start < end:
                wanted[partition] = _Restoring(
                    task, store, start, end, start, planned_ms=now_ms, source=source
                )
            else:
                task.stores.write_restored({}, {partition: start}, now_ms=now_ms)
        return wanted

    def _read(self, wanted: dict[TopicPartition, _Restoring], waiting: dict[int, int]) -> None:
        reader = self._make_reader()
        reader.with_headers = any(entry.source is not None for entry in wanted.values())
        try:
            reader.assign({partition: entry.start for partition, entry in wanted.items()})
            for partition, entry in wanted.items():
                self._on_event(entry.event("start", partition))
            while wanted and not self._stop.is_set():
                self.remaining_records = sum(
                    entry.end - entry.position for entry in wanted.values()
                )
                self._read_once(reader, wanted, waiting)
            for partition, entry in wanted.items():
                self._on_event(entry.event("suspended", partition))
            self.remaining_records = 0
        finally:
            reader.close()

    def _read_once(
        self,
        reader: ChangelogReader,
        wanted: dict[TopicPartition, _Restoring],
        waiting: dict[int, int],
    ) -> None:
        changed: set[TopicPartition] = set()
        for run in reader.poll(_POLL_RECORDS, 0.1):
            partition = TopicPartition(run.topic, run.partition)
            entry = wanted.get(partition)
            if entry is None:
                continue  # records past the end that was fixed at the start
            entry.position = run.offsets[-1] + 1
            stop = len(run) if entry.source is None else bisect_left(run.offsets, entry.end)
            entry.restored += stop
            self.restored_records += len(run)
            # No position yet: a restore that is cut short begins where it began, because tombstones for what it has
            # read so far may be compacted away before it goes on.
            with entry.task.stores.trusted():
                rows = entry.rows(run.slice(0, stop))
                entry.task.stores.write_restored({entry.store: rows}, {}, now_ms=entry.planned_ms)
            changed.add(partition)
        for partition in changed:
            self._on_event(wanted[partition].event("batch", partition))
        positions = reader.positions()
        for partition in [
            partition
            for partition, entry in wanted.items()
            if _done(entry, positions.get(partition))
        ]:
            entry = wanted.pop(partition)
            entry.position = max(entry.position, positions.get(partition, entry.position))
            if entry.source is not None:
                entry.position = entry.end  # what is behind it is not processed yet
            entry.task.stores.write_restored(
                {}, {partition: entry.position}, now_ms=entry.planned_ms
            )
            self._on_event(entry.event("end", partition))
            waiting[id(entry.task)] -= 1
            if not waiting[id(entry.task)]:
                self._hand_over(entry.task)

    def _hand_over(self, task: ActiveTask) -> None:
        self._restored.put(task)
        self._woken()


def _tombstone_retention_ms(topic: TopicDescription) -> int:
    """Return how long deletes can be read in a topic; where nothing is compacted, as long as anything."""
    if "compact" not in topic.config.get("cleanup.policy", "compact"):
        return _FOR_EVER_MS
    return int(topic.config.get("delete.retention.ms", DELETE_RETENTION_MS))


def _done(entry: _Restoring, position: int | None) -> bool:
    return entry.position >= entry.end or (position is not None and position >= entry.end)
