"""One application with little memory and much data: a worker, its feeds and its results."""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.bounds.resources import MIB, ResourceWatch
from tests.integration.cluster import Cluster, Feed, until
from tests.integration.outcome import number_of
from tests.integration.processes import WorkerProcess
from tidewheel.tasks.processing.engine.output import ANY_PARTITION

#: The documented memory of a worker (docs/state.md, "Memory"), made small.
BUDGET: Final[dict[str, int]] = {
    "statestore_uncommitted_max_bytes": 8 * MIB,
    "statestore_cache_max_bytes": 2 * MIB,
    "block_cache_bytes": 4 * MIB,
    "write_buffer_bytes": 8 * MIB,
    "buffered_bytes_per_partition": 1 * MIB,
}
_OF_ROCKSDB: Final = ("block_cache_bytes", "write_buffer_bytes")
#: Memory of a worker besides its budget: Python, clients, and what the allocator keeps.
OVERHEAD_MIB: Final = 160
_BATCH: Final = 2_000
#: A broker on a busy machine still takes this many bytes per second.
_LEAST_BYTES_PER_S: Final = 200_000

#: Marks of each test of bounds.
MARKS: Final = [
    pytest.mark.timeout(1_800),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]


def budget_mib(partitions: int) -> float:
    """Return the memory that the settings promise; uncommitted entries count twice (read cache)."""
    total = sum(BUDGET.values()) + BUDGET["statestore_uncommitted_max_bytes"]
    return (total + (partitions - 1) * BUDGET["buffered_bytes_per_partition"]) / MIB


@dataclass(slots=True, kw_only=True)
class LargeRun:
    cluster: Cluster
    folder: Path
    application_id: str
    job: str
    partitions: int = 2
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])

    @property
    def source(self) -> str:
        return f"{self.application_id}-in"

    @property
    def second(self) -> str:
        return f"{self.source}-2"

    @property
    def sink(self) -> str:
        return f"{self.application_id}-out"

    def create_topics(self, **config: str) -> None:
        names = (self.source, self.second, self.sink)
        self.cluster.create(dict.fromkeys(names, self.partitions), **config)

    def start(
        self,
        *,
        runs_from: int | None = None,
        fixed: bool = True,
        before: Callable[[int], object] = lambda _: None,
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker; `before` gets its process id before it begins."""
        worker = WorkerProcess(self.folder, f"{self.job}.{len(self.workers)}")
        self.workers.append(worker)
        small = {name: size for name, size in BUDGET.items() if name not in _OF_ROCKSDB}
        config = {
            "application_id": self.application_id,
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "state_dir": str(self.folder / "state"),
            "rocksdb": {name: BUDGET[name] for name in _OF_ROCKSDB},
            **small,
            **self.config,
            **settings,
        }
        before(worker.process.pid)
        worker.go(self.job, self.source, self.sink, config, runs_from=runs_from, fixed=fixed)
        return worker

    @contextmanager
    def running(self, **settings: Any) -> Generator[ResourceWatch]:
        """Run a worker; yield its resources, sampled from the start on."""
        worker = self.start(**settings)
        with ResourceWatch(worker.process.pid) as watch:
            worker.wait_until_running()
            yield watch
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0, worker.log[-3_000:]

    def send(
        self,
        records: Iterable[tuple[bytes, bytes]],
        topic: str | None = None,
        *,
        first_timestamp: int = 1_000,
        partition: int = ANY_PARTITION,
    ) -> int:
        """Write records in batches, 1 ms of event time apart; return their number."""
        rows, sent = iter(records), 0
        with Feed(self.cluster, topic or self.source) as feed:
            while batch := list(islice(rows, _BATCH)):
                feed.send(batch, partition=partition, first_timestamp=first_timestamp + sent)
                sent += len(batch)
        return sent

    def until_consumed(self, *topics: str, timeout_s: float = 120) -> float:
        """Wait until the inputs are committed; fail with the log if the worker ends before."""
        begun_s = time.monotonic()
        worker = self.workers[-1]

        def is_done() -> bool:
            assert not worker.has_ended, worker.log[-4_000:]
            return self.cluster.is_consumed(self.application_id, *(topics or (self.source,)))

        until(is_done, f"{self.job} consumes its input", timeout_s)
        return time.monotonic() - begun_s

    def results(self) -> Counter[tuple[bytes, int]]:
        return Counter(
            (key, number_of(value or b""))
            for key, values in self.cluster.values_by_key(self.sink).items()
            for value in values
        )

    def state_mib(self) -> float:
        files = (path for path in (self.folder / "state").rglob("*.sst") if path.is_file())
        return sum(path.stat().st_size for path in files) / MIB

    def lose_state(self) -> None:
        shutil.rmtree(self.folder / "state")

    def close(self) -> None:
        for worker in self.workers:
            worker.signal_all(signal.SIGKILL)
            worker.close()


def patience_s(size_bytes: int) -> float:
    return 120 + size_bytes / _LEAST_BYTES_PER_S


def payload(number: int, size: int) -> bytes:
    """Return a value that begins with a number; the rest does not compress."""
    return number.to_bytes(4) + random.Random(number).randbytes(size - 4)


def key_of(number: int) -> bytes:
    return b"key-%07d" % number
