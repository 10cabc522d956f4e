"""Status of a task's key ranges, for worker status, `top` and `KafkaStreams.tasks`."""

import time
from typing import Final

import msgspec

from tidewheel.rebalance.protocol.task_status import BlockingCoroutine
from tidewheel.tasks.key_ranges.loop_watch import LoopWatch, Step
from tidewheel.tasks.key_ranges.range_worker import RangeWorker
from tidewheel.tasks.key_ranges.shared_loop import Shared
from tidewheel.tasks.task.parallel_task import ParallelTask
from tidewheel.tasks.task.task import Task

_LONG_S: Final = 1.0
#: Limits per task: one heartbeat carries all tasks of a worker.
_TOLD_MAX: Final = 3
_BUSIEST_MAX: Final = 16


def range_count(task: Task) -> int:
    return max(len(task.ranges), 1) if isinstance(task, ParallelTask) else 1


def busiest(task: Task) -> tuple[tuple[int, int], ...]:
    """Return (first hash, busy percent) of busy ranges, the busiest first."""
    if not isinstance(task, ParallelTask):
        return ()
    at_work = [(each.setting.first_hash, each.busy_percent) for each in task.ranges]
    told = sorted((each for each in at_work if each[1]), key=lambda each: (-each[1], each[0]))
    return tuple(told[:_BUSIEST_MAX])


def long_running_records(task: Task) -> tuple[tuple[int, int, int], ...]:
    """Return (key hash, offset, ms so far) of long-running records, the longest first."""
    if not isinstance(task, ParallelTask):
        return ()
    now_s = time.monotonic()
    found: list[tuple[int, int, int]] = []
    for each in task.ranges:
        since_s = each.unit_since_s
        if since_s is None or now_s - since_s < _LONG_S:
            continue
        record = each.at_hand()
        if record is not None:
            found.append((record.key_hash, record.offset, int((now_s - since_s) * 1000)))
    return tuple(sorted(found, key=lambda told: -told[2])[:_TOLD_MAX])


def blocking(task: Task) -> BlockingCoroutine | None:
    """Return the task's coroutine that blocks the shared event loop for long."""
    if not isinstance(task, ParallelTask):
        return None
    now_s = time.monotonic()
    for each in task.ranges:
        shared = each.waiting
        if isinstance(shared, Shared):
            step = shared.turns.watch.step()
            if step is not None and now_s - step.since_s >= _LONG_S and shared.has(step.task):
                return _coroutine(each, shared.turns.watch, step, now_s)
    return None


def _coroutine(
    each: RangeWorker, watch: LoopWatch, step: Step, now_s: float
) -> BlockingCoroutine | None:
    record = None if each.unit_since_s is None else each.at_hand()
    node = "" if each.processing is None else each.processing.graph.at_work()
    function = watch.place(step)
    if not function:
        return None  # it has continued
    told = BlockingCoroutine(
        function=function,
        ms=int((now_s - step.since_s) * 1000),
        first_hash=each.setting.first_hash,
        node=node,
    )
    if record is None:
        return told
    return msgspec.structs.replace(
        told,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key_hash=record.key_hash,
    )
