"""One run of a fault: three workers count keys under a steady feed; then everything is verified."""

import itertools
import logging
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.faults.group_trace import GroupTrace, read_trace
from tests.faults.verdict import Verdict, verify
from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.processes import WorkerProcess
from tidewheel.rebalance.protocol.records import LeaderClaim, MemberRecord

_log: Final = logging.getLogger(__name__)

PARTITIONS: Final = 4
KEYS: Final = 20_000
WORKERS: Final = ("a", "b", "c")


@dataclass(slots=True, kw_only=True)
class FaultRun:
    """Workers of one application, by name, and their feed.

    Attributes:
        bootstrap_servers: Address for the workers, such as a proxy's; default: the cluster's.
        config: Settings of all workers; their state is in `folder`.
        rate: Records per second of the feed.
        resumes: From now on, processes that failpoints stop are continued at the next look.
    """

    cluster: Cluster
    folder: Path
    application_id: str
    bootstrap_servers: str = ""
    job: str = "count_by_key"
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    rate: int = 2_000
    seed: int = 5
    resumes: bool = False
    workers: dict[str, WorkerProcess] = field(default_factory=dict[str, WorkerProcess])
    dead: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    feed: SteadyFeed = field(init=False)
    _lives: int = 0

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.feed = SteadyFeed(
            self.cluster, self.source, lambda _: (_key(chance), b"x" * 20), rate=self.rate
        )

    @property
    def source(self) -> str:
        return f"{self.application_id}-in"

    @property
    def sink(self) -> str:
        return f"{self.application_id}-out"

    def begin(self, names: Iterable[str] = WORKERS, **settings: Any) -> None:
        """Create the topics, start the workers and the feed, and wait until all have a task."""
        self.cluster.create({self.source: PARTITIONS, self.sink: PARTITIONS})
        for name in names:
            self.start(name, **settings)
        self.feed.start()
        self.until_shared()

    def start(self, name: str, *, failpoints: str = "", **settings: Any) -> WorkerProcess:
        """Start a worker, or the next life of one; its state directory keeps its name."""
        self._lives += 1
        worker = WorkerProcess(self.folder, f"{name}.{self._lives}")
        config = {
            "application_id": self.application_id,
            "bootstrap_servers": self.bootstrap_servers or self.cluster.bootstrap_servers,
            "state_dir": str(self.folder / f"state-{name}"),
            "statestore_cache_max_bytes": 0,
            "settling_ms": 0,
            **self.config,
            **settings,
        }
        self.workers[name] = worker
        worker.go(self.job, self.source, self.sink, config, fixed=False, failpoints=failpoints)
        return worker

    def owners(self) -> dict[int, list[str]]:
        """Return the living workers that process each partition of the source."""
        owners: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self._resume()
        for name, worker in self.workers.items():
            if not worker.has_ended:
                for partition in owned(worker, self.source):
                    owners[partition].append(name)
        return owners

    def _resume(self) -> None:
        if self.resumes:
            for process in itertools.chain.from_iterable(map(tree, self.workers.values())):
                process.send_signal(signal.SIGCONT)

    def until_shared(self, names: Iterable[str] = (), timeout_s: float = PATIENCE_S) -> None:
        """Wait until each partition has one owner, and each of `names` (all) owns one."""
        wanted = set(names) or set(self.workers)

        def is_shared() -> bool:
            owners = list(self.owners().values())
            return all(len(each) == 1 for each in owners) and {each[0] for each in owners} == wanted

        until(is_shared, f"{sorted(wanted)} share the partitions: {self.owners()}", timeout_s)

    @property
    def is_owned(self) -> bool:
        """Return True if each partition has one living owner."""
        return all(len(each) == 1 for each in self.owners().values())

    def until_owned(self) -> float:
        """Wait until each partition has one living owner; return the seconds that took."""
        return eventually(lambda: self.is_owned, "each partition has one owner")

    def until_progress(self, timeout_s: float = PATIENCE_S) -> float:
        """Wait until everything fed so far is committed; return the seconds that took."""
        begun_s = time.monotonic()
        target = self.cluster.log_ends(self.source)

        def is_reached() -> bool:
            committed = self.cluster.committed(self.application_id)
            return all(committed.get(each, 0) >= end for each, end in target.items())

        until(is_reached, f"everything up to {target} is committed", timeout_s)
        return time.monotonic() - begun_s

    def kill(self, *names: str) -> None:
        """Kill workers with all their helpers, as the loss of a machine would."""
        for name in names:
            worker = self.workers.pop(name)
            self.dead.append(worker)
            for process in tree(worker):
                process.kill()
            worker.process.wait(PATIENCE_S)

    def leader(self) -> str:
        """Return the name of the worker whose watchdog leads the group."""
        trace = self.trace()
        claim = [each for each in trace.records if isinstance(each, LeaderClaim)][-1]
        hosted = {
            each.incarnation
            for each in trace.records
            if isinstance(each, MemberRecord) and each.process_id == claim.leader
        }
        return next(
            name
            for name, worker in self.workers.items()
            if any(incarnation in worker.log for incarnation in hosted)
        )

    def trace(self) -> GroupTrace:
        return read_trace(self.cluster, self.application_id)

    def stop(self) -> None:
        """Stop all workers cleanly."""
        for worker in self.workers.values():
            worker.send(signal.SIGTERM)

        def have_ended() -> bool:
            self._resume()
            return all(worker.has_ended for worker in self.workers.values())

        until(have_ended, f"{sorted(self.workers)} end")
        codes = {name: worker.wait() for name, worker in self.workers.items()}
        assert set(codes.values()) == {0}, codes

    def verify(self) -> Verdict:
        """Stop the feed, let the workers finish and stop, and check everything."""
        self.feed.stop()
        try:
            self.cluster.wait_until_consumed(self.application_id, self.source)
        except AssertionError as error:
            for worker in self.workers.values():
                error.add_note(f"{worker.name}:\n{worker.log[-3_000:]}")
            raise
        self.stop()
        verdict = verify(self.cluster, self.application_id, self.source, self.sink)
        _log.info("%s: %s", self.application_id, verdict)
        assert verdict.is_clean, verdict
        self.trace().check()
        return verdict

    def close(self) -> None:
        self.feed.stop()
        for worker in [*self.workers.values(), *self.dead]:
            for process in tree(worker):
                process.kill()
            worker.close()


def owned(worker: WorkerProcess, source: str) -> set[int]:
    return {
        int(name.rpartition("-")[2])
        for name, owns in worker.numbers().items()
        if owns and name.startswith(f"owns:{source}-")
    }


def tree(worker: WorkerProcess) -> list[psutil.Process]:
    """Return a worker and its helpers; none if it has ended."""
    if worker.has_ended:
        return []
    process = psutil.Process(worker.process.pid)
    return [process, *process.children(recursive=True)]


def is_stopped(worker: WorkerProcess) -> bool:
    """Return True if a failpoint has stopped the worker or one of its helpers."""
    return any(each.status() == psutil.STATUS_STOPPED for each in tree(worker))


def eventually(condition: Callable[[], object], what: str) -> float:
    """Wait for a condition; return the seconds that took."""
    begun_s = time.monotonic()
    until(condition, what)
    return time.monotonic() - begun_s


def _key(chance: random.Random) -> bytes:
    # Squared: some keys are frequent and most are rare.
    return b"key-%05d" % int(chance.random() ** 2 * KEYS)
