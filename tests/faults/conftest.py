"""Fixture of fault tests: runs that end with their test."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_run import FaultRun
from tests.integration.cluster import Cluster

MakeRun = Callable[..., FaultRun]


@pytest.fixture
def make_run(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[MakeRun]:
    runs: list[FaultRun] = []

    def make(**settings: Any) -> FaultRun:
        made = FaultRun(
            **{
                "cluster": cluster,
                "folder": tmp_path,
                "application_id": f"fault-{secrets.token_hex(4)}",
                "record": record_property,
                **settings,
            }
        )
        runs.append(made)
        return made

    yield make
    for run in runs:
        run.close()
        for worker in [*run.workers.values(), *run.dead]:
            # pytest shows this for failed tests only.
            sys.stdout.write(f"--- {worker.name}, end of its log ---\n{worker.log[-8_000:]}\n")
