"""Hundreds of tasks with stores in one process."""

import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults.bounds.conftest import MakeLargeRun
from tests.faults.bounds.large_run import LargeRun, key_of, payload
from tests.faults.bounds.resources import ResourceWatch
from tests.integration.cluster import until
from tests.integration.processes import WorkerProcess, owned

_TASKS: Final = int(os.environ.get("TIDEWHEEL_BOUNDS_TASKS", "500"))
_RECORDS: Final = 20_000
_PATIENCE_S: Final = 600.0
#: Log, manifest, identity, lock and files of a small database, and the rest of the process.
_DESCRIPTORS_PER_TASK: Final = 12
_OTHER_DESCRIPTORS: Final = 200
_THREADS: Final = 80
#: Objects of a task, its database and its memtables.
_MIB_PER_TASK: Final = 1.0
_OTHER_MIB: Final = 250

pytestmark = [
    pytest.mark.timeout(2_400),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]


def _until_owning(worker: WorkerProcess, tasks: int, others: int = 0) -> float:
    """Wait until a worker owns so many tasks, or at least, if other workers share them."""
    begun_s = time.monotonic()

    def is_reached() -> bool:
        assert not worker.has_ended, worker.log[-4_000:]
        count = len(owned(worker))
        return count >= tasks if others else count == tasks

    until(is_reached, f"{worker.name} owns {tasks} tasks", _PATIENCE_S)
    return time.monotonic() - begun_s


def _send(run: LargeRun) -> None:
    run.send((key_of(each), payload(0, 50)) for each in range(_RECORDS))
    run.until_consumed(timeout_s=_PATIENCE_S)


def _check(watch: ResourceWatch) -> None:
    assert watch.peak_descriptors < _OTHER_DESCRIPTORS + _TASKS * _DESCRIPTORS_PER_TASK
    assert watch.peak_threads < _THREADS
    assert watch.peak_mib < _OTHER_MIB + _TASKS * _MIB_PER_TASK


@pytest.mark.fault("BOUNDS")
def test_hundreds_of_tasks_start_restore_move_and_stop(
    make_large: MakeLargeRun, record_property: Callable[..., None]
) -> None:
    run = make_large(
        "large_table",
        partitions=_TASKS,
        config={
            "statestore_cache_max_bytes": 0,
            "settling_ms": 0,
            "max_warmup_replicas": 50,
            "drain_timeout_ms": int(_PATIENCE_S * 1_000 / 2),  # hundreds of tasks move
        },
    )
    run.cluster.create({run.source: _TASKS, run.sink: _TASKS})
    first = run.start(fixed=False)
    with ResourceWatch(first.process.pid) as watch:
        record_property("start_s", _until_owning(first, _TASKS))
        _send(run)
        first.signal_all(signal.SIGKILL)
        first.wait()
    record_property("times", _TASKS)
    record_property("peak_descriptors", watch.peak_descriptors)
    record_property("peak_threads", watch.peak_threads)
    record_property("peak_rss_mb", round(watch.peak_mib))
    _check(watch)
    run.lose_state()
    second = run.start(fixed=False)
    with ResourceWatch(second.process.pid) as watch:
        record_property("recovery_s", _until_owning(second, _TASKS))
        _send(run)
        third = run.start(fixed=False, state_dir=str(run.folder / "state-of-third"))
        with ResourceWatch(third.process.pid) as watch_of_third:
            record_property("move_s", _until_owning(third, _TASKS // 3, others=1))
            begun_s = time.monotonic()
            second.send(signal.SIGTERM)
            assert second.process.wait(_PATIENCE_S) == 0, second.log[-3_000:]
            record_property("stop_s", time.monotonic() - begun_s)
            _until_owning(third, _TASKS)
            _send(run)
    _check(watch)
    _check(watch_of_third)
    third.send(signal.SIGTERM)
    assert third.wait() == 0, third.log[-3_000:]
    expected = {(key_of(each), number): 1 for each in range(_RECORDS) for number in (1, 2, 3)}
    assert run.results() == expected


@pytest.mark.fault("BOUNDS")
def test_too_low_a_limit_of_open_files_is_named_at_the_start(make_large: MakeLargeRun) -> None:
    run = make_large("large_table", partitions=50)
    run.create_topics()
    worker = run.start(before=lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (300, 300)))
    until(lambda: worker.has_ended, "the worker ends")
    assert worker.wait() != 0
    for text in ("open files", "300", "ulimit -n"):
        assert text in worker.log, worker.log[-3_000:]
