"""The disk of a state directory is full (at the start, under tasks, in a restore), or slow."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.disks import SlowDisk, SmallDisk
from tests.faults.fault_run import FaultRun, eventually
from tests.integration.cluster import Cluster, until
from tests.integration.processes import WorkerProcess, owned
from tidewheel.streams.kafka.admin.group_log import state_topic

_FULL_S: Final = float(os.environ.get("TIDEWHEEL_FULL_DISK_S", "60"))

pytestmark = [
    pytest.mark.timeout(600 + int(_FULL_S)),
    pytest.mark.broker,
    pytest.mark.slow,
]

_SMALL_BUFFERS: Final = {"write_buffer_bytes": 1 << 20, "family_write_buffer_bytes": 1 << 16}
_MEBIBYTE: Final = 1 << 20
#: A disk whose flushes of a memtable take four seconds, and the time with it.
_SLOW_BYTES_PER_S: Final = 16 << 10
_SLOW_S: Final = 40.0
#: About 5 MB of state.
_MORE_KEYS: Final = 80_000
_FULL_TEXT: Final = "No space left on device"

MakeDisk = Callable[[str], SmallDisk]


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    disks: list[SmallDisk] = []

    def make(worker: str) -> SmallDisk:
        disks.append(SmallDisk(tmp_path / f"state-{worker}", megabytes=48))
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


def _run(make_run: MakeRun, cluster: Cluster) -> FaultRun:
    run = make_run(rate=500)
    letters = f"{run.application_id}-letters"
    cluster.create({letters: 1})
    run.config |= {
        "rocksdb": _SMALL_BUFFERS,
        "dead_letter_queue_topic": letters,
        "processing_exception_handler": "continue",
        "production_exception_handler": "continue",
    }
    return run


def _verify(run: FaultRun) -> None:
    run.verify()
    letters = run.cluster.log_ends(f"{run.application_id}-letters")
    assert not any(letters.values()), "a full disk is no record's fault"


@dataclass(frozen=True, slots=True)
class _Usage:
    memory_bytes: int
    descriptors: int
    log_bytes: int
    group_records: int
    files: int

    @classmethod
    def of(cls, run: FaultRun, worker: WorkerProcess, disk: SmallDisk) -> "_Usage":
        processes = worker.processes()
        return cls(
            memory_bytes=sum(each.memory_info().rss for each in processes),
            descriptors=sum(each.num_fds() for each in processes),
            log_bytes=worker.log_path.stat().st_size,
            group_records=sum(run.cluster.log_ends(state_topic(run.application_id)).values()),
            files=sum(1 for _ in disk.path.rglob("*")),
        )


@pytest.mark.fault("25")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.timeout(600 + 2 * _FULL_S)
def test_application_lives_with_a_full_disk_and_recovers(
    make_run: MakeRun,
    make_disk: MakeDisk,
    cluster: Cluster,
    record_property: Callable[..., None],
) -> None:
    """Its only worker stays full for a minute, or for `TIDEWHEEL_FULL_DISK_S`."""
    run = _run(make_run, cluster)
    disk = make_disk("a")
    run.begin("a")
    worker = run.workers["a"]
    run.until_progress()
    disk.fill()
    until(lambda: _FULL_TEXT in worker.log and not owned(worker), "the worker drops all tasks")
    if _FULL_S > 60:
        run.feed.rate = 10  # a backlog that the worker can process afterwards
    full_s = time.monotonic()
    time.sleep(_FULL_S / 4)
    before = _Usage.of(run, worker, disk)
    time.sleep(_FULL_S - (time.monotonic() - full_s))
    after = _Usage.of(run, worker, disk)
    minutes = _FULL_S * 3 / 4 / 60
    assert not worker.has_ended
    for name in ("memory_bytes", "descriptors", "log_bytes", "group_records", "files"):
        record_property(f"more_{name}", getattr(after, name) - getattr(before, name))
    assert after.memory_bytes - before.memory_bytes < 64 * _MEBIBYTE
    assert after.descriptors - before.descriptors < 50
    assert after.files - before.files < 50
    assert (after.log_bytes - before.log_bytes) / minutes < _MEBIBYTE / 8
    # Four tasks; at most once a minute each is granted, fails, and is revoked and released.
    assert (after.group_records - before.group_records) / minutes < 100
    disk.free()
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    _verify(run)


@pytest.mark.fault("25")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_worker_with_a_full_disk_leaves_its_tasks_to_the_others(
    make_run: MakeRun,
    make_disk: MakeDisk,
    cluster: Cluster,
    record_property: Callable[..., None],
) -> None:
    run = _run(make_run, cluster)
    disk = make_disk("c")
    run.begin()
    full = run.workers["c"]
    for _ in range(2):
        disk.fill()
        until(lambda: _FULL_TEXT in full.log and not owned(full), "c drops its tasks")
        record_property("moved_s", run.until_owned())
        run.until_progress()
        assert not full.has_ended
        disk.free()
        record_property("recovery_s", eventually(run.is_shared, "c has tasks again"))
    record_property("times", 2)
    run.until_progress()
    _verify(run)


@pytest.mark.fault("25")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.parametrize("runs_from", [None, 1_000], ids=["record by record", "in bulk"])
def test_disk_fills_while_a_store_is_restored(
    make_run: MakeRun,
    make_disk: MakeDisk,
    cluster: Cluster,
    runs_from: int | None,
    record_property: Callable[..., None],
) -> None:
    run = _run(make_run, cluster)
    run.begin("a")
    cluster.send(run.source, [(b"more-%06d" % number, b"x") for number in range(_MORE_KEYS)])
    run.until_progress()
    run.kill("a")
    disk = make_disk("b")
    disk.fill(leaving_bytes=2 * _MEBIBYTE)
    full = run.start("b", runs_from=runs_from)
    until(lambda: "can't run here" in full.log and _FULL_TEXT in full.log, "b has no space")
    if runs_from is not None:
        assert "no runs of" in full.log
    disk.fill()  # nothing more can be deleted to make room
    assert not full.has_ended
    disk.free()
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    _verify(run)


@pytest.mark.fault("25")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_worker_that_starts_on_a_full_disk_waits_for_space(
    make_run: MakeRun,
    make_disk: MakeDisk,
    cluster: Cluster,
    record_property: Callable[..., None],
) -> None:
    run = _run(make_run, cluster)
    run.begin("a")
    disk = make_disk("b")
    disk.fill()
    late = run.start("b")
    until(lambda: "is full; free space" in late.log, "b reports the full disk")
    run.until_progress()
    assert not late.has_ended
    disk.free()
    record_property("recovery_s", eventually(run.is_shared, "b has tasks"))
    _verify(run)


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[SlowDisk]:
    disk = SlowDisk(tmp_path / "state-c", megabytes=64)
    yield disk
    disk.unmount()


@pytest.mark.fault("SLOW-DISK")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_worker_with_a_slow_disk_lives(
    make_run: MakeRun, slow_disk: SlowDisk, cluster: Cluster, record_property: Callable[..., None]
) -> None:
    run = _run(make_run, cluster)
    run.config["session_timeout_ms"] = 15_000
    run.begin()
    slow = run.workers["c"]
    slow_disk.limit(_SLOW_BYTES_PER_S)
    slow_s = time.monotonic()
    write_s = slow_disk.write_s(_SLOW_BYTES_PER_S)
    record_property("write_s", write_s)
    assert write_s > 0.5, "a write that takes a second by the limit"
    time.sleep(max(slow_s + _SLOW_S - time.monotonic(), 0.0))
    record_property("recovery_s", eventually(run.is_owned, "each partition has an owner"))
    run.until_progress()
    assert not slow.has_ended
    assert slow.log.count("incarnation ") == 1, "it was never declared dead"
    slow_disk.limit(0)
    _verify(run)
