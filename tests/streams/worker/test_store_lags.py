"""Lags of the stores of a process, by partition."""

from types import SimpleNamespace
from typing import Any

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.worker.queries import store_lags
from tidewheel.tasks.task.lifecycle import TaskState

CHANGELOG = TopicPartition("app-counts-changelog", 0)


def _running() -> Any:
    return SimpleNamespace(
        life=SimpleNamespace(cycle=SimpleNamespace(state=TaskState.RUNNING)),
        stores=SimpleNamespace(specs={"counts": None}),
    )


def _copy(position: int, end: int) -> Any:
    return SimpleNamespace(
        progress=SimpleNamespace(ends={CHANGELOG: end}, positions={CHANGELOG: position}),
        task=SimpleNamespace(
            stores=SimpleNamespace(changelogs={CHANGELOG: "counts"}),
            life=SimpleNamespace(source_stores={}),
        ),
    )


def _lags(tasks: dict[str, Any], copies: dict[str, Any]) -> dict[str, dict[int, int]]:
    worker: Any = SimpleNamespace(
        tasks={TaskId.parse(name): task for name, task in tasks.items()},
        copies={TaskId.parse(name): copy for name, copy in copies.items()},
    )
    thread: Any = SimpleNamespace(worker=worker)
    return store_lags([thread])


def test_the_lag_of_a_partition_is_that_of_its_task() -> None:
    assert _lags({"0_0": _running()}, {}) == {"counts": {0: 0}}
    assert _lags({}, {"0_0": _copy(40, 50)}) == {"counts": {0: 10}}
    assert _lags({"0_0": _running()}, {"0_0": _copy(40, 50)}) == {"counts": {0: 0}}


def test_the_lag_of_a_partition_is_that_of_the_slowest_of_its_shards_here() -> None:
    shards = {"0_0/0of4": _copy(40, 50), "0_0/1of4": _copy(20, 50)}
    assert _lags({"0_0/2of4": _running()}, shards) == {"counts": {0: 30}}
