"""Restores and follows the state of tasks in a thread of its own, so that tasks that run keep running.

For each task: open its databases, decide per store where to begin (`tasks.store_restore`), read the changelogs, write the
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
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rebalance.model import TaskId, TopicPartition
from rebalance.orders import AnyReport
from state_stores.errors import StateStoreError, StoreCorruptedError, StreamsError
from tasks.active_task import ActiveTask
from tasks.errors import TaskCorruptedError
from tasks.learner_task import CopyProgress, LearnerTask
from tasks.ports import ChangelogReader, Clock, OffsetOutOfRangeError
from tasks.processing.record_batch import SourceRecords
from tasks.reading_turns import ReadingTurns
from tasks.restore_plan import RestorePlanner
from tasks.restore_results import Broken, Closed, Restored, RestoreResult
from tasks.start_positions import Grant, StartPosition
from tasks.store_restore import EventKind, LogFacts, RestoreEvent, StoreRestore

__all__ = ["EventKind", "RestoreEvent", "StateUpdater"]

_log = logging.getLogger(__name__)

#: Records of one poll; a poll is folded and written as one batch per task.
_POLL_RECORDS = 20_000
#: How long a poll waits for records: an order that comes meanwhile waits as long.
_POLL_S: Final = 0.01
#: How often it is asked how far inputs are committed that copies of tables are restored from.
_COMMITTED_EVERY_S: Final = 0.5
#: How often it is asked whether the topics that copies would read are still the same.
_TOPICS_EVERY_S: Final = 10.0


@dataclass(slots=True, eq=False)
class _Charge:
    """A task whose state this thread has: to be handed over (`grant`), or followed as a copy (`copy`)."""

    task: ActiveTask
    grant: Grant | None = None
    copy: LearnerTask | None = None
    entries: dict[TopicPartition, StoreRestore] = field(
        default_factory=dict[TopicPartition, StoreRestore]
    )
    starts: Mapping[TopicPartition, StartPosition] | None = None
    topic_ids: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    #: Its stores are open and are what their positions say.
    complete: bool = False
    #: Records read since the grant.
    restored: int = 0
    wiped: bool = False
    #: It was a copy, and the owner before has let go.
    promoted: bool = False

    @property
    def is_awaited(self) -> bool:
        """Return whether nobody works on the task until it runs here, or soon nobody will: others make room for it."""
        return self.promoted or (
            self.copy is not None and self.copy.role == "learner" and self.copy.is_ready
        )


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
        woken: Called when there is something to take.
        say: Sends what copies announce.
        busy: Whether tasks run that must not be slowed.
        lasting: Keep the reader's connections while there is nothing to read, because more will come.
    """

    def __init__(
        self,
        *,
        planner: RestorePlanner,
        make_reader: Callable[[], ChangelogReader],
        clock: Clock,
        wipe: Callable[[ActiveTask], None],
        on_event: Callable[[RestoreEvent], None],
        woken: Callable[[], None],
        say: Callable[[AnyReport], None] = lambda _: None,
        busy: Callable[[], bool] = lambda: False,
        lasting: bool = False,
    ) -> None:
        self._planner = planner
        self._make_reader = make_reader
        self._clock = clock
        self._wipe = wipe
        self._on_event = on_event
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
        self._charges: dict[TaskId, _Charge] = {}
        self._reading: dict[TopicPartition, _Charge] = {}
        self._reader: ChangelogReader | None = None
        self._turns = ReadingTurns(clock, self._stop.wait)
        self._mended: set[TaskId] = set()
        self._next_committed_s = 0.0
        self._next_topics_s = 0.0
        #: Changelog records read since the start, and those still to read for tasks that are to run; for the metrics.
        self.restored_records = 0
        self.remaining_records = 0

    # -- from the worker's loop ------------------------------------------------------------------------------------

    def restore(
        self,
        tasks: Mapping[TaskId, tuple[ActiveTask, Grant]],
        starts: Mapping[TopicPartition, StartPosition] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Restore tasks, in state RESTORING, to run them; where they start is found out unless it is known."""
        charges = [
            _Charge(task, grant=grant, starts=starts, topic_ids=topic_ids or {})
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
                if self._reading and not self._stop.is_set():
                    self._read()
        except BaseException as error:  # noqa: BLE001 - raised again in the worker's thread by take
            self._error = error
        finally:
            for charge in self._charges.values():
                self._suspend(charge)
            self._close_reader()
            self._woken()

    def _carry_out_orders(self) -> None:
        """Do what is ordered; waits for it if there is nothing to read."""
        while not self._orders.empty() or not self._reading:
            if self._orders.empty() and not self._lasting:
                self._close_reader()
            order = self._orders.get()
            if self._stop.is_set():
                return
            order()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _begin(self, charges: Iterable[_Charge]) -> None:
        """Open databases, find out what is to be known, begin to read: all at once, the cluster is asked once."""
        opened: list[_Charge] = []
        for charge in charges:
            self._charges[charge.task.task_id] = charge
            if self._guarded(charge, partial(self._open, charge)):
                opened.append(charge)
        self._find_starts(opened)
        facts = self._planner.look([charge.task for charge in opened])
        for charge in opened:
            self._guarded(charge, partial(self._plan, charge, facts))

    def _open(self, charge: _Charge) -> None:
        if not charge.task.stores.is_open:
            charge.task.stores.open()

    def _find_starts(self, charges: Iterable[_Charge]) -> None:
        """Find out where the inputs of granted tasks begin, for those where it is not known."""
        grants = {
            charge.task.task_id: charge.grant
            for charge in charges
            if charge.grant is not None and charge.starts is None
        }
        if grants:
            starts, topic_ids = self._planner.find_starts(grants)
            for task_id in grants:
                self._charges[task_id].starts = starts
                self._charges[task_id].topic_ids = topic_ids

    def _plan(self, charge: _Charge, facts: Mapping[TopicPartition, LogFacts]) -> None:
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
            entry.stands_at(entry.position, at_end=False, now_ms=entry.known_ms)
        if charge.copy is not None:
            charge.copy.store_uuid = charge.task.stores.identity()
            self._next_topics_s = 0.0
        self._start_reading(charge)
        if charge.grant is not None:
            self._tell_starts(charge)
        self._finish_if_done(charge)
        self._announce_if_empty(charge)

    def _start_reading(self, charge: _Charge) -> None:
        wanted = {
            partition: entry.position
            for partition, entry in charge.entries.items()
            if not entry.is_done and partition not in self._reading
        }
        if not wanted:
            return
        if self._reader is None:
            self._reader = self._make_reader()
            self._reader.assign({})
        self._reader.add(wanted)
        self._reading.update(dict.fromkeys(wanted, charge))
        self._choose_headers(self._reader)

    def _stop_reading(self, charge: _Charge, partitions: Iterable[TopicPartition]) -> None:
        mine = [each for each in partitions if self._reading.get(each) is charge]
        for partition in mine:
            del self._reading[partition]
        self._turns.forget(mine)
        if mine and self._reader is not None:
            self._reader.remove(mine)
            self._choose_headers(self._reader)

    def _choose_headers(self, reader: ChangelogReader) -> None:
        reader.with_headers = any(
            charge.entries[partition].source is not None
            for partition, charge in self._reading.items()
        )

    # -- orders ----------------------------------------------------------------------------------------------------

    def _follow(self, copies: Iterable[LearnerTask]) -> None:
        fresh: list[_Charge] = []
        for copy in copies:
            charge = self._charges.get(copy.task_id)
            if charge is not None and charge.task is copy.task:
                self._follow_on(charge, copy)
            else:
                complete = copy.task.stores.is_open
                fresh.append(_Charge(copy.task, copy=copy, complete=complete))
        self._begin(fresh)

    def _follow_on(self, charge: _Charge, copy: LearnerTask) -> None:
        """Go on with a task that was to run and is revoked while it restores: it has no end any more."""
        self._suspend(charge)
        charge.grant, charge.copy, charge.starts = None, copy, None
        for entry in charge.entries.values():
            entry.end = None
        copy.store_uuid = copy.task.stores.identity()
        self._start_reading(charge)

    def _appoint(self, copy: LearnerTask, role: str, learn_epoch: int) -> None:
        copy.appoint(role, learn_epoch)
        charge = self._charges.get(copy.task_id)
        if charge is not None and charge.copy is copy:
            self._announce_if_empty(charge)

    def _announce_if_empty(self, charge: _Charge) -> None:
        """Announce a copy that has nothing to follow, as it will never be further."""
        if charge.copy is not None and not charge.entries:
            progress = CopyProgress(positions={}, ends={})
            self._announce(charge.copy.moves_on(progress, self._clock.monotonic_s()))

    def _promote(self, task: ActiveTask, grant: Grant) -> None:
        charge = self._charges.get(task.task_id)
        if charge is None or charge.task is not task:
            return  # it broke, which was said
        charge.grant, charge.copy, charge.restored = grant, None, 0
        charge.promoted = True
        self._find_starts([charge])
        assert charge.starts is not None, "found just now"
        self._planner.fix_ends(task, charge.entries.values(), charge.starts, grant)
        for entry in charge.entries.values():
            entry.start, entry.restored = entry.position, 0
        self._guarded(charge, partial(self._go_on, charge))

    def _go_on(self, charge: _Charge) -> None:
        """Go on with a copy whose ends are known now."""
        self._tell_starts(charge)
        now_ms = self._clock.now_ms()
        for entry in charge.entries.values():
            if entry.limit is not None and entry.end is not None:
                charge.restored += entry.may_go_to(entry.end, now_ms)
            entry.stands_at(entry.position, at_end=False, now_ms=now_ms)
        self._finish_if_done(charge)

    def _remove(self, task: ActiveTask) -> None:
        charge = self._charges.get(task.task_id)
        if charge is not None and charge.task is task:
            self._suspend(charge)
            self._stop_reading(charge, charge.entries)
            del self._charges[task.task_id]
        self._close(task, task.close)

    def _close(self, task: ActiveTask, close: Callable[[], None]) -> None:
        try:
            close()
        except StateStoreError as error:
            _log.warning("task %s: %s", task.task_id, error)
        self._results.put(Closed(task=task))

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _guarded(self, charge: _Charge, action: Callable[[], object]) -> bool:
        """Do something with a task's disk; return whether it went well. Damage is mended once."""
        try:
            action()
        except (StateStoreError, TaskCorruptedError) as error:
            self._stop_reading(charge, charge.entries)
            self._mended.add(charge.task.task_id)
            if charge.wiped or not isinstance(error, StoreCorruptedError | TaskCorruptedError):
                self._give_up(charge, error)
            else:
                self._wipe_damaged(charge, error)
            return False
        return True

    def _wipe_damaged(self, charge: _Charge, error: Exception) -> None:
        task = charge.task
        _log.warning("task %s: %s; wiping it and restoring from the changelog", task.task_id, error)
        if charge.copy is not None:
            self._announce(charge.copy.begins_anew("its state is damaged"))
        with suppress(StateStoreError):
            task.stores.close()  # what could not be made durable is deleted
        self._wipe(task)
        charge.wiped, charge.complete, charge.entries = True, False, {}
        self._begin([charge])

    def _give_up(self, charge: _Charge, error: StateStoreError | TaskCorruptedError) -> None:
        del self._charges[charge.task.task_id]
        self._close(charge.task, charge.task.close)
        self._results.put(Broken(task=charge.task, error=error))
        self._woken()

    def _begin_anew(self, error: OffsetOutOfRangeError) -> None:
        """Restore a store from the beginning, because the log has lost what comes next."""
        charge = self._reading.get(error.partition)
        if charge is None:
            return
        _log.warning("task %s: %s", charge.task.task_id, error)
        self._stop_reading(charge, charge.entries)
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
        reader = self._reader
        assert reader is not None, "something is read"
        self._turns.share(reader, [charge.entries[each] for each, charge in self._reading.items()])
        self._keep_informed()
        busy = self._busy() or any(each.is_awaited for each in self._charges.values())
        self._count_remaining()
        try:
            runs = reader.poll(self._turns.records(_POLL_RECORDS, busy=busy), _POLL_S)
        except OffsetOutOfRangeError as error:
            self._begin_anew(error)
            return
        begin_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        self._mended.clear()
        changed: dict[StoreRestore, None] = {}
        for run in runs:
            self._apply(run, changed)
        for entry in changed:
            if entry.told:
                self._on_event(entry.event("batch"))
        self._look_at_positions(reader, now_ms)
        self._count_remaining()
        if busy and runs:
            self._turns.leave_room(sum(map(len, runs)), self._clock.monotonic_s() - begin_s)

    def _apply(self, run: SourceRecords, changed: dict[StoreRestore, None]) -> None:
        partition = TopicPartition(run.topic, run.partition)
        charge = self._reading.get(partition)
        if charge is None or charge.task.task_id in self._mended:
            return  # fetched for what is not read any more, or begins anew
        entry = charge.entries[partition]

        def write() -> None:
            applied = entry.apply(run)
            if charge.grant is not None:
                charge.restored += applied

        self.restored_records += len(run)
        if self._guarded(charge, write):
            changed[entry] = None

    def _look_at_positions(self, reader: ChangelogReader, now_ms: int) -> None:
        positions, ends = reader.positions(), reader.end_offsets()
        charges = dict.fromkeys(self._reading.values())
        for charge in charges:
            if charge.task.task_id not in self._mended:
                self._guarded(charge, partial(self._stand, charge, positions, ends, now_ms))

    def _stand(
        self,
        charge: _Charge,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> None:
        """Note where the reader stands in a task's changelogs."""
        for partition, entry in charge.entries.items():
            position = positions.get(partition)
            if position is not None and partition in self._reading:
                at_end = charge.grant is None and ends.get(partition) == position
                entry.stands_at(position, at_end=at_end, now_ms=now_ms)
        self._finish_if_done(charge)
        if charge.copy is not None:
            progress = CopyProgress(
                positions={each: entry.position for each, entry in charge.entries.items()},
                ends={
                    each: ends.get(each) if entry.limit is None else entry.limit
                    for each, entry in charge.entries.items()
                },
            )
            self._announce(charge.copy.moves_on(progress, self._clock.monotonic_s()))

    def _announce(self, report: AnyReport | None) -> None:
        if report is not None:
            self._say(report)

    def _finish_if_done(self, charge: _Charge) -> None:
        """Stop reading what has come to its end; hand the task over when everything has."""
        if charge.grant is None:
            return
        done = [entry for entry in charge.entries.values() if entry.is_done]
        self._stop_reading(charge, [entry.partition for entry in done])
        for entry in done:
            if entry.told:
                self._on_event(entry.event("end"))
                entry.told = False
        if len(done) == len(charge.entries):
            for entry in done:
                entry.keep_position()
            del self._charges[charge.task.task_id]
            assert charge.starts is not None, "a granted task's starts are found first"
            self._results.put(
                Restored(
                    task=charge.task,
                    starts={each: charge.starts[each] for each in charge.task.inputs},
                    topic_ids=charge.topic_ids,
                    restored=charge.restored,
                )
            )
            self._woken()

    def _tell_starts(self, charge: _Charge) -> None:
        for entry in charge.entries.values():
            if not entry.is_done:
                entry.told = True
                self._on_event(entry.event("start"))

    def _suspend(self, charge: _Charge) -> None:
        for entry in charge.entries.values():
            if entry.told:
                self._on_event(entry.event("suspended"))
                entry.told = False

    def _count_remaining(self) -> None:
        entries = [charge.entries[partition] for partition, charge in self._reading.items()]
        self.remaining_records = sum(
            max(entry.end - entry.position, 0) for entry in entries if entry.end is not None
        )

    # -- what the cluster tells meanwhile ---------------------------------------------------------------------------

    def _keep_informed(self) -> None:
        """Ask the cluster now and then for what copies need to know."""
        now_s = self._clock.monotonic_s()
        try:
            if now_s >= self._next_committed_s:
                self._next_committed_s = now_s + _COMMITTED_EVERY_S
                self._let_inputs_in()
            copies = [each for each in self._charges.values() if each.copy is not None]
            if copies and now_s >= self._next_topics_s:
                self._next_topics_s = now_s + _TOPICS_EVERY_S
                self._planner.get_ready(
                    [partition for charge in copies for partition in charge.task.inputs]
                )
        except StreamsError as error:
            # Copies know less for a while; whoever needs the cluster says more.
            _log.warning("could not ask about the inputs of copies: %s", error)

    def _let_inputs_in(self) -> None:
        """Let copies of tables have what is committed of their inputs by now."""
        limited = {
            partition: charge
            for partition, charge in self._reading.items()
            if charge.grant is None and charge.entries[partition].limit is not None
        }
        committed = self._planner.committed(list(limited)) if limited else {}
        now_ms = self._clock.now_ms()
        for partition, offset in committed.items():
            charge = limited[partition]
            let_in = partial(charge.entries[partition].may_go_to, offset, now_ms)
            if self._reading.get(partition) is charge:
                self._guarded(charge, let_in)
