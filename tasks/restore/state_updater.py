"""State updater: restores tasks and follows copies in its own thread.

An active task is read to fixed ends and handed over. A copy is followed until promoted or removed.
Other slow work runs here too: finding start offsets, opening and closing databases. While an active
task restores, copies get a fifth of the reading time.
"""

import logging
import queue
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import partial
from typing import Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import AnyReport
from tidewheel.state_stores.errors import StateStoreError, StoreCorruptedError, StreamsError
from tidewheel.tasks.errors import StartRefusedError, TaskCorruptedError
from tidewheel.tasks.kafka.ports import ChangelogReader, Clock, OffsetOutOfRangeError
from tidewheel.tasks.kafka.unanswered import LIMIT_S, Answer, retry_unanswered
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.restore_planner import RestorePlanner
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.run_restores import RunRestores
from tidewheel.tasks.restore.start_positions import Grant, StartPosition
from tidewheel.tasks.restore.store_changelog_reader import (
    ReaderOffsets,
    ReadingTurns,
    ReadProgress,
    Stalls,
    StoreChangelogReader,
)
from tidewheel.tasks.restore.store_restore import (
    ClosedTask,
    EventKind,
    FailedTask,
    LogFacts,
    RefusedTask,
    RestoredTask,
    RestoreEvent,
    RestoreEvents,
    RestoreRate,
    RestoreResult,
    RestoringTask,
    StandbyUpdateEvent,
    StoreRestore,
    progress_text,
)
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.task import Task

__all__ = ["EventKind", "RestoreEvent", "StandbyUpdateEvent", "StateUpdater"]

_log = logging.getLogger(__name__)

_POLL_RECORDS = 20_000
#: Period of reading committed offsets, up to which a copy may apply a table's source topic.
_COMMITTED_EVERY_S: Final = 0.5
_TOPICS_EVERY_S: Final = 10.0
_STALLS_EVERY_S: Final = 1.0
_LOG_EVERY_S: Final = 5.0


