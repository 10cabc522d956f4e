"""Long calls of user code: the worker counts as slow, not as dead."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartWorker
from tests.integration.processes import owned

#: The hang time-out is one second; calls last several seconds.
HANG_MS = 1_000
NAP = "4"
QUICK = {
    "settling_ms": 0, "worker_hang_timeout_ms": HANG_MS, "session_timeout_ms": 900, "heartbeat_interval_ms": 100,
    "client_tags": {"nap_s": NAP},
}  # fmt: skip
#: Log line of a fenced worker.
FENCED = "joining the group again"


@pytest.fixture
def topics(cluster: Cluster, unique: str) -> tuple[str, str]:
    cluster.create({f"in-{unique}": 3, f"out-{unique}": 3})
    return f"in-{unique}", f"out-{unique}"


def _values(cluster: Cluster, sink: str) -> list[bytes]:
    return sorted(record.value or b"" for record in cluster.read(sink))


@pytest.mark.fault("52")
@pytest.mark.parametrize(
    ("job", "named"),
    [
        ("slow_call", ["nap (", "-0 offset 1 "]),
        ("slow_async", ["await_nap (", "-0 offset 1 "]),
        ("slow_holding", ["hold (", "from offset 0 to "]),
        ("slow_init", ["Napping.init ("]),
    ],
)
def test_a_lone_worker_is_not_fenced_in_a_long_call(
    job: str,
    named: list[str],
    cluster: Cluster,
    config: dict[str, Any],
    unique: str,
    start_worker: StartWorker,
) -> None:
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 1, sink: 1})
    cluster.send(source, [(b"k", value) for value in (b"0", NAP.encode(), b"0.1")])
    worker = start_worker("alone")
    worker.go(job, source, sink, config | QUICK | {"max_call_ms": 2_000}, fixed=False)
    until(lambda: len(cluster.read(sink)) >= 3, "all are out")
    assert _values(cluster, sink) == [b"0", b"0.1", NAP.encode()]
    assert FENCED not in worker.log
    errors = [line for line in worker.log.splitlines() if "longer than max_call_ms" in line]
    # The probes of these tests count as user code, and a commit below one may take seconds.
    (error,) = [line for line in errors if "probes.py:" not in line]
    assert "slow_calls.py:" in error
    assert [word for word in named if word not in error] == []


@pytest.mark.fault("52")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "named"),
    [("slow_call", ["nap (", "offset 1 "]), ("slow_holding", ["hold (", "offset"])],
)
def test_a_call_longer_than_a_transaction_may_last_happens_once(
    job: str,
    named: list[str],
    cluster: Cluster,
    config: dict[str, Any],
    topics: tuple[str, str],
    start_worker: StartWorker,
) -> None:
    """Its worker has transactions of 31 s; the work before the call is committed meanwhile."""
    source, sink = topics
    nap = str((HANG_MS + 30_000) / 1_000 + 14).encode()
    worker = start_worker("alone")
    worker.go(job, source, sink, config | QUICK | {"max_call_ms": 2_000}, fixed=False)
    until(lambda: len(owned(worker)) == 3, "it has all tasks")
    cluster.send(source, [(b"k", b"0")] * 200, partition=1)
    cluster.send(source, [(b"k", value) for value in (b"0", nap, b"0.1")], partition=0)
    until(lambda: len(cluster.read(sink)) >= 203, "all are out", 300)
    cluster.wait_until_consumed(config["application_id"], source)
    assert _values(cluster, sink) == sorted([b"0"] * 201 + [nap, b"0.1"])
    assert FENCED not in worker.log
    errors = [line for line in worker.log.splitlines() if "longer than max_call_ms" in line]
    (error,) = [line for line in errors if "probes.py:" not in line]
    assert [word for word in ["slow_calls.py:", *named] if word not in error] == []


@pytest.mark.fault("52")
def test_other_workers_continue_during_a_long_call(
    cluster: Cluster,
    config: dict[str, Any],
    topics: tuple[str, str],
    start_worker: StartWorker,
    tmp_path: Path,
) -> None:
    source, sink = topics
    end = tmp_path / "end"
    workers = [start_worker(f"worker{number}") for number in range(3)]
    for worker in workers:
        worker.go("slow_call", source, sink, config | QUICK, fixed=False)
    until(lambda: all(len(owned(worker)) == 1 for worker in workers), "each worker has one task")
    cluster.send(source, [(b"k", str(end).encode())], partition=0)
    cluster.send(source, [(b"k", b"0.01")] * 20, partition=1)
    until(lambda: len(cluster.read(sink)) >= 20, "the others commit")
    assert str(end).encode() not in _values(cluster, sink)
    until(lambda: any("nap (" in worker.log for worker in workers), "the call is a long one")
    end.touch()
    until(lambda: len(cluster.read(sink)) >= 21, "the call has ended")
    assert [worker.name for worker in workers if FENCED in worker.log] == []
