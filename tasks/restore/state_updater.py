"""Restores and follows the state of tasks in a thread of its own, so that tasks that run keep running.

For each task: open its databases, decide per store where to begin (`tidewheel.tasks.restore.store_restore`), read the changelogs, write the
last value per key. A task that is to run is read to ends that were fixed before and handed over; a copy is followed
until it is promoted (read on to given ends, then handed over as it stands) or dropped. Everything else that waits for
the cluster or the disk while tasks run is done here too: finding where a granted task begins, opening and closing
databases.

One reader reads all of it. While a task that is to run is restored, copies get a fifth of the time.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import AnyReport
from tidewheel.state_stores.errors import StateStoreError, StoreCorruptedError, StreamsError
from tidewheel.tasks.errors import StartRefusedError, TaskCorruptedError
from tidewheel.tasks.ports import ChangelogReader, Clock, OffsetOutOfRangeError
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.restore_planner import RestorePlanner
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.run_restores import RunRestores
from tidewheel.tasks.restore.start_positions import Grant, StartPosition
from tidewheel.tasks.restore.store_changelog_reader import (
    Reach,
    ReaderOffsets,
    ReadingTurns,
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
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.learner_task import LearnerTask

__all__ = ["EventKind", "RestoreEvent", "StandbyUpdateEvent", "StateUpdater"]

_log = logging.getLogger(__name__)

#: Records of one poll; a poll is folded and written as one batch per task.
_POLL_RECORDS = 20_000
#: How often it is asked how far inputs are committed that copies of tables are restored from.
_COMMITTED_EVERY_S: Final = 0.5
#: How often it is asked whether the topics that copies would read are still the same.
_TOPICS_EVERY_S: Final = 10.0
#: How often it is checked whether restores go on.
_STALLS_EVERY_S: Final = 1.0
#: How often it is logged how far a long restore is.
_SAY_EVERY_S: Final = 5.0


class StateUpdater:
    """The restoring thread of one worker.

    The worker's loop gives orders (`restore`, `follow`, `promote`, `remove`, `close_stores`), which are carried out in
    their order, and collects what became of them with `take`. An error that concerns more than one task's disk ends the
    thread and is raised by `take`.

    Args:
        planner: Finds out where to begin and to end.
        make_reader: Makes the one reader.
        clock: Time.
        wipe: Deletes a task's database, which is closed.
        on_event: Told how restoring goes on; not about copies.
        on_standby_update: Told how copies go on.
        woken: Called when there is something to take.
        say: Sends what copies announce.
        busy: Whether tasks run that must not be slowed.
        lasting: Keep the reader's connections while there is nothing to read, because more will come.
        runs: What makes sorted runs for stores that are far behind; without it everything is read here.
    """

    def __init__(
        self,
        *,
        planner: RestorePlanner,
        make_reader: Callable[[], ChangelogReader],
        clock: Clock,
        wipe: Callable[[ActiveTask], None],
        on_event: Callable[[RestoreEvent], None],
        on_standby_update: Callable[[StandbyUpdateEvent], None] = lambda _: None,
        woken: Callable[[], None],
        say: Callable[[AnyReport], None] = lambda _: None,
        busy: Callable[[], bool] = lambda: False,
        lasting: bool = False,
        runs: RunSettings | None = None,
    ) -> None:
        self._planner = planner
        self._clock = clock
        self._wipe = wipe
        self._woken = woken
        self._say = say
        self._busy = busy
        self._lasting = lasting
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[RestoreResult] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The thread's own.
        self._charges: dict[TaskId, RestoringTask] = {}
        self._reader = StoreChangelogReader(make_reader, ReadingTurns(clock, self._stop.wait))
        self._events = RestoreEvents(on_event, on_standby_update)
        #: None without a restore helper: this thread reads everything itself.
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
        self._mended: set[TaskId] = set()
        self._next_committed_s = 0.0
        self._next_topics_s = 0.0
        self._next_stalls_s = 0.0
        self._stalls = Stalls()
        #: Why restores of tasks do not go on, by task; any thread may read it.
        self.waits: Mapping[TaskId, str] = {}
        #: Changelog records read since the start, and those still to read for tasks that are to run; for the metrics.
        self.restored_records = 0
        self.remaining_records = 0
        self._rate = RestoreRate()
        self._next_said_s = 0.0

    # -- from the worker's loop ------------------------------------------------------------------------------------

    def restore(
        self,
        tasks: Mapping[TaskId, tuple[ActiveTask, Grant]],
        starts: Mapping[TopicPartition, StartPosition] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Restore tasks, in state RESTORING, to run them; where they start is found out unless it is known."""
        charges = [
            RestoringTask(task, grant=grant, starts=starts, topic_ids=topic_ids or {})
            for task, grant in tasks.values()
        ]
        self._order(partial(self._begin, charges))

    def follow(self, copies: Sequence[LearnerTask]) -> None:
        """Keep copies; their tasks are in state RESTORING, with their stores open or not."""
        self._order(partial(self._follow, copies))

    def appoint(self, copy: LearnerTask, role: str, learn_epoch: int) -> None:
        """Give a copy another role or epoch."""
        self._order(partial(self._appoint, copy, role, learn_epoch))

    def promote(self, task: ActiveTask, grant: Grant) -> None:
        """Read a copy on to the grant's ends, and hand its task over."""
        self._order(partial(self._promote, task, grant))

    def remove(self, task: ActiveTask) -> None:
        """Forget a task and close it, in whatever state of restoring it is."""
        self._order(partial(self._remove, task))

    def do(self, action: Callable[[], None]) -> None:
        """Do something else that may take its time."""
        self._order(action)

    def close_stores(self, task: ActiveTask) -> None:
        """Close the databases of a task that was retired."""
        self._order(partial(self._close, task, task.stores.close))

    def take(self) -> list[RestoreResult]:
        """Return what has become of orders since the last call; raises what stopped the thread."""
        if self._error is not None:
            raise self._error
        results: list[RestoreResult] = []
        while not self._results.empty():
            results.append(self._results.get_nowait())
        return results

    def reached(self, task_id: TaskId) -> dict[TopicPartition, int]:
        """Return how far the stores of a task are restored, as far as that has begun; any thread may ask."""
        charge = self._charges.get(task_id)
        if charge is None:
            return {}
        return {
            each: max(entry.position, entry.ahead) for each, entry in list(charge.entries.items())
        }

    @property
    def restore_rate(self) -> float:
        """Return how many records per second are restored for tasks that are to run; 0 while none is."""
        return self._rate.per_second if self.remaining_records else 0.0

    @property
    def restore_remaining_s(self) -> float:
        """Return how many seconds that will take; -1 while it can't be told, 0 while nothing is restored."""
        left_s = self._rate.seconds_for(self.remaining_records)
        return -1.0 if left_s is None else left_s

    def close(self) -> None:
        """Stop, and wait for the thread; databases that are open are left to the caller."""
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

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._carry_out_orders()
                if self._reader.tasks and not self._stop.is_set():
                    self._read()
        except BaseException as error:  # noqa: BLE001 - raised again in the worker's thread by take
            self._error = error
        finally:
            for charge in self._charges.values():
                self._events.suspended(charge)
            if self._runs is not None:
                self._runs.close()
            self._reader.close()
            self._woken()

    def _carry_out_orders(self) -> None:
        """Do what is ordered; waits for it if there is nothing to read."""
        while not (self._orders.empty() and self._reader.tasks):
            if self._orders.empty() and not self._lasting:
                self._reader.close()
            order = self._orders.get()
            if self._stop.is_set():
                return
            order()

    def _begin(self, charges: Iterable[RestoringTask]) -> None:
        """Open databases, find out what is to be known, begin to read: all at once, the cluster is asked once."""
        opened: list[RestoringTask] = []
        for charge in charges:
            self._charges[charge.task.task_id] = charge
            if self._guarded(charge, partial(self._open, charge)):
                opened.append(charge)
        opened = self._find_starts(opened)
        self._planner.look_at_ranges(each.task for each in opened if each.copy is not None)
        facts = self._planner.look([charge.task for charge in opened])
        # All are checked before the first one may run.
        ends = {each: about.end for each, about in facts.items()}
        opened = [charge for charge in opened if self._may_start(charge, ends)]
        for charge in opened:
            self._guarded(charge, partial(self._plan, charge, facts))

    def _open(self, charge: RestoringTask) -> None:
        if not charge.task.stores.is_open:
            charge.task.stores.open()

    def _find_starts(self, charges: Sequence[RestoringTask]) -> list[RestoringTask]:
        """Look up the starts of granted tasks that lack them; return the tasks that may start, and the copies."""
        grants = {
            charge.task.task_id: charge.grant
            for charge in charges
            if charge.grant is not None and charge.starts is None
        }
        if not grants:
            return list(charges)
        starts, topic_ids, refused = self._planner.find_starts(grants)
        for task_id, grant in grants.items():
            charge = self._charges[task_id]
            if task_id in refused:
                self._refuse(charge, grant, refused[task_id])
            else:
                charge.starts, charge.topic_ids = starts, topic_ids
        return [each for each in charges if not each.refused]

    def _may_start(self, charge: RestoringTask, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether the state of a task agrees with its offsets; otherwise it is refused, or given up as damaged."""
        if charge.grant is None or charge.starts is None:
            return True
        try:
            return self._guarded(
                charge, partial(self._planner.check_state, charge.task, ends, charge.starts)
            )
        except StartRefusedError as error:
            self._refuse(charge, charge.grant, error)
            return False

    def _refuse(self, charge: RestoringTask, grant: Grant, error: StreamsError) -> None:
        self._let_go(charge)
        charge.refused = True
        self._results.put(RefusedTask(task=charge.task, grant=grant, error=error))
        self._woken()

    def _plan(self, charge: RestoringTask, facts: Mapping[TopicPartition, LogFacts]) -> None:
        entries = self._planner.restores(
            charge.task,
            facts,
            starts=charge.starts,
            grant=charge.grant,
            complete=charge.complete,
        )
        charge.complete = False
        charge.entries = {entry.partition: entry for entry in entries}
        for entry in entries:
            entry.advance_to(entry.position, at_end=False, now_ms=entry.known_ms)
        if charge.copy is not None:
            charge.copy.store_uuid = charge.task.stores.identity()
            self._next_topics_s = 0.0
        if not self._begin_runs(charge, facts):
            return
        if charge.copy is not None:
            self._events.started(charge)  # before anything is loaded
        self._reader.start(charge)
        if charge.grant is not None:
            self._events.started(charge)
        self._finish_if_done(charge)
        self._announce_if_empty(charge)

    def _begin_runs(self, charge: RestoringTask, facts: Mapping[TopicPartition, LogFacts]) -> bool:
        """Order sorted runs for stores that are far behind; False if the task's disk turned out to be damaged."""
        if self._runs is None:
            return True
        for entry in list(charge.entries.values()):
            self._runs.begin(charge, entry, facts[entry.partition])
            if charge.entries.get(entry.partition) is not entry:
                return False  # the task was given up, or its restore was restarted
        return True

    # -- orders ----------------------------------------------------------------------------------------------------

    def _follow(self, copies: Iterable[LearnerTask]) -> None:
        fresh: list[RestoringTask] = []
        for copy in copies:
            charge = self._charges.get(copy.task_id)
            refused = charge is not None and charge.refused
            if charge is not None and charge.task is copy.task and not refused:
                self._follow_on(charge, copy)
            else:
                complete = copy.task.stores.is_open and not refused
                fresh.append(RestoringTask(copy.task, copy=copy, complete=complete))
        self._begin(fresh)

    def _follow_on(self, charge: RestoringTask, copy: LearnerTask) -> None:
        """Go on with a task that was to run and is revoked while it restores: it has no end any more."""
        self._events.suspended(charge)
        charge.grant, charge.copy, charge.starts = None, copy, None
        self._planner.lose_sight(charge.task)
        self._next_topics_s = 0.0
        for entry in charge.entries.values():
            entry.end, entry.start, entry.restored = None, entry.position, 0
        copy.store_uuid = copy.task.stores.identity()
        self._events.started(charge)
        self._reader.start(charge)

    def _appoint(self, copy: LearnerTask, role: str, learn_epoch: int) -> None:
        copy.appoint(role, learn_epoch)
        charge = self._charges.get(copy.task_id)
        if charge is not None and charge.copy is copy:
            self._announce_if_empty(charge)

    def _announce_if_empty(self, charge: RestoringTask) -> None:
        """Announce a copy that has nothing to follow, as it will never be further."""
        if not charge.entries:
            self._announce_progress(charge, {})

    def _promote(self, task: ActiveTask, grant: Grant) -> None:
        charge = self._charges.get(task.task_id)
        if charge is None or charge.task is not task:
            return  # it broke, which was said
        self._events.suspended(charge, "PROMOTED")
        charge.grant, charge.copy, charge.restored = grant, None, 0
        charge.promoted = True
        if not self._find_starts([charge]):
            return
        assert charge.starts is not None, "found just now"
        positions = {each: entry.position for each, entry in charge.entries.items()}
        if not self._may_start(charge, positions):
            return
        self._planner.fix_ends(task, charge.entries.values(), charge.starts, grant)
        for entry in charge.entries.values():
            entry.start, entry.restored = entry.position, 0
        self._guarded(charge, partial(self._go_on, charge))

    def _go_on(self, charge: RestoringTask) -> None:
        """Go on with a copy whose ends are known now."""
        self._events.started(charge)
        now_ms = self._clock.now_ms()
        for entry in charge.entries.values():
            if entry.limit is not None and entry.end is not None:
                charge.restored += entry.raise_limit(entry.end, now_ms)
            entry.advance_to(entry.position, at_end=False, now_ms=now_ms)
        self._finish_if_done(charge)

    def _remove(self, task: ActiveTask) -> None:
        charge = self._charges.get(task.task_id)
        if charge is None or charge.task is not task:
            self._close(task, task.close)
            return
        with self._events.leaving(charge):
            self._let_go(charge)
            del self._charges[task.task_id]
            self._close(task, task.close)

    def _let_go(self, charge: RestoringTask) -> None:
        """Read nothing more for a task, here or elsewhere."""
        self._reader.stop(charge, charge.entries)
        if self._runs is not None:
            self._runs.stop(charge)

    def _close(self, task: ActiveTask, close: Callable[[], None]) -> None:
        try:
            close()
        except StateStoreError as error:
            _log.warning("task %s: %s", task.task_id, error)
        self._results.put(ClosedTask(task=task))

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _guarded(self, charge: RestoringTask, action: Callable[[], object]) -> bool:
        """Do something with a task's disk; return whether it went well. Damage is mended once."""
        try:
            action()
        except (StateStoreError, TaskCorruptedError) as error:
            self._let_go(charge)
            self._mended.add(charge.task.task_id)
            if charge.wiped or not isinstance(error, StoreCorruptedError | TaskCorruptedError):
                self._give_up(charge, error)
            else:
                self._wipe_damaged(charge, error)
            return False
        return True

    def _wipe_damaged(self, charge: RestoringTask, error: Exception) -> None:
        task = charge.task
        _log.warning("task %s: %s; wiping it and restoring from the changelog", task.task_id, error)
        if charge.copy is not None:
            self._announce(charge.copy.begins_anew("its state is damaged"))
        with suppress(StateStoreError):
            task.stores.close()  # what could not be made durable is deleted
        self._wipe(task)
        charge.wiped, charge.complete, charge.entries = True, False, {}
        self._begin([charge])

    def _give_up(self, charge: RestoringTask, error: StateStoreError | TaskCorruptedError) -> None:
        with self._events.leaving(charge):
            del self._charges[charge.task.task_id]
            self._close(charge.task, charge.task.close)
        self._results.put(FailedTask(task=charge.task, grant=charge.grant, error=error))
        self._woken()

    def _begin_anew(self, error: OffsetOutOfRangeError) -> None:
        """Restore a store from the beginning, because the log has lost what comes next."""
        charge = self._reader.tasks.get(error.partition)
        if charge is None:
            return
        _log.warning("task %s: %s", charge.task.task_id, error)
        self._let_go(charge)
        if charge.copy is not None:
            self._announce(charge.copy.begins_anew("the changelog has lost what comes next"))
        store = charge.entries[error.partition].store
        if self._guarded(charge, partial(self._forget, charge.task, store)):
            self._begin([charge])

    def _forget(self, task: ActiveTask, store: str) -> None:
        with task.stores.trusted():
            task.stores.forget(store)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._keep_informed()
        busy = self._busy() or any(each.is_awaited for each in self._charges.values())
        self._count_remaining()
        try:
            runs = self._reader.poll(_POLL_RECORDS, busy=busy)
        except OffsetOutOfRangeError as error:
            self._begin_anew(error)
            return
        begin_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        self._mended.clear()
        changed: dict[StoreRestore, RestoringTask] = {}
        for run in runs:
            self._apply(run, changed)
        for entry, charge in changed.items():
            self._tell_batch(charge, entry)
        self._look_at_positions(now_ms)
        if begin_s >= self._next_stalls_s:
            self._next_stalls_s = begin_s + _STALLS_EVERY_S
            self._look_for_stalls(begin_s)
        self._count_remaining()
        if busy and runs:
            self._reader.leave_room(sum(map(len, runs)), self._clock.monotonic_s() - begin_s)

    def _apply(self, run: SourceRecords, changed: dict[StoreRestore, RestoringTask]) -> None:
        partition = TopicPartition(run.topic, run.partition)
        charge = self._reader.tasks.get(partition)
        if charge is None or charge.task.task_id in self._mended:
            return  # fetched for what is not read any more, or begins anew
        entry = charge.entries[partition]

        def write() -> None:
            applied = entry.apply(run)
            if charge.grant is not None:
                charge.restored += applied

        self.restored_records += len(run.offsets)
        if self._guarded(charge, write):
            changed[entry] = charge

    def _look_at_positions(self, now_ms: int) -> None:
        standing = self._reader.offsets()
        for charge in dict.fromkeys(self._reader.tasks.values()):
            if charge.task.task_id not in self._mended:
                self._guarded(charge, partial(self._stand, charge, standing, now_ms))

    def _stand(self, charge: RestoringTask, standing: ReaderOffsets, now_ms: int) -> None:
        """Note where the reader stands in a task's changelogs."""
        for partition, entry in charge.entries.items():
            position = standing.positions.get(partition)
            if position is not None and self._reader.tasks.get(partition) is charge:
                # Nothing is compacted beyond the stable offset, so a copy that has come to it misses no deletes.
                at_end = charge.grant is None and standing.stable.get(partition) == position
                entry.advance_to(position, at_end=at_end, now_ms=now_ms)
        self._finish_if_done(charge)
        self._announce_progress(charge, standing.ends)

    def _announce(self, report: AnyReport | None) -> None:
        if report is not None:
            self._say(report)

    def _finish_if_done(self, charge: RestoringTask) -> None:
        """Stop reading what has come to its end; hand the task over when everything has."""
        if charge.grant is None:
            return
        done = [entry for entry in charge.entries.values() if entry.is_done]
        if done:
            self._reader.stop(charge, [entry.partition for entry in done])
            for entry in done:
                self._events.ended(entry)
        if len(done) == len(charge.entries):
            for entry in done:
                entry.keep_position()
            del self._charges[charge.task.task_id]
            assert charge.starts is not None, "a granted task's starts are found first"
            self._results.put(
                RestoredTask(
                    task=charge.task,
                    grant=charge.grant,
                    starts={each: charge.starts[each] for each in charge.task.inputs},
                    topic_ids=charge.topic_ids,
                    restored=charge.restored,
                )
            )
            self._woken()

    def _count_remaining(self) -> None:
        entries = [charge.entries[partition] for partition, charge in self._reader.tasks.items()]
        if self._runs is not None:
            entries += self._runs.entries()
        self.remaining_records = sum(entry.remaining for entry in entries)
        now_s = self._clock.monotonic_s()
        self._rate.note(self.restored_records, now_s)
        if self.remaining_records and now_s >= self._next_said_s:
            if self._next_said_s:
                _log.info(
                    "%s", progress_text(self.restored_records, self.remaining_records, self._rate)
                )
            self._next_said_s = now_s + _SAY_EVERY_S
        elif not self.remaining_records:
            self._next_said_s = 0.0

    # -- what is made elsewhere -------------------------------------------------------------------------------------

    def _moves_on(self, charge: RestoringTask, entry: StoreRestore, records: int) -> None:
        """Note that a store has come further elsewhere."""
        self.restored_records += records
        if charge.grant is not None:
            charge.restored += records
        self._tell_batch(charge, entry)
        self._count_remaining()
        self._announce_progress(charge, self._reader.offsets().ends)

    def _goes_on(self, charge: RestoringTask) -> None:
        """Read what a store needs beyond its runs, or without any."""
        self._reader.start(charge)
        self._finish_if_done(charge)

    def _tell_batch(self, charge: RestoringTask, entry: StoreRestore) -> None:
        entry.rate.note(entry.restored, self._clock.monotonic_s())
        self._events.loaded(charge, entry)

    def _announce_progress(self, charge: RestoringTask, ends: Mapping[TopicPartition, int]) -> None:
        if charge.copy is not None:
            self._announce(charge.copy.moves_on(charge.progress(ends), self._clock.monotonic_s()))

    def _look_for_stalls(self, now_s: float) -> None:
        """Report restores that do not go on, with the reason."""
        ends = self._reader.offsets().ends if self._reader.tasks else {}
        reaches: dict[TopicPartition, Reach] = {}
        for partition, charge in self._reader.tasks.items():
            entry = charge.entries[partition]
            end = entry.end or ends.get(partition)
            if entry.limit is None and end is not None:
                reaches[partition] = Reach(entry.position, end)
        stalls = self._stalls.check(reaches, now_s)
        known = {
            task_id: text
            for task_id, text in self.waits.items()
            if (charge := self._charges.get(task_id)) is not None
            and any(self._stalls.is_stalled(each, now_s) for each in charge.entries)
        }
        for stall, text in zip(
            stalls, self._planner.explain(stalls) if stalls else (), strict=True
        ):
            charge = self._reader.tasks.get(stall.partition)
            if charge is not None:
                what = "restoring" if charge.copy is None else f"the {charge.copy.role}"
                _log.warning("task %s: %s has made %s", charge.task.task_id, what, text)
                known[charge.task.task_id] = text
        self.waits = known

    # -- what the cluster tells meanwhile ---------------------------------------------------------------------------

    def _keep_informed(self) -> None:
        """Ask the cluster now and then for what copies need to know."""
        now_s = self._clock.monotonic_s()
        try:
            if now_s >= self._next_committed_s:
                self._next_committed_s = now_s + _COMMITTED_EVERY_S
                self._let_inputs_in()
            copies = [each.task for each in self._charges.values() if each.copy is not None]
            if copies and now_s >= self._next_topics_s:
                self._next_topics_s = now_s + _TOPICS_EVERY_S
                self._planner.get_ready(copies)
        except StreamsError as error:
            # Copies know less for a while; whoever needs the cluster says more.
            _log.warning("could not ask about the inputs of copies: %s", error)

    def _let_inputs_in(self) -> None:
        """Let copies of tables have what is committed of their inputs by now."""
        limited = {
            partition: charge
            for charge in dict.fromkeys(self._reader.tasks.values())
            for partition, entry in charge.entries.items()
            if charge.grant is None and entry.limit is not None
        }
        committed = self._planner.committed(list(limited)) if limited else {}
        now_ms = self._clock.now_ms()
        for partition, offset in committed.items():
            charge = limited[partition]
            entry = charge.entries[partition]
            let_in = partial(entry.raise_limit, offset, now_ms)
            if self._reader.tasks.get(partition) is charge and self._guarded(charge, let_in):
                self._events.loaded(charge, entry)