class StateUpdater:
    """Restoring thread of one worker.

    The worker's loop gives orders, which the thread executes in sequence. `pop_results` raises an
    error that concerns more than one task's disk, which ends the thread.

    Args:
        running: Tasks that process records; a restore must not slow them down.
        lasting: Keep the reader's idle connections, because the worker may get copies later.
        runs: Builds sorted runs for stores that are far behind; None to read everything here.
    """

    def __init__(
        self,
        *,
        planner: RestorePlanner,
        make_reader: Callable[[], ChangelogReader],
        clock: Clock,
        wipe: Callable[[Task], None],
        on_event: Callable[[RestoreEvent], None],
        on_standby_update: Callable[[StandbyUpdateEvent], None] = lambda _: None,
        woken: Callable[[], None],
        send: Callable[[AnyReport], None] = lambda _: None,
        running: Sized = (),
        lasting: bool = False,
        runs: RunSettings | None = None,
    ) -> None:
        self._planner = planner
        self._clock = clock
        self._wipe = wipe
        self._woken = woken
        self._send = send
        self._running_tasks = running
        self._lasting = lasting
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[RestoreResult] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Used by the thread only.
        self._restoring: dict[TaskId, RestoringTask] = {}
        self._reader = StoreChangelogReader(make_reader, ReadingTurns(clock, self._stop.wait))
        self._events = RestoreEvents(on_event, on_standby_update)
        self._runs = (
            None
            if runs is None
            else RunRestores(
                runs,
                clock=clock,
                post=self._orders.put,
                on_progress=self._count_run_progress,
                on_end=self._read_tail,
                guarded=self._guarded,
            )
        )
        self._restarted: set[TaskId] = set()
        self._next_committed_s = 0.0
        self._next_topics_s = 0.0
        self._next_stalls_s = 0.0
        self._stalls = Stalls()
        #: Reasons of stalled restores; any thread may read them.
        self.waits: Mapping[TaskId, str] = {}
        self.restored_records = 0
        self.remaining_records = 0
        self._rate = RestoreRate()
        self._next_log_s = 0.0

    # -- from the worker's loop --------------------------------------------------------------------

    def restore(
        self,
        tasks: Mapping[TaskId, tuple[Task, Grant]],
        starts: Mapping[TopicPartition, StartPosition] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        *,
        wiped: Container[TaskId] = (),
    ) -> None:
        """Restore tasks in state RESTORING; find start offsets unless `starts` is given."""
        restoring_tasks = [
            RestoringTask(
                task,
                grant=grant,
                starts=starts,
                topic_ids=topic_ids or {},
                wiped=task_id in wiped,
            )
            for task_id, (task, grant) in tasks.items()
        ]
        self._order(partial(self._start_restores, restoring_tasks))

    def follow(self, copies: Sequence[LearnerTask]) -> None:
        self._order(partial(self._follow, copies))

    def appoint(self, copy: LearnerTask, role: str, learn_epoch: int) -> None:
        self._order(partial(self._appoint, copy, role, learn_epoch))

    def promote(self, task: Task, grant: Grant) -> None:
        self._order(partial(self._promote, task, grant))

    def remove(self, task: Task) -> None:
        self._order(partial(self._remove, task))

    def do(self, action: Callable[[], None]) -> None:
        self._order(action)

    def close_stores(self, task: Task) -> None:
        self._order(partial(self._close, task, task.stores.close))

    def pop_results(self) -> list[RestoreResult]:
        if self._error is not None:
            raise self._error
        results: list[RestoreResult] = []
        while not self._results.empty():
            results.append(self._results.get_nowait())
        return results

    def reached(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return the restored offset of each store of a task. Thread-safe."""
        restoring = self._restoring.get(task_id)
        if restoring is None:
            return {}
        return {
            changelog: max(entry.position, entry.built_to)
            for changelog, entry in list(restoring.entries.items())
        }

    @property
    def restore_rate(self) -> float:
        return self._rate.per_second if self.remaining_records else 0.0

    @property
    def restore_remaining_s(self) -> float:
        """Return the estimated seconds left; -1 while unknown, 0 while nothing restores."""
        left_s = self._rate.seconds_for(self.remaining_records)
        return -1.0 if left_s is None else left_s

    def close(self) -> None:
        self._stop.set()
        self._orders.put(lambda: None)
        if self._thread is not None:
            self._thread.join()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="tidewheel-state-updater", daemon=True
            )
            self._thread.start()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._carry_out_orders()
                if self._reader.tasks and not self._stop.is_set():
                    self._read()
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            self._error = error
        finally:
            for restoring in self._restoring.values():
                self._events.suspended(restoring)
            if self._runs is not None:
                self._runs.close()
            self._reader.close()
            self._woken()

    def _carry_out_orders(self) -> None:
        while not (self._orders.empty() and self._reader.tasks):
            if self._orders.empty() and not self._lasting:
                self._reader.close()
            order = self._orders.get()
            if self._stop.is_set():
                return
            order()

    def _start_restores(self, restoring_tasks: Iterable[RestoringTask]) -> None:
        opened: list[RestoringTask] = []
        for restoring in restoring_tasks:
            self._restoring[restoring.task.task_id] = restoring
            if self._guarded(restoring, partial(self._open, restoring)):
                opened.append(restoring)
        opened = self._find_starts(opened)
        copies = [restoring.task for restoring in opened if restoring.copy is not None]
        self._ask(lambda: self._planner.refresh_slowest_positions(copies))
        facts = self._ask(
            lambda: self._planner.read_log_facts([restoring.task for restoring in opened])
        )
        # Check all tasks before one may process records: without a group, one failed check ends the
        # worker.
        ends = {item: about.end for item, about in facts.items()}
        opened = [restoring for restoring in opened if self._may_start(restoring, ends)]
        for restoring in opened:
            self._guarded(restoring, partial(self._start_restore, restoring, facts))

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        until_s = self._clock.monotonic_s() + LIMIT_S
        return retry_unanswered(question, clock=self._clock, until_s=until_s, wait=self._stop.wait)

    def _open(self, restoring: RestoringTask) -> None:
        if not restoring.task.stores.is_open:
            restoring.task.stores.open()

    def _find_starts(self, restoring_tasks: Sequence[RestoringTask]) -> list[RestoringTask]:
        grants = {
            restoring.task.task_id: restoring.grant
            for restoring in restoring_tasks
            if restoring.grant is not None and restoring.starts is None
        }
        if not grants:
            return list(restoring_tasks)
        starts, topic_ids, refused = self._ask(lambda: self._planner.find_starts(grants))
        for task_id, grant in grants.items():
            restoring = self._restoring[task_id]
            if task_id in refused:
                self._refuse(restoring, grant, refused[task_id])
            else:
                restoring.starts, restoring.topic_ids = starts, topic_ids
        return [restoring for restoring in restoring_tasks if not restoring.refused]

    def _may_start(self, restoring: RestoringTask, ends: Mapping[TopicPartition, int]) -> bool:
        if restoring.grant is None or restoring.starts is None:
            return True
        try:
            return self._guarded(
                restoring,
                partial(self._planner.check_state, restoring.task, ends, restoring.starts),
            )
        except StartRefusedError as error:
            self._refuse(restoring, restoring.grant, error)
            return False

    def _refuse(self, restoring: RestoringTask, grant: Grant, error: StreamsError) -> None:
        self._stop_reading(restoring)
        restoring.refused = True
        self._results.put(RefusedTask(task=restoring.task, grant=grant, error=error))
        self._woken()

    def _start_restore(
        self, restoring: RestoringTask, facts: Mapping[TopicPartition, LogFacts]
    ) -> None:
        entries = self._ask(
            lambda: self._planner.restores(
                restoring.task,
                facts,
                starts=restoring.starts,
                grant=restoring.grant,
                complete=restoring.complete,
            )
        )
        restoring.complete = False
        restoring.entries = {entry.partition: entry for entry in entries}
        for entry in entries:
            entry.advance_to(entry.position, at_end=False, now_ms=entry.known_ms)
        if restoring.copy is not None:
            restoring.copy.store_uuid = restoring.task.stores.identity()
            self._next_topics_s = 0.0
        if not self._start_runs(restoring, facts):
            return
        if restoring.copy is not None:
            self._events.started(restoring)  # before anything is loaded
        self._reader.start(restoring)
        if restoring.grant is not None:
            self._events.started(restoring)
        self._finish_if_done(restoring)
        self._announce_if_empty(restoring)

    def _start_runs(
        self, restoring: RestoringTask, facts: Mapping[TopicPartition, LogFacts]
    ) -> bool:
        if self._runs is None:
            return True
        for entry in list(restoring.entries.values()):
            self._runs.begin(restoring, entry, facts[entry.partition])
            if restoring.entries.get(entry.partition) is not entry:
                return False  # the task failed, or its restore was restarted
        return True

    # -- orders ------------------------------------------------------------------------------------

    def _follow(self, copies: Iterable[LearnerTask]) -> None:
        fresh: list[RestoringTask] = []
        for copy in copies:
            restoring = self._restoring.get(copy.task_id)
            refused = restoring is not None and restoring.refused
            if restoring is not None and restoring.task is copy.task and not refused:
                self._follow_restoring(restoring, copy)
            else:
                complete = copy.task.stores.is_open and not refused
                fresh.append(RestoringTask(copy.task, copy=copy, complete=complete))
        self._start_restores(fresh)

    def _follow_restoring(self, restoring: RestoringTask, copy: LearnerTask) -> None:
        """Turn the restore of a revoked task into a copy."""
        self._events.suspended(restoring)
        restoring.grant, restoring.copy, restoring.starts = None, copy, None
        self._planner.forget_slowest_position(restoring.task)
        self._next_topics_s = 0.0
        for entry in restoring.entries.values():
            entry.end, entry.start, entry.restored = None, entry.position, 0
        copy.store_uuid = copy.task.stores.identity()
        self._events.started(restoring)
        self._reader.start(restoring)

    def _appoint(self, copy: LearnerTask, role: str, learn_epoch: int) -> None:
        copy.appoint(role, learn_epoch)
        restoring = self._restoring.get(copy.task_id)
        if restoring is not None and restoring.copy is copy:
            self._announce_if_empty(restoring)

    def _announce_if_empty(self, restoring: RestoringTask) -> None:
        if not restoring.entries:
            self._announce_progress(restoring, {})

    def _promote(self, task: Task, grant: Grant) -> None:
        restoring = self._restoring.get(task.task_id)
        if restoring is None or restoring.task is not task:
            return  # the copy failed; its result reports that
        self._events.suspended(restoring, "PROMOTED")
        restoring.grant, restoring.copy, restoring.restored = grant, None, 0
        restoring.promoted = True
        if not self._find_starts([restoring]):
            return
        assert restoring.starts is not None, "found just now"
        positions = {changelog: entry.position for changelog, entry in restoring.entries.items()}
        if not self._may_start(restoring, positions):
            return
        starts, entries = restoring.starts, restoring.entries.values()
        self._ask(lambda: self._planner.fix_ends(task, entries, starts, grant))
        for entry in restoring.entries.values():
            entry.start, entry.restored = entry.position, 0
        self._guarded(restoring, partial(self._resume_promoted, restoring))

    def _resume_promoted(self, restoring: RestoringTask) -> None:
        self._events.started(restoring)
        now_ms = self._clock.now_ms()
        for entry in restoring.entries.values():
            if entry.limit is not None and entry.end is not None:
                restoring.restored += entry.raise_limit(entry.end, now_ms)
            entry.advance_to(entry.position, at_end=False, now_ms=now_ms)
        self._finish_if_done(restoring)

    def _remove(self, task: Task) -> None:
        restoring = self._restoring.get(task.task_id)
        if restoring is None or restoring.task is not task:
            self._close(task, task.life.close)
            return
        with self._events.leaving(restoring):
            self._stop_reading(restoring)
            del self._restoring[task.task_id]
            self._close(task, task.life.close)

    def _stop_reading(self, restoring: RestoringTask) -> None:
        self._reader.stop(restoring, restoring.entries)
        if self._runs is not None:
            self._runs.stop(restoring)

    def _close(self, task: Task, close: Callable[[], None]) -> None:
        try:
            close()
        except StateStoreError as error:
            _log.warning("task %s: %s", task.task_id, error)
        self._results.put(ClosedTask(task=task))

    # -- failures ----------------------------------------------------------------------------------

    def _guarded(self, restoring: RestoringTask, action: Callable[[], object]) -> bool:
        """Run an action on a task's disk; False on failure. Wipe a damaged database once."""
        try:
            action()
        except (StateStoreError, TaskCorruptedError) as error:
            self._stop_reading(restoring)
            self._restarted.add(restoring.task.task_id)
            if restoring.wiped or not isinstance(error, StoreCorruptedError | TaskCorruptedError):
                self._fail(restoring, error)
            else:
                self._wipe_damaged(restoring, error)
            return False
        return True

    def _wipe_damaged(self, restoring: RestoringTask, error: Exception) -> None:
        task = restoring.task
        _log.warning("task %s: %s; wiping it and restoring from the changelog", task.task_id, error)
        if restoring.copy is not None:
            self._announce(restoring.copy.reset("its state is damaged"))
        with suppress(StateStoreError):
            task.stores.close()  # the database is deleted next
        self._wipe(task)
        restoring.wiped, restoring.complete, restoring.entries = True, False, {}
        self._start_restores([restoring])

    def _fail(self, restoring: RestoringTask, error: StateStoreError | TaskCorruptedError) -> None:
        with self._events.leaving(restoring):
            del self._restoring[restoring.task.task_id]
            self._close(restoring.task, restoring.task.life.close)
        self._results.put(FailedTask(task=restoring.task, grant=restoring.grant, error=error))
        self._woken()

    def _restart_store(self, error: OffsetOutOfRangeError) -> None:
        reading = [
            (at, restoring)
            for at, restoring in self._reader.tasks.items()
            if at.whole == error.partition
        ]
        for at, restoring in reading:
            self._restart_store_of(restoring, at, error)

    def _restart_store_of(
        self, restoring: RestoringTask, partition: TopicPartition, error: OffsetOutOfRangeError
    ) -> None:
        _log.warning("task %s: %s", restoring.task.task_id, error)
        self._stop_reading(restoring)
        if restoring.copy is not None:
            self._announce(restoring.copy.reset("the changelog has lost the next records"))
        store = restoring.entries[partition].store
        if self._guarded(restoring, partial(self._empty_store, restoring.task, store)):
            self._start_restores([restoring])

    def _empty_store(self, task: Task, store: str) -> None:
        with task.stores.trusted():
            task.stores.forget(store)

    # -- reading -----------------------------------------------------------------------------------

    def _read(self) -> None:
        self._refresh_from_cluster()
        busy = len(self._running_tasks) > 0 or any(
            restoring.is_awaited for restoring in self._restoring.values()
        )
        self._count_remaining()
        try:
            runs = self._reader.poll(_POLL_RECORDS, busy=busy)
        except OffsetOutOfRangeError as error:
            self._restart_store(error)
            return
        begin_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        self._restarted.clear()
        changed: dict[StoreRestore, RestoringTask] = {}
        for run in runs:
            self.restored_records += len(run.offsets)
            for partition, share in self._reader.shares(run):
                self._apply(partition, share, changed)
        for entry, restoring in changed.items():
            self._report_batch(restoring, entry)
        self._update_positions(now_ms)
        if begin_s >= self._next_stalls_s:
            self._next_stalls_s = begin_s + _STALLS_EVERY_S
            self._report_stalls(begin_s)
        self._count_remaining()
        if busy and runs:
            self._reader.pause_after_poll(sum(map(len, runs)), self._clock.monotonic_s() - begin_s)

    def _apply(
        self,
        partition: TopicPartition,
        run: SourceRecords,
        changed: dict[StoreRestore, RestoringTask],
    ) -> None:
        restoring = self._reader.tasks.get(partition)
        if restoring is None or restoring.task.task_id in self._restarted:
            return  # fetched before the partition was removed or restarted
        entry = restoring.entries[partition]

        def write() -> None:
            applied = entry.apply(run)
            if restoring.grant is not None:
                restoring.restored += applied

        if self._guarded(restoring, write):
            changed[entry] = restoring

    def _update_positions(self, now_ms: int) -> None:
        offsets = self._reader.offsets()
        for restoring in dict.fromkeys(self._reader.tasks.values()):
            if restoring.task.task_id not in self._restarted:
                self._guarded(restoring, partial(self._advance, restoring, offsets, now_ms))

    def _advance(self, restoring: RestoringTask, offsets: ReaderOffsets, now_ms: int) -> None:
        for partition, entry in restoring.entries.items():
            position = offsets.positions.get(partition)
            if position is not None and self._reader.tasks.get(partition) is restoring:
                # Compaction stops at the stable offset: a copy that is there missed no tombstone.
                at_end = restoring.grant is None and offsets.stable.get(partition) == position
                entry.advance_to(position, at_end=at_end, now_ms=now_ms)
        self._finish_if_done(restoring)
        self._announce_progress(restoring, offsets.ends)

    def _announce(self, report: AnyReport | None) -> None:
        if report is not None:
            self._send(report)

    def _finish_if_done(self, restoring: RestoringTask) -> None:
        """Stop reading restored stores; after the last, return the task to the loop."""
        if restoring.grant is None:
            return
        done = [entry for entry in restoring.entries.values() if entry.is_done]
        if done:
            self._reader.stop(restoring, [entry.partition for entry in done])
            for entry in done:
                self._events.ended(entry)
        if len(done) == len(restoring.entries):
            for entry in done:
                entry.store_position()
            del self._restoring[restoring.task.task_id]
            assert restoring.starts is not None, "a granted task's starts are found first"
            self._results.put(
                RestoredTask(
                    task=restoring.task,
                    grant=restoring.grant,
                    starts={
                        partition: restoring.starts[partition]
                        for partition in restoring.task.inputs
                    },
                    topic_ids=restoring.topic_ids,
                    restored=restoring.restored,
                )
            )
            self._woken()

    def _count_remaining(self) -> None:
        entries = [
            restoring.entries[partition] for partition, restoring in self._reader.tasks.items()
        ]
        if self._runs is not None:
            entries += self._runs.entries()
        self.remaining_records = sum(entry.remaining for entry in entries)
        now_s = self._clock.monotonic_s()
        self._rate.record(self.restored_records, now_s)
        if self.remaining_records and now_s >= self._next_log_s:
            if self._next_log_s:
                _log.info(
                    "%s", progress_text(self.restored_records, self.remaining_records, self._rate)
                )
            self._next_log_s = now_s + _LOG_EVERY_S
        elif not self.remaining_records:
            self._next_log_s = 0.0

    # -- sorted runs -------------------------------------------------------------------------------

    def _count_run_progress(
        self, restoring: RestoringTask, entry: StoreRestore, records: int
    ) -> None:
        self.restored_records += records
        if restoring.grant is not None:
            restoring.restored += records
        self._report_batch(restoring, entry)
        self._count_remaining()
        self._announce_progress(restoring, self._reader.offsets().ends)

    def _read_tail(self, restoring: RestoringTask) -> None:
        self._reader.start(restoring)
        self._finish_if_done(restoring)

    def _report_batch(self, restoring: RestoringTask, entry: StoreRestore) -> None:
        entry.rate.record(entry.restored, self._clock.monotonic_s())
        self._events.loaded(restoring, entry)

    def _announce_progress(
        self, restoring: RestoringTask, ends: Mapping[TopicPartition, int]
    ) -> None:
        if restoring.copy is not None:
            self._announce(
                restoring.copy.advance(restoring.progress(ends), self._clock.monotonic_s())
            )

    def _report_stalls(self, now_s: float) -> None:
        ends = self._reader.offsets().ends if self._reader.tasks else {}
        progress: dict[TopicPartition, ReadProgress] = {}
        for partition, restoring in self._reader.tasks.items():
            entry = restoring.entries[partition]
            end = entry.end or ends.get(partition)
            if entry.limit is None and end is not None:
                progress[partition] = ReadProgress(entry.position, end)
        stalls = self._stalls.check(progress, now_s)
        waits = {
            task_id: text
            for task_id, text in self.waits.items()
            if (waiting := self._restoring.get(task_id)) is not None
            and any(self._stalls.is_stalled(partition, now_s) for partition in waiting.entries)
        }
        reasons = self._planner.explain(stalls) if stalls else []
        for stall, text in zip(stalls, reasons, strict=True):
            stalled = self._reader.tasks.get(stall.partition)
            if stalled is not None:
                activity = "restoring" if stalled.copy is None else f"the {stalled.copy.role}"
                _log.warning("task %s: %s has made %s", stalled.task.task_id, activity, text)
                waits[stalled.task.task_id] = text
        self.waits = waits

    # -- facts of the cluster ----------------------------------------------------------------------

    def _refresh_from_cluster(self) -> None:
        now_s = self._clock.monotonic_s()
        try:
            if now_s >= self._next_committed_s:
                self._next_committed_s = now_s + _COMMITTED_EVERY_S
                self._raise_limits()
            copies = [
                restoring.task
                for restoring in self._restoring.values()
                if restoring.copy is not None
            ]
            if copies and now_s >= self._next_topics_s:
                self._next_topics_s = now_s + _TOPICS_EVERY_S
                self._planner.prepare_promotions(copies)
        except StreamsError as error:
            # Outdated offsets only delay copies.
            _log.warning("could not ask about the inputs of copies: %s", error)

    def _raise_limits(self) -> None:
        limited = {
            partition: restoring
            for restoring in dict.fromkeys(self._reader.tasks.values())
            for partition, entry in restoring.entries.items()
            if restoring.grant is None and entry.limit is not None
        }
        committed = self._planner.committed(list(limited)) if limited else {}
        now_ms = self._clock.now_ms()
        for partition, offset in committed.items():
            restoring = limited[partition]
            entry = restoring.entries[partition]
            raise_limit = partial(entry.raise_limit, offset, now_ms)
            if self._reader.tasks.get(partition) is restoring and self._guarded(
                restoring, raise_limit
            ):
                self._events.loaded(restoring, entry)
