"""`TaskInfo`: what a program is told of the tasks of its process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rebalance.model import TopicPartition
from tasks.active_task import ActiveTask


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """One task of this process.

    Attributes:
        task_id: As "0_1".
        role: What it does here; this version has active tasks only.
        state: CREATED, RESTORING, RUNNING, SUSPENDED or CLOSED.
        positions: Next offset to process, per input partition ("topic-0").
        lag: Records not processed yet, per input partition, as far as the client knows.
        key_ranges: Key ranges of the task's workers; one at a parallelising factor of 1.

    >>> TaskInfo(task_id="0_1", role="active", state="RUNNING", positions={"in-1": 7}, lag={"in-1": 0}).key_ranges
    1
    """

    task_id: str
    role: Literal["active", "standby", "learner"]
    state: str
    positions: Mapping[str, int]
    lag: Mapping[str, int]
    key_ranges: int = 1


def task_info(task: ActiveTask, lags: Mapping[TopicPartition, int]) -> TaskInfo:
    """Return what there is to tell of a task; `lags` are those of the whole process."""
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
    )
