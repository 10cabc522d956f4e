"""Range placement: measures the load of key ranges and reassigns them with `assign_ranges`."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.task_status import BlockingCoroutine
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges
from tidewheel.tasks.key_ranges.keyed_analysis import only_awaits
from tidewheel.tasks.key_ranges.range_assignment import (
    PlacedRange,
    RangeLoad,
    TaskLoad,
    assign_ranges,
)
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.key_ranges.range_worker import RangeWorker
from tidewheel.tasks.task.parallel_task import ParallelTask
from tidewheel.tasks.task.range_status import blocking
from tidewheel.tasks.task.task import Task

_log = logging.getLogger(__name__)

#: Maximum ranges of all await-only tasks; each range has a graph and stores.
_AWAITING_MAX: Final = 1_024
_WATCH_S: Final = 0.25
_LOOK_S: Final = 5.0
_TELLING_S: Final = 0.1
#: Loads are milliseconds of work.
_UNITS_PER_S: Final = 1_000


class RangePlacement:
    """Key ranges of all tasks of one worker.

    Args:
        ranges_max: Maximum ranges of one task whose progress fits into commit metadata.
    """

    def __init__(self, pool: RangePool, ranges_max: int) -> None:
        self._pool = pool
        self._ranges_max = ranges_max
        self._placed: dict[TaskId, tuple[PlacedRange, ...]] | None = None
        #: Busy seconds of each range at the last measurement.
        self._seen: dict[RangeWorker, float] = {}
        #: The same, with the running unit of work.
        self._told: WeakKeyDictionary[RangeWorker, float] = WeakKeyDictionary()
        self._known: frozenset[TaskId] = frozenset()
        self._looked_s = time.monotonic()
        self._next_s = self._looked_s + _LOOK_S
        self._watch_s = 0.0
        #: True for await-only tasks, which need no threads.
        self._awaits: WeakKeyDictionary[ParallelTask, bool] = WeakKeyDictionary()
        #: Tasks whose blocking coroutine was logged.
        self._named: WeakSet[ParallelTask] = WeakSet()

    def begins(self, task: Task, owned: Iterable[Task]) -> None:
        assert isinstance(task, ParallelTask), "made with as many threads as the worker has"
        self._place(owned)
        task.join(self._pool, self._cut_of(task), self._ranges_max)

    def look(self, owned: Iterable[Task]) -> None:
        """Request repartitioning if the load is uneven or the set of tasks changed."""
        tasks = [task for task in owned if isinstance(task, ParallelTask)]
        known = frozenset(task.task_id for task in tasks)
        now_s = time.monotonic()
        if now_s >= self._watch_s:
            self._watch_s = now_s + _WATCH_S
            self._watch(tasks, now_s)
        if now_s < self._next_s and known == self._known:
            return
        self._next_s, self._known = now_s + _LOOK_S, known
        self._place(tasks)
        for task in tasks:
            if task.ranges:
                task.request_ranges(self._cut_of(task))

    def _watch(self, tasks: Iterable[ParallelTask], now_s: float) -> None:
        """Log a coroutine that blocks the shared event loop, once per task."""
        self._pool.watch(now_s)
        for task in tasks:
            found = None if task in self._named else blocking(task)
            if found is not None:
                self._named.add(task)
                task.has_reported_blocking = True
                _log.warning("%s", _blocks(task.task_id, found))

    def _cut_of(self, task: ParallelTask) -> KeyRanges:
        assert self._placed is not None, "placed before"
        return KeyRanges(tuple(each.first_hash for each in self._placed[task.task_id]))

    def _place(self, tasks: Iterable[Task]) -> None:
        seen, self._seen = self._seen, {}
        now_s = time.monotonic()
        since_s, self._looked_s = self._looked_s, now_s
        loads: list[TaskLoad] = []
        awaiting: list[TaskLoad] = []
        for task in tasks:
            if isinstance(task, ParallelTask):
                self._note_busy(task, since_s, now_s)
                (awaiting if self._only_awaits(task) else loads).append(self._load(task, seen))
        self._placed = self._assigned(loads, awaiting)

    def _assigned(
        self, loads: Sequence[TaskLoad], awaiting: Sequence[TaskLoad]
    ) -> dict[TaskId, tuple[PlacedRange, ...]]:
        capacity = int(_LOOK_S * _UNITS_PER_S)
        placed = assign_ranges(loads, self._pool.threads, self._placed, capacity=capacity)
        for each in awaiting:
            most = max(min(each.ranges_max, _AWAITING_MAX // len(awaiting)), 1)
            placed |= assign_ranges([each], most, self._placed, capacity=capacity)
        return placed

    def _only_awaits(self, task: ParallelTask) -> bool:
        found = self._awaits.get(task)
        if found is None:
            found = self._awaits[task] = only_awaits(task.plan.spec)
        return found

    def _note_busy(self, task: ParallelTask, since_s: float, now_s: float) -> None:
        """Record the busy percent of each range, unless the last measurement is too recent."""
        if now_s - since_s < _TELLING_S:
            return
        for each in task.ranges:
            began_s = each.unit_since_s
            # Counts the running unit now, and not again when it ends.
            at_work_s = each.busy_s + (0.0 if began_s is None else now_s - began_s)
            worked_s = at_work_s - self._told.get(each, 0.0)
            self._told[each] = at_work_s
            each.busy_percent = max(min(round(100 * worked_s / (now_s - since_s)), 100), 0)

    def _load(self, task: ParallelTask, seen: Mapping[RangeWorker, float]) -> TaskLoad:
        ranges: list[RangeLoad] = []
        for each in task.ranges:
            self._seen[each] = busy_s = each.busy_s
            worked_s = busy_s - seen.get(each, 0.0)
            ranges.append(RangeLoad(each.setting.first_hash, int(worked_s * _UNITS_PER_S)))
        return TaskLoad(
            task=task.task_id,
            ranges=tuple(ranges) or (RangeLoad(0),),
            ranges_max=min(task.ranges_max, self._ranges_max),
            fixed=task.has_fixed_ranges,
        )


def _blocks(task: TaskId, found: BlockingCoroutine) -> str:
    record = "no record at hand"
    if found.topic:
        record = (
            f"{found.topic}-{found.partition} offset {found.offset}, key hash {found.key_hash:08x}"
        )
    return (
        f"task {task}: {found.function} has blocked the event loop that key ranges share for {found.ms / 1000:.1f} s, and they "
        f"all wait for it (node {found.node or '-'}, {record}, range from {found.first_hash:08x}); await what takes long, give "
        "it to asyncio.to_thread(), or make the function a plain one, which runs in a thread"
    )
