"""Whatever is killed, nothing wrong is ever served, and running it again finishes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from state_stores.bulk_restore.location import SnapshotLocation
from streams import StreamsConfig
from streams.bulk.restoring import restore_stores
from tests.bulk.changelogs import Changelogs, assert_restored, many_records, name_of
from tests.bulk.conftest import MakeConfig
from tests.bulk.programs.restoring import STAGES
from tests.integration.cluster import Cluster, until
from tests.integration.forked import ForkedProcess
from tests.streams.bulk.inline import inline_driver

_PROGRAM = "tests.bulk.programs.restoring"
_KINDS = ("timestamped", "session")
_ROOT = Path(__file__).parents[2]
_SPARK_S = 400.0
_STDERR = 2


def _order(
    config: StreamsConfig, marker: Path, *, stage: str | None, master: str | None
) -> dict[str, Any]:
    """Return what a restore in a process of its own is told."""
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
    }


def _start(
    config: StreamsConfig, marker: Path, *, stage: str | None, master: str
) -> "subprocess.Popen[str]":
    """Start a restore with Spark in a group of its own."""
    program = subprocess.Popen(
        [sys.executable, "-m", _PROGRAM],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},  # executors have to find the program, too
    )
    assert program.stdin is not None
    program.stdin.write(json.dumps(_order(config, marker, stage=stage, master=master)))
    program.stdin.close()
    return program


def _changelogs(cluster: Cluster, config: StreamsConfig) -> Changelogs:
    changelogs = Changelogs(cluster, config.application_id, _KINDS)
    changelogs.write([many_records(_KINDS, 300)])
    return changelogs


@pytest.mark.parametrize("stage", STAGES)
def test_a_driver_killed_anywhere(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path, stage: str
) -> None:
    """What was published is whole, what was ingested is right, and the next run does the rest."""
    config = make_config()
    changelogs = _changelogs(cluster, config)
    order = _order(config, tmp_path / "marker", stage=stage, master=None)
    killed = ForkedProcess(_PROGRAM, _STDERR)
    with killed.stdin as stdin:
        stdin.write(json.dumps(order).encode())
    assert killed.wait(120) == -signal.SIGKILL
    place = SnapshotLocation(str(config.snapshot_location))
    published = [place.newest(config.application_id, name_of(kind)) for kind in _KINDS]
    if stage == "everything read, nothing published":
        assert published == [None, None]
    changelogs.write([many_records(_KINDS, 20, seed=8)])
    with inline_driver(config) as driver:
        restore_stores(driver, changelogs.stores)
    assert_restored(changelogs, config)


def test_a_driver_killed_while_its_executors_read(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path
) -> None:
    """Nothing is published, and another driver begins anew."""
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


def test_an_executor_killed_after_its_upload(
    cluster: Cluster, make_config: MakeConfig, tmp_path: Path
) -> None:
    """On executors that are processes of their own, which need only what pip installs: Spark does the task again."""
    config = make_config()
    changelogs = _changelogs(cluster, config)
    marker = tmp_path / "marker"
    program = _start(config, marker, stage=None, master="local-cluster[2,1,1024]")
    assert program.wait(_SPARK_S) == 0
    assert marker.exists(), "an executor was killed"
    assert_restored(changelogs, config)
