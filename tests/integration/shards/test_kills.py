"""Two workers share one partition by shards, and are killed: the result is exact."""

from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.conftest import StartWorker
from tests.integration.shards.kill_run import JOBS, KillRun

_KILLS = 2


@pytest.mark.timeout(1_800)
@pytest.mark.fault("SHARDS")
@pytest.mark.parametrize("job", JOBS)
def test_K8_killed_workers_lose_repeat_and_reorder_nothing(
    cluster: Cluster, config: dict[str, Any], unique: str, start_worker: StartWorker, job: str
) -> None:
    run = KillRun(cluster, config, unique, start_worker, job)
    run.run(_KILLS)
