"""`TaskInfo`: what a program is told of the tasks of its process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.range_status import range_count


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


def active_info(task: ActiveTask, lags: Mapping[TopicPartition, int]) -> TaskInfo:
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
