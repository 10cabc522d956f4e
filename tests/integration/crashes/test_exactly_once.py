"""Workers killed many times: exact output under exactly_once, exact state under both guarantees."""

import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster
from tests.integration.conftest import StartApp
from tests.integration.crashes.crash_run import (
    COMMIT_INTERVAL_S,
    FEED_S,
    KILLS,
    KILLS_BETWEEN_COMMITS,
    RECORDS_PER_S,
    TAILS_REPLAYED,
    CrashRun,
)
from tests.integration.outcome import number_of
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import ValueAndTimestamp

#: The four runs take about a minute, and a busy machine has needed more than seven. Each wait inside
#: has its own limit, so this one only ends what no wait has ended.
pytestmark = [pytest.mark.timeout(3_600), pytest.mark.alone]

Runs = dict[tuple[str, str], CrashRun]

_RUNS: Final = [
    (guarantee, job)
    for guarantee in ("exactly_once", "at_least_once")
    for job in ("count_by_key", "word_count")
]


@pytest.fixture(scope="module")
def runs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("crash-runs")
    made = {
        (guarantee, job): CrashRun(
            cluster=cluster,
            job=job,
            config=_config(cluster, folder, f"{folder.name}-{guarantee}-{job}", guarantee),
            folder=folder / f"{guarantee}-{job}",
            seed=seed,
        )
        for seed, (guarantee, job) in enumerate(_RUNS)
    }
    for run in made.values():
        run.start()
    for run in made.values():
        run.finish()
    return made


def _config(cluster: Cluster, folder: Path, application_id: str, guarantee: str) -> dict[str, Any]:
    return {
        "application_id": application_id,
        "bootstrap_servers": cluster.bootstrap_servers,
        "state_dir": str(folder / "state"),
        "processing_guarantee": guarantee,
        "statestore_cache_max_bytes": 0,
        "commit_interval_ms": int(COMMIT_INTERVAL_S * 1000),
        # Small buffers: RocksDB flushes often, so kills fall between flushes of different stores. A
        # kill then loses a tail, not everything since the first start.
        "rocksdb": {"write_buffer_bytes": 128 << 10, "family_write_buffer_bytes": 64 << 10},
    }


@pytest.mark.parametrize("which", _RUNS, ids="-".join)
def test_workers_are_killed_often_and_between_commits(runs: Runs, which: tuple[str, str]) -> None:
    run = runs[which]

    assert run.exit_code == 0
    assert len(run.records) >= RECORDS_PER_S * 40
    assert min(run.in_each_partition().values()) >= len(run.records) // 4, run.in_each_partition()
    assert run.fed_s >= FEED_S
    assert run.counts.kills >= KILLS, run.counts
    assert run.counts.between_commits >= KILLS_BETWEEN_COMMITS, run.counts
    assert run.counts.tails_replayed >= TAILS_REPLAYED, run.counts


@pytest.mark.parametrize("which", _RUNS, ids="-".join)
def test_state_equals_direct_computation(
    runs: Runs, which: tuple[str, str], cluster: Cluster, start_app: StartApp
) -> None:
    run = runs[which]
    expected = _expected(run)

    folded = {
        key: (number_of(value), timestamp)
        for key, (value, timestamp) in cluster.folded(run.changelog).items()
    }
    assert folded == expected

    rows = {key.decode(): ValueAndTimestamp(*row) for key, row in expected.items()}
    app = start_app(JOBS[run.job](run.source, run.sink), run.config)
    assert app.metrics()["restore-total"] == 0, "a clean stop leaves nothing to restore"
    assert dict(app.store(STORE).all()) == rows

    # Restore once more, from a changelog full of aborted transactions.
    assert app.close(timeout=30_000)
    shutil.rmtree(Path(run.config["state_dir"]) / run.application_id)
    app = start_app(JOBS[run.job](run.source, run.sink), run.config)
    assert app.metrics()["restore-total"] >= len(rows)
    assert dict(app.store(STORE).all()) == rows


@pytest.mark.parametrize("job", ["count_by_key", "word_count"])
def test_N10_exactly_once_output_has_every_update_once(
    runs: Runs, job: str, cluster: Cluster
) -> None:
    run = runs["exactly_once", job]

    output = cluster.values_by_key(run.sink)

    assert output == {
        key: [_bytes(number) for number in range(1, count + 1)]
        for key, (count, _) in _expected(run).items()
    }


@pytest.mark.parametrize("job", ["count_by_key", "word_count"])
def test_N10_at_least_once_output_has_every_update_and_no_other(
    runs: Runs, job: str, cluster: Cluster
) -> None:
    run = runs["at_least_once", job]
    expected = _expected(run)

    output = cluster.values_by_key(run.sink)

    assert {key: set(values) for key, values in output.items()} == {
        key: {_bytes(number) for number in range(1, count + 1)}
        for key, (count, _) in expected.items()
    }
    assert sum(map(len, output.values())) > sum(count for count, _ in expected.values())


def _expected(run: CrashRun) -> dict[bytes, tuple[int, int]]:
    counts: Counter[bytes] = Counter()
    latest: dict[bytes, int] = {}
    for index, (key, value) in enumerate(run.records):
        for each in value.split() if run.job == "word_count" else (key,):
            counts[each] += 1
            latest[each] = 1_000 + index
    return {key: (count, latest[key]) for key, count in counts.items()}


def _bytes(number: int) -> bytes:
    return struct.pack(">q", number)
