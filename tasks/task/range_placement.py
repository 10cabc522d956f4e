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
from tidewheel.tasks.task.parallel_task import ParallelTask, parallel_tasks
from tidewheel.tasks.task.range_status import blocking, sight
from tidewheel.tasks.task.task import Task

_log = logging.getLogger(__name__)

#: Maximum key ranges of all tasks whose user functions only await. It limits memory: each range
#: has its own graph and store objects.
_AWAITING_MAX: Final = 1_024
_WATCH_INTERVAL_S: Final = 0.25
_PLACE_INTERVAL_S: Final = 5.0
_RECORD_INTERVAL_MIN_S: Final = 0.1
#: `assign_ranges` receives loads as integer milliseconds of work.
_UNITS_PER_S: Final = 1_000


class RangePlacement:
    """Placement of the key ranges of one worker's tasks.

    Args:
        ranges_max: Maximum ranges of one task; commit metadata has no room for more.
    """

    def __init__(self, pool: RangePool, ranges_max: int) -> None:
        self._pool = pool
        self._ranges_max = ranges_max
        self._placed: dict[TaskId, tuple[PlacedRange, ...]] | None = None
        #: Total busy seconds of each range at the last placement: loads count from there.
        self._busy_s: dict[RangeWorker, float] = {}
        #: Total busy seconds of each range when `busy_percent` was last set.
        self._recorded_busy_s: WeakKeyDictionary[RangeWorker, float] = WeakKeyDictionary()
        self._placed_tasks: frozenset[TaskId] = frozenset()
        self._placed_s = time.monotonic()
        self._next_s = self._placed_s + _PLACE_INTERVAL_S
        self._watch_s = 0.0
        #: True for tasks whose user functions all await: these share an event loop, not threads.
        self._awaits: WeakKeyDictionary[ParallelTask, bool] = WeakKeyDictionary()
        self._reported_tasks: WeakSet[ParallelTask] = WeakSet()

    def start_task(self, task: Task, owned: Iterable[Task]) -> None:
        assert isinstance(task, ParallelTask), (
            "a worker with several threads has only parallel tasks"
        )
        self._place(owned)
        task.set_ranges(self._pool, self._ranges_of(task), self._ranges_max)

    def update(self, owned: Iterable[Task]) -> None:
        """Request new key ranges of the tasks, every 5 s and when the set of tasks changes."""
        tasks = parallel_tasks(owned)
        task_ids = frozenset(task.task_id for task in tasks)
        now_s = time.monotonic()
        if now_s >= self._watch_s:
            self._watch_s = now_s + _WATCH_INTERVAL_S
            self._watch(tasks, now_s)
        if now_s < self._next_s and task_ids == self._placed_tasks:
            return
        self._next_s, self._placed_tasks = now_s + _PLACE_INTERVAL_S, task_ids
        self._place(tasks)
        for task in tasks:
            if task.ranges:
                task.request_ranges(self._ranges_of(task))

    def _watch(self, tasks: Iterable[ParallelTask], now_s: float) -> None:
        self._pool.watch(now_s)
        for task in tasks:
            task.record_sight(sight(task))
            coroutine = None if task in self._reported_tasks else blocking(task)
            if coroutine is not None:
                self._reported_tasks.add(task)
                task.has_reported_blocking = True
                _log.warning("%s", _blocking_message(task.task_id, coroutine))

    def _ranges_of(self, task: ParallelTask) -> KeyRanges:
        assert self._placed is not None, "placed before"
        firsts = tuple(placed.first_hash for placed in self._placed[task.task_id])
        return KeyRanges(firsts, task.task_id.shard.end_hash)

    def _place(self, tasks: Iterable[Task]) -> None:
        busy_before_s, self._busy_s = self._busy_s, {}
        now_s = time.monotonic()
        since_s, self._placed_s = self._placed_s, now_s
        loads: list[TaskLoad] = []
        awaiting: list[TaskLoad] = []
        for task in parallel_tasks(tasks):
            self._record_busy(task, since_s, now_s)
            (awaiting if self._only_awaits(task) else loads).append(self._load(task, busy_before_s))
        self._placed = self._assigned(loads, awaiting)

    def _assigned(
        self, loads: Sequence[TaskLoad], awaiting: Sequence[TaskLoad]
    ) -> dict[TaskId, tuple[PlacedRange, ...]]:
        capacity = int(_PLACE_INTERVAL_S * _UNITS_PER_S)
        placed = assign_ranges(loads, self._pool.threads, self._placed, capacity=capacity)
        for load in awaiting:
            ranges_max = max(min(load.ranges_max, _AWAITING_MAX // len(awaiting)), 1)
            placed |= assign_ranges([load], ranges_max, self._placed, capacity=capacity)
        return placed

    def _only_awaits(self, task: ParallelTask) -> bool:
        awaits = self._awaits.get(task)
        if awaits is None:
            awaits = self._awaits[task] = only_awaits(task.plan.spec)
        return awaits

    def _record_busy(self, task: ParallelTask, since_s: float, now_s: float) -> None:
        if now_s - since_s < _RECORD_INTERVAL_MIN_S:
            return
        for key_range in task.ranges:
            began_s = key_range.unit_since_s
            # Counts the unit of work in progress now, and not again when it ends.
            at_work_s = key_range.busy_s + (0.0 if began_s is None else now_s - began_s)
            worked_s = at_work_s - self._recorded_busy_s.get(key_range, 0.0)
            self._recorded_busy_s[key_range] = at_work_s
            key_range.busy_percent = max(min(round(100 * worked_s / (now_s - since_s)), 100), 0)

    def _load(self, task: ParallelTask, busy_before_s: Mapping[RangeWorker, float]) -> TaskLoad:
        ranges: list[RangeLoad] = []
        for key_range in task.ranges:
            self._busy_s[key_range] = busy_s = key_range.busy_s
            worked_s = busy_s - busy_before_s.get(key_range, 0.0)
            ranges.append(RangeLoad(key_range.setting.first_hash, int(worked_s * _UNITS_PER_S)))
        return TaskLoad(
            task=task.task_id,
            ranges=tuple(ranges) or (RangeLoad(task.task_id.shard.first_hash),),
            ranges_max=min(task.ranges_max, self._ranges_max),
            fixed=task.has_fixed_ranges,
        )


def _blocking_message(task: TaskId, blocked: BlockingCoroutine) -> str:
    record = "no record in progress"
    if blocked.topic:
        position = f"{blocked.topic}-{blocked.partition} offset {blocked.offset}"
        record = f"{position}, key hash {blocked.key_hash:08x}"
    return (
        f"task {task}: {blocked.function} has blocked the event loop that key ranges share for "
        f"{blocked.ms / 1000:.1f} s, and they all wait for it (node {blocked.node or '-'}, "
        f"{record}, range from {blocked.first_hash:08x}); await long calls, pass them to "
        "asyncio.to_thread(), or use a plain function, which runs in a thread"
    )
