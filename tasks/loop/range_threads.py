"""Key ranges of a worker: their thread pool, and the loop's calls to all of them."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack

from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.commit_facts import facts_bytes
from tidewheel.tasks.key_ranges.progress_vector import ranges_that_fit
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.key_ranges.shared_loop import LoopRunner, WorkerLoop
from tidewheel.tasks.processing.engine.operator_times import OPERATOR_TIMES_MAX
from tidewheel.tasks.task.parallel_task import parallel_tasks
from tidewheel.tasks.task.range_placement import RangePlacement
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_settings import WorkerSettings


class RangeThreads:
    """The key ranges of one worker's tasks; none if it has one thread.

    Args:
        event_loop: Loop of the worker's coroutines; None: a new one, closed with the worker.
    """

    def __init__(self, settings: WorkerSettings, event_loop: WorkerLoop | None = None) -> None:
        self._settings = settings
        self._event_loop = event_loop
        self.pool: RangePool | None = None
        self._placement: RangePlacement | None = None
        #: Tasks whose key ranges pause.
        self._paused: frozenset[TaskId] = frozenset()

    def start(self, stack: ExitStack) -> None:
        """Start the pool if the worker has several threads; `stack` closes it.

        Until then this thread's coroutines run on the event loop.
        """
        settings = self._settings
        event_loop = self._event_loop
        if event_loop is None:
            event_loop = WorkerLoop(settings.max_calls_in_flight)
            stack.callback(event_loop.close)
        runner = LoopRunner(event_loop.share)
        stack.callback(runner.close)
        stack.enter_context(runner)
        if settings.threads > 1:
            self.pool, self._paused = RangePool(settings.threads, event_loop), frozenset()
            stack.callback(self.pool.close)
            ranges_max = ranges_that_fit(
                settings.transactional_id, OPERATOR_TIMES_MAX, facts_bytes(settings.operators)
            )
            self._placement = RangePlacement(self.pool, ranges_max)

    def start_task(self, task: Task, owned: Collection[Task]) -> None:
        if self._placement is not None:
            self._placement.start_task(task, owned)

    def check(self, running: Collection[Task]) -> None:
        """Raise the error that has ended a key range, or the thread of a sink."""
        for task in running:
            task.check()

    def pause_tasks(
        self, running: Mapping[TaskId, Task], is_paused: Callable[[Task], bool]
    ) -> None:
        """Pause the key ranges of tasks that `is_paused` selects; resume the others."""
        if self.pool is None:
            return
        paused = frozenset(task_id for task_id, task in running.items() if is_paused(task))
        changed = paused ^ self._paused
        for task in parallel_tasks(running.values()):
            if task.task_id in changed:
                task.set_paused(task.task_id in paused)
        self._paused = paused

    def halt(self, running: Collection[Task], on_wait: Callable[[], None]) -> None:
        """Wait for running calls of user code, before a clean stop."""
        until_s = time.monotonic() + self._settings.drain_timeout_ms / 1000
        for task in running:
            task.halt(until_s, on_wait)
        self.check(running)

    def repartition(
        self, owned: Collection[Task], running: Collection[Task], commit: Callable[[], None]
    ) -> None:
        """Change the key ranges of tasks where that balances the load of the threads."""
        if self._placement is None:
            return
        self._placement.update(owned)
        waiting = [task for task in parallel_tasks(running) if task.can_repartition]
        if waiting:
            commit()
            for task in waiting:
                task.repartition()
