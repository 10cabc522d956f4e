"""The loop of a worker's tasks: orders, input, slices of processing, punctuation, commits."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.commit.shard_floor import ShardFloor
from tidewheel.tasks.kafka.ports import Clock
from tidewheel.tasks.loop.commit_driver import CommitDriver
from tidewheel.tasks.loop.group_orders import GroupOrders
from tidewheel.tasks.loop.housekeeping import Housekeeping
from tidewheel.tasks.loop.metrics import WorkerMetrics
from tidewheel.tasks.loop.questions import Questions
from tidewheel.tasks.loop.range_threads import RangeThreads
from tidewheel.tasks.loop.slices import Slices
from tidewheel.tasks.loop.task_manager import TaskManager
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import DeletedTopics, WorkerInput
from tidewheel.tasks.task.worker_settings import WorkerSettings

#: Longest poll without input; a wake-up takes effect at its end.
_IDLE_S: Final = 0.05
#: Longest wait in a group, which may send orders.
_IDLE_IN_GROUP_S: Final = 0.01
#: Longest wait while a task restores, which may start soon.
_IDLE_BEFORE_START_S: Final = 0.002
#: Longest wait during a commit, or with queries of uncommitted rows.
_IDLE_IN_COMMIT_S: Final = 0.002


@dataclass(kw_only=True, eq=False)
class TaskLoop:
    """Loop over a worker's tasks, from a start to their end; the worker's thread calls it.

    Attributes:
        wake: Set by events other than input.
        watch: Raises if the worker cannot continue.
    """

    settings: WorkerSettings
    clock: Clock
    metrics: WorkerMetrics
    orders: GroupOrders
    manager: TaskManager
    work: WorkerInput
    deleted_topics: DeletedTopics
    commits: CommitDriver
    ranges: RangeThreads
    slices: Slices
    questions: Questions
    housekeeping: Housekeeping
    floor: ShardFloor
    is_paused: Callable[[Task], bool]
    wake: threading.Event
    watch: Callable[[], None]
    #: New tasks that have processed nothing: their first slice is committed immediately, because
    #: their output has paused since the previous owner's last commit.
    _awaited: set[TaskId] = field(default_factory=set[TaskId])

    def turn(self) -> None:
        running = self.manager.running
        self.metrics.rounds += 1
        self.watch()
        self.commits.complete_if_answered()
        self.orders.serve(self.manager)
        self.ranges.check(running.values())
        self._admit()
        self.manager.end_erasures()
        self.manager.release_ended()
        self.ranges.pause_tasks(running, self._is_halted)
        self.questions.pass_on(running)
        if not self.orders.may_process:
            self.wake.wait(_IDLE_IN_GROUP_S)
            self.wake.clear()
            return
        self._fetch()
        self.work.update_lags(running.values())
        for task in list(running.values()):
            self.questions.pass_on(running)
            self.orders.serve(self.manager)
            if not self.orders.may_process:
                break
            if running.get(task.task_id) is not task:
                continue  # an order has released it
            if not self.is_paused(task) and task.ready(self.clock.now_ms()):
                self._process_slice(task)
                self._shrink_caches()
            if self.commits.must_commit:
                self.commits.advance()
        self._punctuate()
        self.ranges.repartition(self.manager.tasks.values(), running.values(), self.commits.commit)
        self.commits.round.floors |= self.floor.read(self.work.owners)
        self.commits.advance()
        self.housekeeping.run(self.clock.monotonic_s(), self.commits.round.committed)

    def stop(self) -> None:
        """Stop cleanly: commit before and after running calls end."""
        self.commits.commit()  # durable, however long running calls take
        self.ranges.halt(self.manager.running.values(), self.orders.show_progress)
        self.commits.finish()

    def _is_halted(self, task: Task) -> bool:
        return not self.orders.may_process or self.is_paused(task)

    def _admit(self) -> None:
        admitted = self.manager.admit()
        if not admitted:
            return
        former_ids = self.commits.round.former_ids
        if self.orders.membership is None:
            # The next worker of these tasks fences the transactional id in the committed offsets'
            # metadata. Without ours there, our open transaction could commit after that start.
            own_id = {self.settings.transactional_id}
            if any(former_ids(task) != own_id for task in admitted):
                self.commits.commit()
            return
        # The group log has our id already: the first record needs no commit before it.
        self._awaited.update(task.task_id for task in admitted)
        running = [task for task in admitted if task.task_id in self.manager.running]
        if any("" in former_ids(task) for task in running):
            # An input has no offset of ours yet. Commit one before any state: later, state without
            # an offset shows that the offset was lost.
            self.commits.commit()

    # -- input -----------------------------------------------------------------------------------

    def _fetch(self) -> None:
        self.deleted_topics.check()
        if not self.work.owners:
            self.deleted_topics.fetch((), lambda: 0.0)  # Delivers the consumer's statistics.
            self.wake.wait(self.idle_s())
            self.wake.clear()
            return
        now_ms = self.clock.now_ms()
        running = self.manager.running.values()
        ready = [task for task in running if not self.is_paused(task) and task.ready(now_ms)]
        gather_s = self.work.gather_s(ready)
        if gather_s > 0 and self.wake.wait(min(gather_s, self._idle_limit_s())):
            self.wake.clear()
            return
        self.metrics.consumed += self.deleted_topics.fetch(ready, self.idle_s)

    def idle_s(self) -> float:
        waits = [_IDLE_S, self._idle_limit_s()]
        if self.orders.membership is not None:
            restoring = self.manager.is_restoring
            waits.append(_IDLE_BEFORE_START_S if restoring else _IDLE_IN_GROUP_S)
        if self.questions.are_frequent or self.commits.state not in (
            CommitState.NONE,
            CommitState.OPEN,
        ):
            waits.append(_IDLE_IN_COMMIT_S)
        return min(waits)

    def _idle_limit_s(self) -> float:
        """Return the seconds in which only input, orders or brokers can cause work."""
        now_ms = self.clock.now_ms()
        waits = [self.commits.wait_s()]
        for task in self.manager.running.values():
            if self.is_paused(task):
                continue
            wall_clock_ms = None if self.manager.is_resting else task.next_wall_clock_ms()
            dues_ms = (wall_clock_ms, task.group.idle_until_ms(now_ms))
            waits += [(due_ms - now_ms) / 1000 for due_ms in dues_ms if due_ms is not None]
        return max(min(waits), 0.0)

    # -- processing ------------------------------------------------------------------------------

    def _process_slice(self, task: Task) -> None:
        done = self.slices.process(task)
        self.metrics.processed += done
        if done and (state := self.commits.state) is not CommitState.NONE:
            failpoint(f"processed_while_{state.value}")
        if done and task.task_id in self._awaited:
            self._awaited.discard(task.task_id)
            self.commits.schedule.request()

    def _shrink_caches(self) -> None:
        """Forward cached records of the largest caches, down to the worker's limit."""
        cached = [
            (caches.cached_bytes(), task.stores, caches)
            for task in self.manager.running.values()
            if (caches := task.caches) is not None
        ]
        excess = sum(size for size, *_ in cached) - self.settings.statestore_cache_max_bytes
        if excess > 0:
            for size, stores, caches in sorted(cached, key=itemgetter(0), reverse=True):
                if excess > 0:
                    with stores.trusted():
                        caches.shrink(min(excess, size))
                    excess -= size

    def _punctuate(self) -> None:
        # The time that passes is no input: at rest, callbacks of the wall clock would still write.
        if self.orders.may_process and not self.manager.is_resting:
            now_ms = self.clock.now_ms()
            for task in self.manager.running.values():
                if not self.is_paused(task):
                    with task.stores.trusted():
                        task.punctuate_wall_clock(now_ms)
