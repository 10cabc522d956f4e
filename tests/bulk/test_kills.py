"""Kills leave no wrong result, and another run finishes the work."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bulk.changelogs import Changelogs, assert_restored, many_records, name_of
from tests.bulk.conftest import MakeConfig
from tests.bulk.programs.restoring import STAGES, standing
from tests.integration.cluster import Cluster, until
from tests.integration.forked import ForkedProcess
from tests.streams.bulk.inline import inline_driver
from tidewheel import StreamsConfig
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.streams.bulk.executors import build_range, merge_into_one
from tidewheel.streams.bulk.restore import restore_stores

_PROGRAM = "tests.bulk.programs.restoring"
_KINDS = ("timestamped", "session")
_ROOT = Path(__file__).parents[2]
_SPARK_S = 400.0
_STDERR = 2
_APART = "local-cluster[2,1,1024]"
_EXECUTOR = "CoarseGrainedExecutorBackend"


def _order(
    config: StreamsConfig,
    marker: Path,
    *,
    stage: str | None,
    master: str | None,
    go: Path | None = None,
) -> dict[str, Any]:
    return {
        "config": {
            "application_id": config.application_id,
            "bootstrap_servers": config.bootstrap_servers,
            "state_dir": str(config.state_dir),
            "snapshot_location": config.snapshot_location,
        },
        "kinds": _KINDS,
        "master": master,
        "stage": stage,
        "marker": str(marker),
        "go": None if go is None else str(go),
    }


def _start(
    config: StreamsConfig, marker: Path, *, stage: str | None, master: str, go: Path | None = None
) -> "subprocess.Popen[str]":
    return _ordered(_PROGRAM, _order(config, marker, stage=stage, master=master, go=go))


def _ordered(module: str, order: dict[str, Any]) -> "subprocess.Popen[str]":
    program = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},  # executors must find the program, too
    )
    assert program.stdin is not None
    program.stdin.write(json.dumps(order))
    program.stdin.close()
    return program


def _changelogs(cluster: Cluster, config: StreamsConfig) -> Changelogs:
    changelogs = Changelogs(cluster, config.application_id, _KINDS)
    changelogs.write([many_records(_KINDS, 300)])
    return changelogs


@pytest.mark.fault("45")
@pytest.mark.parametrize("stage", STAGES)
def test_a_driver_killed_anywhere(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path, stage: str
) -> None:
    config = make_config()
    changelogs = _changelogs(cluster, config)
    order = _order(config, tmp_path / "marker", stage=stage, master=None)
    killed = ForkedProcess(_PROGRAM, _STDERR)
    with killed.stdin as stdin:
        stdin.write(json.dumps(order).encode())
    assert killed.wait(120) == -signal.SIGKILL
    place = SnapshotLocation(str(config.snapshot_location))
    published = [place.newest(config.application_id, name_of(kind)) for kind in _KINDS]
    if stage == "records read, snapshot unpublished":
        assert published == [None, None]
    changelogs.write([many_records(_KINDS, 20, seed=8)])
    with inline_driver(config) as driver:
        restore_stores(driver, changelogs.stores)
    assert_restored(changelogs, config)


@pytest.mark.fault("45")
def test_a_driver_killed_while_its_executors_read(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config()
    changelogs = _changelogs(cluster, config)
    marker = tmp_path / "marker"
    program = _start(config, marker, stage="executors", master="local[2]")
    try:
        until(lambda: marker.exists() or program.poll() is not None, "a task has begun", _SPARK_S)
        assert program.poll() is None, "it waits to be killed"
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(60)
    place = SnapshotLocation(str(config.snapshot_location))
    assert place.newest(config.application_id, name_of(_KINDS[0])) is None
    with inline_driver(config) as driver:
        restore_stores(driver, changelogs.stores)
    assert_restored(changelogs, config)


@pytest.mark.fault("45")
@pytest.mark.fault("58")
def test_an_executor_killed_after_its_upload(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config()
    changelogs = _changelogs(cluster, config)
    marker = tmp_path / "marker"
    program = _start(config, marker, stage=None, master=_APART)
    assert program.wait(_SPARK_S) == 0
    assert marker.exists(), "an executor was killed"
    assert_restored(changelogs, config)


@pytest.mark.fault("45")
@pytest.mark.fault("58")
def test_executors_killed_in_each_stage_of_a_snapshot_and_of_a_restore(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Spark starts another executor."""
    config = make_config()
    changelogs = _changelogs(cluster, config)
    marker, go = tmp_path / "marker", tmp_path / "go"
    program = _start(config, marker, stage=None, master=_APART, go=go)
    place = SnapshotLocation(str(config.snapshot_location))
    newest = partial(place.newest, config.application_id)

    def generations() -> list[int | None]:
        found = [newest(name) for name in changelogs.stores]
        return [None if each is None else each.generation for each in found]

    try:
        executor = _executor_at(program, marker, "snapshot", build_range)
        assert generations() == [None, None], "not without this one's work"
        _kill(executor)
        until(lambda: generations() == [0, 0], "a snapshot is there", _SPARK_S)
        changelogs.write([many_records(_KINDS, 900, seed=8)])
        go.touch()
        _kill(_executor_at(program, marker, "restore", build_range))
        _kill(_executor_at(program, marker, "restore", merge_into_one))
        assert program.wait(_SPARK_S) == 0
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait(60)
    assert_restored(changelogs, config)


def _executor_at(
    program: "subprocess.Popen[str]", marker: Path, job: str, work: Callable[..., object]
) -> psutil.Process:
    told = Path(f"{standing(str(marker), job)}{work.__name__}")

    def stands() -> bool:
        assert program.poll() is None, "it waits for an executor to be killed"
        return told.exists() and told.read_text(encoding="ascii").endswith("\n")

    until(stands, f"{work.__name__} of the {job} stands still", _SPARK_S)
    above = psutil.Process(int(told.read_text(encoding="ascii"))).parents()
    assert program.pid in [process.pid for process in above]
    (executor,) = [process for process in above if _EXECUTOR in " ".join(process.cmdline())]
    return executor


def _kill(executor: psutil.Process) -> None:
    executor.send_signal(signal.SIGKILL)
    executor.wait(60)


def test_a_batch_run_whose_executors_are_killed_mixes_no_attempts(tmp_path: Path) -> None:
    """Keys are drawn at random: each is counted once, and has one name in all results."""
    order = {"master": _APART, "folder": str(tmp_path), "records": 1_000}
    program = _ordered("tests.bulk.programs.drawing", order)
    assert program.wait(_SPARK_S) == 0
    assert all((tmp_path / step).exists() for step in ("drawing", "counting")), "both were killed"
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert sorted(number for _, number in found["drawn"]) == list(range(1_000))
    counts = sorted([key, 1] for key, _ in found["drawn"])
    assert sorted(found["counts"]) == counts
    assert sorted(found["counted"]) == counts
