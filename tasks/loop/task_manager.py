"""Task orders: starts, follows and releases tasks, while the other tasks continue.

Under fixed assignment all tasks start together. In a group they come and go by orders
(`tidewheel.rebalance.protocol.orders`), each answered by a report.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition, parse_position_key, position_key
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    DropCopy,
    EraseRows,
    KeepCopy,
    ReleaseTask,
    RowsErased,
    RunTask,
    SetRest,
    TaskBroken,
    TaskReleased,
    TaskRunning,
    Welcome,
)
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.user_code import cause_text, located, log_trace
from tidewheel.tasks.commit.commit_round import CommitRound, changelog_positions
from tidewheel.tasks.errors import OutdatedGrantError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.loop.erasures import Erasures
from tidewheel.tasks.processing.engine.drops import most_frequent
from tidewheel.tasks.restore.start_positions import Grant, StartPosition, old_maps, operator_times
from tidewheel.tasks.restore.state_updater import StateUpdater
from tidewheel.tasks.restore.store_restore import ClosedTask, FailedTask, RefusedTask, RestoredTask
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.range_status import blocking, busiest, long_running_records, range_count
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import WorkerInput
from tidewheel.tasks.task.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)

#: Seconds that a release waits for running calls of user code.
_IN_PROGRESS_S: Final = 0.1
#: Part of `drain_timeout_ms` in which a released task's sink flushes; the rest is for the stop.
_FLUSH_PART: Final = 0.8
#: Time in which a group assigns the first tasks to a new worker.
_FIRST_TASKS_S: Final = 2.0
#: Characters of a sink's problem in a status.
_PROBLEM_MAX: Final = 300


class AssignedTasks(msgspec.Struct):
    """Tasks assigned to one worker; kept when it restarts them.

    Attributes:
        owned: Tasks that it may commit for.
        released: Answers to finished release orders, which may be repeated.
        wiped: Damaged tasks, to restore without a snapshot.
        erased: Answers to erasure orders by request, for repeated orders.
        rest: Order of the group to take no external input.
    """

    owned: dict[TaskId, Grant] = msgspec.field(default_factory=dict[TaskId, Grant])
    copies: dict[TaskId, KeepCopy] = msgspec.field(default_factory=dict[TaskId, KeepCopy])
    releasing: dict[TaskId, ReleaseTask] = msgspec.field(default_factory=dict[TaskId, ReleaseTask])
    released: dict[TaskId, TaskReleased] = msgspec.field(default_factory=dict[TaskId, TaskReleased])
    wiped: frozenset[TaskId] = frozenset()
    erased: dict[str, RowsErased] = msgspec.field(default_factory=dict[str, RowsErased])
    rest: Rest | None = None

    def drop_missing_inputs(self, plan: ApplicationPlan) -> None:
        """Drop start positions of inputs missing in `plan`: a later topic needs new ones."""
        for task_id, grant in self.owned.items():
            inputs = plan.inputs(task_id)
            remaining = {
                partition: offset
                for partition, offset in grant.input.items()
                if partition in inputs
            }
            self.owned[task_id] = msgspec.structs.replace(grant, input=remaining)


class TaskManager:
    """The tasks of one worker, in all roles; its loop calls it.

    Attributes:
        tasks: Owned tasks, including restoring ones.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        assigned_tasks: AssignedTasks,
        running: dict[TaskId, Task],
        *,
        is_known_task: Callable[[TaskId], bool],
        make_task: Callable[[TaskId, StateManager | None], Task],
        updater: StateUpdater,
        work: WorkerInput,
        commits: CommitRound,
        commit: Callable[[], None],
        send: Callable[[AnyReport], None] | None,
        on_running: Callable[[bool], None],
        before_start: Callable[[Task], None] = lambda _task: None,
    ) -> None:
        self._settings = settings
        self._assigned = assigned_tasks
        self._is_known_task = is_known_task
        self._make_task = make_task
        self._updater = updater
        self._work = work
        self._commits = commits
        self._commit = commit
        self._send = send
        self._on_running = on_running
        self._before_start = before_start
        self._reported_running: bool | None = None
        #: True until the group has assigned a task, or `_FIRST_TASKS_S` are over without one. An
        #: empty worker counts as running, so its state would change twice in its first moments.
        self._awaits_first_tasks = send is not None
        self._first_tasks_until_s: float | None = None
        #: True once a task has run since the tasks' last start.
        self._has_run = False
        self.tasks: dict[TaskId, Task] = {}
        self.running = running
        #: Tasks that take no more input, since they are to be released; the loop's clock (s) at
        #: which they no longer wait for their sinks.
        self.ending: dict[TaskId, float] = {}
        self.copies: dict[TaskId, LearnerTask] = {}
        #: The last error of each task that can't run here, until it runs.
        self._broken: dict[TaskId, str] = {}
        #: Closed tasks; the updater closes their databases.
        self._leaving: dict[Task, None] = {}
        self._erasures = Erasures(
            assigned_tasks.erased, self.running, commits, commit, self._report
        )

    @property
    def is_restoring(self) -> bool:
        return len(self.running) < len(self.tasks)

    # -- beginning and end -----------------------------------------------------------------------------------------

    def begin(
        self,
        starts: Mapping[TopicPartition, StartPosition] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Start the tasks in `held`; unknown start positions are read from the cluster.

        Tasks whose topics are gone are dropped. The group revokes them when no worker reports them.
        """
        self._forget_unknown()
        self._work.set_rest(self._assigned.rest)
        created = {
            task_id: (self._create(task_id), grant)
            for task_id, grant in sorted(self._assigned.owned.items())
        }
        self.tasks.update({task_id: task for task_id, (task, _) in created.items()})
        self._report_running()
        if created:
            wiped, self._assigned.wiped = self._assigned.wiped, frozenset()
            self._updater.restore(created, starts, topic_ids, wiped=wiped)
        self._follow(
            [
                (self._create(task_id), order)
                for task_id, order in sorted(self._assigned.copies.items())
            ]
        )

    def _forget_unknown(self) -> None:
        assigned = self._assigned
        for task_id in [
            task_id
            for task_id in (*assigned.owned, *assigned.copies)
            if not self._is_known_task(task_id)
        ]:
            assigned.owned.pop(task_id, None)
            assigned.releasing.pop(task_id, None)
            assigned.copies.pop(task_id, None)

    def _create(self, task_id: TaskId, stores: StateManager | None = None) -> Task:
        task = self._make_task(task_id, stores)
        task.life.cycle.move_to(TaskState.RESTORING)
        return task

    def _report_running(self) -> None:
        running = not self.is_restoring
        if self.tasks:
            self._awaits_first_tasks = False
        if running is not self._reported_running and not self._awaits_first_tasks:
            self._reported_running = running
            self._on_running(running)

    def settle(self, now_s: float) -> None:
        """Report an empty worker as running once the time for its first tasks is over."""
        if not self._awaits_first_tasks:
            return
        if self._first_tasks_until_s is None:
            self._first_tasks_until_s = now_s + _FIRST_TASKS_S
        if now_s >= self._first_tasks_until_s:
            self._awaits_first_tasks = False
            self._report_running()

    def close(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close all tasks despite errors: the error that ended them matters more."""
        if self._send is not None:
            self._store_running_positions()
        self.running.clear()
        failed: Exception | None = None
        copies = [copy.task for copy in self.copies.values()]
        for task in (*self.tasks.values(), *copies, *self._leaving):
            try:
                task.life.close()
                task.stores.close()
            except Exception as error:  # noqa: BLE001 - logged; raised below unless something else ended the tasks
                _log.error(
                    "task %s: %s", task.task_id, cause_text(error), exc_info=log_trace(error)
                )
                failed = failed or error
        if failed is not None and kind is None:
            raise failed

    def _store_running_positions(self) -> None:
        """Store running tasks' positions as their next start; those of the grant are outdated.

        No other worker has written meanwhile. The cluster's ends may still lack our last markers.
        """
        commits = self._commits
        for task_id, task in self.running.items():
            grant = self._assigned.owned[task_id]
            committed = commits.offsets_of(task)
            changelog_ends = {
                changelog.whole: commits.reached[changelog.whole]
                for changelog in task.stores.changelogs
                if changelog.whole in commits.reached
            }
            self._assigned.owned[task_id] = Grant(
                task_epoch=grant.task_epoch,
                input={**grant.input, **{at.whole: offset for at, offset in committed.items()}},
                changelog_end=_without(commits.unknown, {**grant.changelog_end, **changelog_ends}),
            )

    # -- results of the state updater ------------------------------------------------------------------------------

    def admit(self) -> list[Task]:
        """Start the restored tasks, and return them.

        A task that may not start is reported to the group; it ends a worker that has no other task
        and never ran one.
        """
        admitted: list[Task] = []
        refusal: StreamsError | None = None
        for result in self._updater.pop_results():
            match result:
                case RestoredTask():
                    if self._is_current(result.task, result.grant):
                        self._start(result)
                        admitted.append(result.task)
                case FailedTask():
                    self._broke(result)
                case RefusedTask():
                    refusal = self._refuse(result) or refusal
                case ClosedTask():
                    self._leaving.pop(result.task, None)
        if refusal is not None and not (self._has_run or self.tasks or self.copies):
            raise refusal
        if admitted:
            self._report_running()
            self._release([*self._assigned.releasing.values()])
        return admitted

    def _is_current(self, task: Task, grant: Grant) -> bool:
        assigned = self._assigned.owned.get(task.task_id)
        return (
            self.tasks.get(task.task_id) is task
            and assigned is not None
            and assigned.task_epoch == grant.task_epoch
        )

    def _start(self, result: RestoredTask) -> None:
        task, starts = result.task, result.starts
        offsets = {partition: start.offset for partition, start in starts.items()}
        self._before_start(task)
        task.start(
            offsets,
            {partition: start.partition_time_ms for partition, start in starts.items()},
            operator_times(starts, self._settings.topology_hash),
            old_maps(starts),
        )
        grant = self._assigned.owned[task.task_id]
        self.running[task.task_id] = task
        self._broken.pop(task.task_id, None)
        self._has_run = True
        self._commits.add_task(task, grant.task_epoch, starts, result.topic_ids)
        self._work.add(task, offsets)
        _log.info("task %s RUNNING at %s", task.task_id, _positions_text(offsets))
        self._report(
            TaskRunning(
                task=str(task.task_id),
                task_epoch=grant.task_epoch,
                input=_keyed(offsets),
                restored=result.restored,
            )
        )

    def _report(self, report: AnyReport) -> None:
        if self._send is not None:
            self._send(report)

    def _broke(self, result: FailedTask) -> None:
        task_id = result.task.task_id
        if self._send is None:
            raise result.error
        copy = self.copies.get(task_id)
        if result.grant is None and copy is not None and copy.task is result.task:
            del self.copies[task_id]
            del self._assigned.copies[task_id]
            self._send_broken(task_id, copy.learn_epoch, copy.role, result.error)
        elif result.grant is not None and self._is_current(result.task, result.grant):
            del self.tasks[task_id]
            self._assigned.releasing.pop(task_id, None)
            grant = self._assigned.owned.pop(task_id)
            self._send_broken(task_id, grant.task_epoch, "active", result.error)
            self._report_running()

    def _refuse(self, result: RefusedTask) -> StreamsError | None:
        """Release a task that may not start; return the error unless only its grant is outdated.

        Does nothing if the grant was revoked or replaced meanwhile.
        """
        if self._send is None:
            raise result.error
        task, task_id = result.task, result.task.task_id
        if not self._is_current(task, result.grant):
            _log.debug("task %s may not start, and was revoked: %s", task_id, result.error)
            return None
        del self.tasks[task_id]
        self._assigned.releasing.pop(task_id, None)
        grant = self._assigned.owned.pop(task_id)
        self._send_broken(task_id, grant.task_epoch, "active", result.error)
        self._leaving[task] = None
        self._updater.remove(task)
        self._report_running()
        return None if isinstance(result.error, OutdatedGrantError) else result.error

    def drop_task(self, task_id: TaskId, error: StreamsError) -> None:
        """Return a failed task to the group, after `close`."""
        self._assigned.releasing.pop(task_id, None)
        grant = self._assigned.owned.pop(task_id)
        self._assigned.released[task_id] = TaskReleased(
            task=str(task_id),
            task_epoch=grant.task_epoch,
            input=_keyed(grant.input),
            changelog_end=_keyed(grant.changelog_end),
        )
        self._send_broken(task_id, grant.task_epoch, "active", error)

    def _send_broken(self, task_id: TaskId, epoch: int, role: str, error: StreamsError) -> None:
        detail = located(error)
        # The leader tries again and again; the group's alarm shows the error meanwhile.
        is_known = self._broken.get(task_id) == detail
        self._broken[task_id] = detail
        _log.log(
            logging.DEBUG if is_known else logging.ERROR,
            "task %s (%s) can't run here: %s",
            task_id,
            role,
            error,
        )
        self._report(TaskBroken(task=str(task_id), epoch=epoch, role=role, detail=detail))

    # -- orders ----------------------------------------------------------------------------------------------------

    def carry_out(self, orders: Sequence[AnyOrder]) -> None:
        for kind, group in groupby(orders, type):
            for_tasks = list(group)
            if kind is RunTask:
                self._run([order for order in for_tasks if isinstance(order, RunTask)])
            elif kind is ReleaseTask:
                self._release([order for order in for_tasks if isinstance(order, ReleaseTask)])
            elif kind is KeepCopy:
                self._copy([order for order in for_tasks if isinstance(order, KeepCopy)])
            elif kind is EraseRows:
                self._erasures.begin([order for order in for_tasks if isinstance(order, EraseRows)])
            else:
                for order in for_tasks:
                    if isinstance(order, DropCopy):
                        self._drop(TaskId.parse(order.task))
                    elif isinstance(order, SetRest | Welcome):
                        self._set_rest(order.rest)

    def _set_rest(self, rest: Rest | None) -> None:
        if rest != self._assigned.rest:
            self._assigned.rest = rest
            self._work.set_rest(rest)
            _log.info(
                "taking external input again"
                if rest is None
                else "coming to rest: taking no external input"
            )

    @property
    def is_resting(self) -> bool:
        return self._assigned.rest is not None

    def _rest_of(self, task: Task) -> int:
        """Return the epoch of the rest that a task has reached, else 0."""
        rest = self._assigned.rest
        if rest is None:
            return 0
        committed, caches = self._commits.offsets_of(task), task.caches
        is_reached = (
            task.task_id in self.running
            and not task.busy
            and (caches is None or not caches.cached_bytes())
            and committed == task.next_offsets
            and all(self._work.has_reached(at, offset) for at, offset in committed.items())
        )
        return rest.epoch if is_reached else 0

    def end_erasures(self) -> None:
        self._erasures.end()

    def _run(self, orders: Iterable[RunTask]) -> None:
        created: dict[TaskId, tuple[Task, Grant]] = {}
        for order in orders:
            task_id = TaskId.parse(order.task)
            if not self._is_new(order, task_id):
                continue
            grant = Grant(
                task_epoch=order.task_epoch,
                input=_partitions(order.input),
                changelog_end=_partitions(order.changelog_end),
            )
            self._assigned.owned[task_id] = grant
            self._assigned.released.pop(task_id, None)
            self._assigned.copies.pop(task_id, None)
            copy = self.copies.pop(task_id, None)
            if copy is None:
                self.tasks[task_id] = self._create(task_id)
                created[task_id] = (self.tasks[task_id], grant)
            else:
                self.tasks[task_id] = copy.task
                self._updater.promote(copy.task, grant)
        if created:
            self._updater.restore(created)
        self._report_running()

    def _is_new(self, order: RunTask, task_id: TaskId) -> bool:
        """Return True for a new order to run a task; answer a repeated one again."""
        grant = self._assigned.owned.get(task_id)
        released = self._assigned.released.get(task_id)
        if grant is None:
            if released is not None and order.task_epoch <= released.task_epoch:
                # A restarted watchdog, which sends us the group's orders, repeats this old grant
                # until it reads our release in the group log.
                self._report(released)
                return False
            if self._is_known_task(task_id):
                return True
            error = StreamsError(f"this program has no task {task_id} on its cluster")
            self._send_broken(task_id, order.task_epoch, "active", error)
            return False
        if order.task_epoch < grant.task_epoch:
            return False
        if order.task_epoch > grant.task_epoch:
            _log.warning("task %s is granted again, and was not released", task_id)
            self._assigned.releasing.pop(task_id, None)
            self.ending.pop(task_id, None)
            if task_id not in self.running:
                # Restore again: the present restore belongs to the earlier grant.
                restoring = self.tasks.pop(task_id)
                self._leaving[restoring] = None
                self._updater.remove(restoring)
                return True
            self._assigned.owned[task_id] = Grant(task_epoch=order.task_epoch)
        task = self.running.get(task_id)
        if task is not None:
            self._commits.epochs[task_id] = order.task_epoch
            self._report(
                TaskRunning(
                    task=order.task, task_epoch=order.task_epoch, input=_keyed(task.next_offsets)
                )
            )
        return False

    def _release(self, orders: Iterable[ReleaseTask]) -> None:
        """Release tasks: one commit for all, then one answer for each."""
        running: dict[TaskId, ReleaseTask] = {}
        for order in orders:
            task_id = TaskId.parse(order.task)
            grant = self._assigned.owned.get(task_id)
            if grant is None or grant.task_epoch != order.task_epoch:
                self._repeat_answer(order, task_id)
            elif task_id in self.running:
                self._assigned.releasing[task_id] = running[task_id] = order
            elif task_id in self.tasks:
                self._release_restoring(order, self.tasks.pop(task_id), grant)
        running = {task_id: order for task_id, order in running.items() if self._has_ended(task_id)}
        if running:
            until_s = time.monotonic() + _IN_PROGRESS_S
            for task_id in running:
                self.running[task_id].halt(until_s, lambda: None)
            self._commit()
        for task_id, order in running.items():
            self._release_running(order, self.running[task_id])
        self._report_running()

    def release_ended(self) -> None:
        """Release tasks whose sinks have flushed since the order."""
        if self.ending:
            self._release([*self._assigned.releasing.values()])

    def _has_ended(self, task_id: TaskId) -> bool:
        """Return True if a task can be released now; else its sink flushes, and others continue."""
        now_s = time.monotonic()
        flush_s = _FLUSH_PART * self._settings.drain_timeout_ms / 1000
        until_s = self.ending.setdefault(task_id, now_s + flush_s)
        return self.running[task_id].wind_down() or now_s >= until_s

    def _repeat_answer(self, order: ReleaseTask, task_id: TaskId) -> None:
        answer = self._assigned.released.get(task_id)
        if answer is not None and answer.task_epoch == order.task_epoch:
            self._report(answer)
        elif task_id not in self._assigned.owned:
            # The grant never arrived here, so nothing was written under this epoch.
            self._report(
                TaskReleased(
                    task=order.task, task_epoch=order.task_epoch, input={}, changelog_end={}
                )
            )

    def _release_running(self, order: ReleaseTask, task: Task) -> None:
        task_id = task.task_id
        del self.running[task_id], self.tasks[task_id]
        self.ending.pop(task_id, None)
        # Without a known position the next owner reads to the end of the log.
        ends = _without(self._commits.unknown, changelog_positions(task))
        self._released(order, task_id, input_=self._commits.remove_task(task), ends=ends)
        self._work.remove(task)
        try:
            task.life.retire()
        except Exception as error:  # noqa: BLE001 - logged; the task is over, and others run
            _log.error(
                "task %s could not be closed in order: %s",
                task_id,
                cause_text(error),
                exc_info=log_trace(error),
            )
        if order.keep:
            self._follow([(self._create(task_id, task.stores), _copy_of(order))])
        else:
            self._leaving[task] = None
            self._updater.close_stores(task)

    def _release_restoring(self, order: ReleaseTask, task: Task, grant: Grant) -> None:
        """Release a task that has not started; its positions are those of its grant."""
        self._released(order, task.task_id, input_=grant.input, ends=grant.changelog_end)
        if order.keep:
            self._follow([(task, _copy_of(order))])
        else:
            self._leaving[task] = None
            self._updater.remove(task)

    def _released(
        self,
        order: ReleaseTask,
        task_id: TaskId,
        *,
        input_: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        answer = TaskReleased(
            task=order.task,
            task_epoch=order.task_epoch,
            input=_keyed(input_),
            changelog_end=_keyed(ends),
            kept=order.keep > 0,
        )
        self._assigned.owned.pop(task_id)
        self._assigned.releasing.pop(task_id, None)
        self._assigned.released[task_id] = answer
        _log.info("task %s released at %s", task_id, _positions_text(input_))
        self._report(answer)

    # -- copies ----------------------------------------------------------------------------------------------------

    def _copy(self, orders: Iterable[KeepCopy]) -> None:
        created: dict[TaskId, Task] = {}
        for order in orders:
            task_id = TaskId.parse(order.task)
            present = self._assigned.copies.get(task_id)
            if task_id in self._assigned.owned:
                _log.warning("task %s is to be copied here, where it runs", task_id)
            elif not self._is_known_task(task_id):
                error = StreamsError(f"this program has no task {task_id} on its cluster")
                self._send_broken(task_id, order.learn_epoch, order.role, error)
            elif present is None:
                self._assigned.copies[task_id] = order
                created[task_id] = self._create(task_id)
            else:
                self._assigned.copies[task_id] = order
                if task_id in self.copies:  # otherwise it is created soon
                    self._updater.appoint(self.copies[task_id], order.role, order.learn_epoch)
        self._follow([(task, self._assigned.copies[task_id]) for task_id, task in created.items()])

    def _follow(self, copies: Sequence[tuple[Task, KeepCopy]]) -> None:
        new_copies = [
            LearnerTask(
                task,
                role=order.role,
                learn_epoch=order.learn_epoch,
                acceptable_recovery_lag=self._settings.acceptable_recovery_lag,
            )
            for task, order in copies
        ]
        if not new_copies:
            return
        self.copies.update({copy.task_id: copy for copy in new_copies})
        self._assigned.copies.update({task.task_id: order for task, order in copies})
        self._updater.follow(new_copies)
        topics = {partition.topic for copy in new_copies for partition in copy.task.inputs}
        unknown = sorted(topics - {partition.topic for partition in self._work.owners})
        if unknown:
            self._updater.do(partial(self._work.source.prepare, unknown))

    def _drop(self, task_id: TaskId) -> None:
        copy = self.copies.pop(task_id, None)
        self._assigned.copies.pop(task_id, None)
        if copy is not None:
            self._leaving[copy.task] = None
            self._updater.remove(copy.task)

    # -- progress --------------------------------------------------------------------------------------------------

    def status(
        self, lags: Mapping[TopicPartition, int], rates: Mapping[TaskId, float]
    ) -> tuple[TaskStatus, ...]:
        """Return the progress of all tasks in all roles; `rates` in records/s."""
        rows: list[TaskStatus] = []
        for task_id, task in sorted(self.tasks.items()):
            known_lags = [lags[partition] for partition in task.inputs if partition in lags]
            is_restoring = task.life.cycle.state is TaskState.RESTORING
            counters = task.counters
            rows.append(
                TaskStatus(
                    task=str(task_id),
                    role="active",
                    epoch=self._assigned.owned[task_id].task_epoch,
                    state=task.life.cycle.state.value,
                    input=_keyed(task.next_offsets),
                    committed=_keyed(self._commits.offsets_of(task)),
                    changelog=_keyed(self._updater.reached(task_id)) if is_restoring else {},
                    lag=sum(known_lags) if len(known_lags) == len(task.inputs) else -1,
                    rate=round(rates.get(task_id, 0.0), 1),
                    ranges=long_running_records(task),
                    range_count=range_count(task),
                    busiest=busiest(task),
                    blocking=blocking(task),
                    waits=self._updater.waits.get(task_id, "") if is_restoring else "",
                    sink=""
                    if task.figures.sink is None
                    else task.figures.sink.problem[:_PROBLEM_MAX],
                    dropped=task.figures.dropped,
                    drop=most_frequent(counters.drops),
                    skipped=task.figures.skipped,
                    misplaced=self._work.findings(task),
                    rest=self._rest_of(task),
                )
            )
        waits = self._updater.waits
        return (
            *rows,
            *(copy.status(waits.get(task_id, "")) for task_id, copy in sorted(self.copies.items())),
        )


def _copy_of(order: ReleaseTask) -> KeepCopy:
    return KeepCopy(task=order.task, role="standby", learn_epoch=order.keep)


def _without(
    unknown: AbstractSet[TopicPartition], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {partition: offset for partition, offset in offsets.items() if partition not in unknown}


def _keyed(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    return {position_key(partition): offset for partition, offset in offsets.items()}


def _partitions(offsets: Mapping[str, int]) -> dict[TopicPartition, int]:
    return {parse_position_key(text): offset for text, offset in offsets.items()}


def _positions_text(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{partition}@{offset}" for partition, offset in sorted(offsets.items()))
