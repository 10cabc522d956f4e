"""The figures of a process: what `KafkaStreams.metrics()` says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.worker.stream_thread import StreamThread
from tidewheel.tasks.call_watch import longest_ms
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.range_status import range_count
from tidewheel.tasks.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One task of this process.

    Attributes:
        task_id: As "0_1".
        role: What it does here: "active" processes; "standby" and "learner" are copies that follow the state of a task
            elsewhere, a learner to take it over.
        state: CREATED, RESTORING, RUNNING, SUSPENDED or CLOSED; of a copy RESTORING, or READY to take over.
        positions: Next offset to process, per input partition ("topic-0"); of a copy, next offset of its changelogs.
        lag: Records not processed yet, per input partition, as far as the client knows; of a copy, per changelog.
        key_ranges: Key ranges the task is cut into; one at a parallelising factor of 1.

    >>> TaskInfo(task_id="0_1", role="active", state="RUNNING", positions={"in-1": 7}, lag={"in-1": 0}).key_ranges
    1
    """

    task_id: str
    role: Literal["active", "standby", "learner"]
    state: str
    positions: Mapping[str, int]
    lag: Mapping[str, int]
    key_ranges: int = 1


def task_infos(workers: Iterable[StreamWorker]) -> list[TaskInfo]:
    """Return what there is to tell of the tasks of some workers: by task, the active one first."""
    found: list[TaskInfo] = []
    for worker in workers:
        lags = worker.lags()
        found += [active_info(task, lags) for task in list(worker.tasks.values())]
        found += [copy_info(copy) for copy in list(worker.copies.values())]
    order = {"active": 0, "standby": 1, "learner": 2}
    return sorted(found, key=lambda each: ([*map(int, each.task_id.split("_"))], order[each.role]))


def active_info(task: Task, lags: Mapping[TopicPartition, int]) -> TaskInfo:
    """Return what there is to tell of a task that processes; `lags` are those of the whole process."""
    return TaskInfo(
        task_id=str(task.task_id),
        role="active",
        state=task.state.value,
        positions={
            str(partition): offset for partition, offset in sorted(dict(task.next_offsets).items())
        },
        lag={
            str(partition): lags[partition]
            for partition in sorted(task.inputs)
            if partition in lags
        },
        key_ranges=range_count(task),
    )


def copy_info(copy: LearnerTask) -> TaskInfo:
    """Return what there is to tell of a copy."""
    status = copy.status()
    return TaskInfo(
        task_id=status.task,
        role="learner" if status.role == "learner" else "standby",
        state=status.state,
        positions=status.changelog,
        lag={
            partition: max(end - status.changelog.get(partition, 0), 0)
            for partition, end in status.ends.items()
        },
    )


def figures_of(threads: Sequence[StreamThread], elapsed_s: float) -> dict[str, Any]:
    """Return the figures of all threads together.

    Args:
        threads: The workers of the process.
        elapsed_s: Seconds since the start.
    """
    figures: dict[str, Any] = {}
    stores = [each.life.globals for each in threads if each.life is not None]
    for globals_ in stores[:1]:  # each thread has all of them
        if globals_ is not None:
            figures["global-stores"] = globals_.metrics()
    workers = [each.worker for each in threads if each.worker is not None]
    if workers:
        figures |= _loops(workers, elapsed_s)
    return figures


def _drops(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
    """Return how many records were dropped, by operator and reason."""
    counts: dict[str, dict[str, int]] = {}
    for task in tasks:
        for (node, reason), drop in task.counters.drops.items():
            reasons = counts.setdefault(node, {})
            reasons[reason] = reasons.get(reason, 0) + drop.count
    return counts


def _loops(workers: Sequence[StreamWorker], elapsed_s: float) -> dict[str, Any]:
    counters = [worker.metrics for worker in workers]
    updaters = [worker.updater for worker in workers if worker.updater is not None]
    lags = {partition: lag for worker in workers for partition, lag in worker.lags().items()}
    # Copied at once: the loops take tasks in and let them go meanwhile.
    tasks = {task_id: task for worker in workers for task_id, task in list(worker.tasks.items())}
    processed = sum(each.processed for each in counters)
    times = [each.commit_times for each in counters]
    commits = sum(each.number for each in times)
    commit_s = sum(each.total_s for each in times)
    return {
        "poll-records-total": sum(each.consumed for each in counters),
        "process-total": processed,
        "process-rate": processed / elapsed_s if elapsed_s else 0.0,
        "commit-total": commits,
        "commit-latency-avg": commit_s / commits * 1000 if commits else 0.0,
        "commit-latency-max": max(each.longest_s for each in times) * 1000,
        "longest-call-ms": max(longest_ms(each.call_watch) for each in workers),
        "rolled-back-total": sum(each.rolled_back for each in counters),
        "records-lag": sum(lags.values()),
        "restore-total": sum(each.restored_records for each in updaters),
        "restore-rate": sum(each.restore_rate for each in updaters),
        "restore-remaining-records-total": sum(each.remaining_records for each in updaters),
        "restore-remaining-seconds": max(
            (each.restore_remaining_s for each in updaters), default=0.0
        ),
        "restore-waits": {
            str(task_id): text for each in updaters for task_id, text in sorted(each.waits.items())
        },
        "dropped-records-total": sum(task.figures.dropped for task in tasks.values()),
        "skipped-records-total": sum(task.figures.skipped for task in tasks.values()),
        "dropped-records": _drops(tasks.values()),
        "tasks": {str(task_id): task.figures.metrics() for task_id, task in sorted(tasks.items())},
        "lag": {str(partition): lag for partition, lag in sorted(lags.items())},
    }
