"""Many kills of workers that share one partition by shards."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.conftest import StartWorker, start_worker
from tests.integration.shards.kill_run import JOBS, KillRun

__all__ = ["start_worker"]

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly("TIDEWHEEL_FAULTS")]

_KILLS = 8


@pytest.mark.timeout(3_600)
@pytest.mark.fault("SHARDS")
@pytest.mark.parametrize("job", JOBS)
def test_K8_shards_survive_kills(
    cluster: Cluster,
    tmp_path: Path,
    start_worker: StartWorker,
    job: str,
    record_property: Callable[[str, Any], None],
) -> None:
    unique = secrets.token_hex(4)
    config = {
        "application_id": f"app-{unique}",
        "bootstrap_servers": cluster.bootstrap_servers,
        "state_dir": str(tmp_path / "state"),
        "commit_interval_ms": 50,
        "statestore_cache_max_bytes": 0,
    }
    run = KillRun(cluster, config, unique, start_worker, job)
    run.run(_KILLS)
    record_property("times", run.kills)
    record_property("records", run.records)
    record_property("aborted", cluster.aborted(run.sink))
