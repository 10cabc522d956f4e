"""Figures of a process: `KafkaStreams.metrics()`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.worker.stream_thread import StreamThread
from tidewheel.tasks.calls.call_watch import longest_ms
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.range_status import range_count
from tidewheel.tasks.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One task of this process.

    Attributes:
        role: "active" processes records. "standby" and "learner" are copies; a learner takes over.
        state: CREATED, RESTORING, RUNNING, SUSPENDED or CLOSED. Of a copy: RESTORING or READY.
        positions: Next offset by input partition ("topic-0"); of a copy, by changelog.
        lag: Unprocessed records by input partition, as known to the client; of a copy, by changelog.
        key_ranges: Parts that run in parallel; 1 at a parallelising factor of 1.

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
    """Return all tasks sorted by task id; of one id, the active task first."""
    infos: list[TaskInfo] = []
    for worker in workers:
        lags = worker.lags()
        infos += [active_info(task, lags) for task in list(worker.tasks.values())]
        infos += [copy_info(copy) for copy in list(worker.copies.values())]
    order = {"active": 0, "standby": 1, "learner": 2}
    return sorted(infos, key=lambda info: (TaskId.parse(info.task_id), order[info.role]))


def active_info(task: Task, lags: Mapping[TopicPartition, int]) -> TaskInfo:
    return TaskInfo(
        task_id=str(task.task_id),
        role="active",
        state=task.life.cycle.state.value,
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
    figures: dict[str, Any] = {}
    stores = [thread.life.globals for thread in threads if thread.life is not None]
    for globals_ in stores[:1]:  # each thread has a copy of the same rows: one is shown
        if globals_ is not None:
            figures["global-stores"] = globals_.metrics()
    workers = [thread.worker for thread in threads if thread.worker is not None]
    if workers:
        figures |= _loops(workers, elapsed_s)
    return figures


def _drops(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
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
    # `list` copies in one step: the workers' loops add and remove tasks concurrently.
    tasks = {task_id: task for worker in workers for task_id, task in list(worker.tasks.items())}
    processed = sum(worker.metrics.finished(list(worker.tasks.values())) for worker in workers)
    times = [counter.commit_times for counter in counters]
    commits = sum(time.number for time in times)
    commit_s = sum(time.total_s for time in times)
    return {
        "poll-records-total": sum(counter.consumed for counter in counters),
        "process-total": processed,
        "process-rate": processed / elapsed_s if elapsed_s else 0.0,
        "commit-total": commits,
        "commit-latency-avg": commit_s / commits * 1000 if commits else 0.0,
        "commit-latency-max": max(time.longest_s for time in times) * 1000,
        "longest-call-ms": max(longest_ms(worker.call_watch) for worker in workers),
        "rolled-back-total": sum(counter.rolled_back for counter in counters),
        "records-lag": sum(lags.values()),
        "restore-total": sum(updater.restored_records for updater in updaters),
        "restore-rate": sum(updater.restore_rate for updater in updaters),
        "restore-remaining-records-total": sum(updater.remaining_records for updater in updaters),
        "restore-remaining-seconds": max(
            (updater.restore_remaining_s for updater in updaters), default=0.0
        ),
        "restore-waits": {
            str(task_id): text
            for updater in updaters
            for task_id, text in sorted(updater.waits.items())
        },
        "dropped-records-total": sum(task.figures.dropped for task in tasks.values()),
        "skipped-records-total": sum(task.figures.skipped for task in tasks.values()),
        "dropped-records": _drops(tasks.values()),
        "tasks": {str(task_id): task.figures.metrics() for task_id, task in sorted(tasks.items())},
        "lag": {str(partition): lag for partition, lag in sorted(lags.items())},
    }
