"""Fixture of bounds tests: applications that end with their test."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bounds.large_run import LargeRun
from tests.integration.cluster import Cluster

MakeLargeRun = Callable[..., LargeRun]


@pytest.fixture
def make_large(cluster: Cluster, tmp_path: Path) -> Iterator[MakeLargeRun]:
    runs: list[LargeRun] = []

    def make(job: str, **settings: Any) -> LargeRun:
        run = LargeRun(
            cluster=cluster,
            folder=tmp_path,
            application_id=f"bounds-{secrets.token_hex(4)}",
            job=job,
            **settings,
        )
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.close()
        for worker in run.workers:
            # pytest shows this for failed tests only.
            sys.stdout.write(f"--- {worker.name}, end of its log ---\n{worker.log[-8_000:]}\n")
