"""Status of a task's key ranges, for worker status, `top` and `KafkaStreams.tasks`."""

import time
from collections.abc import Iterator
from typing import Final

import msgspec

from tidewheel.rebalance.protocol.plain_text import plain_text
from tidewheel.rebalance.protocol.task_status import BlockingCoroutine
from tidewheel.tasks.key_ranges.loop_watch import LoopStep, LoopWatch, Sight
from tidewheel.tasks.key_ranges.range_worker import RangeWorker
from tidewheel.tasks.task.task import Task

_LONG_S: Final = 1.0
_CHECKS_MIN: Final = 3
#: Maximum entries per task in a status: one heartbeat carries those of all tasks of a worker.
_RECORDS_MAX: Final = 3
_BUSIEST_MAX: Final = 16
#: Readers reject heartbeats with longer labels.
_FUNCTION_CHARACTERS_MAX: Final = 400


def range_count(task: Task) -> int:
    return max(len(task.ranges), 1)


def busiest(task: Task) -> tuple[tuple[int, int], ...]:
    """Return (first hash, busy percent) of the busiest 16 key ranges, the busiest first."""
    busy = [
        (key_range.setting.first_hash, key_range.busy_percent)
        for key_range in task.ranges
        if key_range.busy_percent
    ]
    return tuple(sorted(busy, key=lambda pair: (-pair[1], pair[0]))[:_BUSIEST_MAX])


def long_running_records(task: Task) -> tuple[tuple[int, int, int], ...]:
    """Return (key hash, offset, ms so far) of records in progress for 1 s, the longest first."""
    now_s = time.monotonic()
    records: list[tuple[int, int, int]] = []
    for key_range in task.ranges:
        since_s = key_range.unit_since_s
        if since_s is None or now_s - since_s < _LONG_S:
            continue
        record = key_range.current_record()
        if record is not None:
            records.append((record.key_hash, record.offset, int((now_s - since_s) * 1000)))
    return tuple(sorted(records, key=lambda item: -item[2])[:_RECORDS_MAX])


def blocking(task: Task) -> BlockingCoroutine | None:
    """Return the task's coroutine that has blocked the shared event loop for 1 s, if any."""
    now_s = time.monotonic()
    for key_range, watch, step in _steps(task):
        # The checks show that this process has run meanwhile: it was not the machine that stopped.
        if now_s - step.since_s >= _LONG_S and watch.checks >= _CHECKS_MIN:
            return _coroutine(key_range, watch, step, now_s)
    return None


def sight(task: Task) -> Sight | None:
    """Return the place that the shared event loop is at, if it is in a step of the task."""
    for _, watch, step in _steps(task):
        return watch.sight(step)
    return None


def _steps(task: Task) -> Iterator[tuple[RangeWorker, LoopWatch, LoopStep]]:
    for key_range in task.ranges:
        shared = key_range.waiting.shared
        if shared is not None:
            watch = shared.turns.watch
            step = watch.step()
            if step is not None and key_range.owns(step.task):
                yield key_range, watch, step


def _coroutine(
    key_range: RangeWorker, watch: LoopWatch, step: LoopStep, now_s: float
) -> BlockingCoroutine | None:
    record = None if key_range.unit_since_s is None else key_range.current_record()
    node = "" if key_range.processing is None else key_range.processing.graph.at_work()
    function = watch.place(step)
    if not function:
        return None  # the coroutine no longer blocks
    coroutine = BlockingCoroutine(
        function=plain_text(function)[:_FUNCTION_CHARACTERS_MAX],
        ms=int((now_s - step.since_s) * 1000),
        first_hash=key_range.setting.first_hash,
        node=node,
    )
    if record is None:
        return coroutine
    return msgspec.structs.replace(
        coroutine,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key_hash=record.key_hash,
    )
