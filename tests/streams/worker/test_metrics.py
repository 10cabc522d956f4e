"""Figures of a process, read while its loops run."""

from types import SimpleNamespace
from typing import Any

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus
from tidewheel.streams.worker.metrics import figures_of, task_infos
from tidewheel.tasks.loop.metrics import WorkerMetrics


def test_tasks_added_during_a_report_cause_no_error() -> None:
    tasks: dict[Any, Any] = {}
    task = SimpleNamespace(
        figures=SimpleNamespace(
            metrics=lambda: {"process-total": 1.0}, dropped=0, skipped=0, in_hand=lambda: 0
        ),
        counters=SimpleNamespace(drops={}),
    )

    class Disturbed(TaskId):
        """Task id whose hash adds a task."""

        def __hash__(self) -> int:
            tasks.setdefault(TaskId(1, len(tasks)), task)
            return tuple.__hash__(self)

    tasks |= {Disturbed(0, 0): task, TaskId(0, 1): task}
    watch = SimpleNamespace(call=RunningCall(text="enrich (app.py:3)", ms=1_500))
    worker = SimpleNamespace(
        metrics=WorkerMetrics(), updater=None, lags=dict, tasks=tasks, call_watch=watch
    )
    thread: Any = SimpleNamespace(life=None, worker=worker)

    before = len(tasks)
    figures = figures_of([thread], 1.0)

    assert len(tasks) > before
    assert {"0_0", "0_1"} <= figures["tasks"].keys()
    assert figures["longest-call-ms"] == 1_500


def test_K8_tasks_and_their_shards_are_sorted_by_number() -> None:
    def copy(task: str) -> Any:
        status = TaskStatus(task=task, role="standby", epoch=1, state="RUNNING")
        return SimpleNamespace(status=lambda: status)

    names = ["1_0", "0_10", "0_2/3of16", "0_2/12of16", "0_2"]
    worker: Any = SimpleNamespace(lags=dict, tasks={}, copies={name: copy(name) for name in names})
    assert [info.task_id for info in task_infos([worker])] == [
        "0_2",
        "0_2/3of16",
        "0_2/12of16",
        "0_10",
        "1_0",
    ]
