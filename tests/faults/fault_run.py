"""One run of a fault: three workers count keys under a steady feed; then everything is verified."""

import logging
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.faults.group_trace import GroupTrace, read_trace
from tests.faults.verdict import verify
from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.processes import WorkerProcess, numbered, owned

_log: Final = logging.getLogger(__name__)

PARTITIONS: Final = 4
KEYS: Final = 20_000
RECORDS_PER_S: Final = 2_000
WORKERS: Final = ("a", "b", "c")
#: Time-outs for a busy machine.
PATIENT: Final = {"session_timeout_ms": 12_000, "heartbeat_interval_ms": 2_000}
#: A worker logs this at each join.
_INCARNATION: Final = re.compile(r"member \S+, incarnation ([0-9a-f]+)")


@dataclass(slots=True, kw_only=True)
class FaultRun:
    """Workers of one application, by name, and their feed.

    Attributes:
        job: Name of the workers' job, which counts by key.
        config: Settings of all workers; their state is in `folder`.
        record: Receives figures for a report.
        resumes: From now on, processes that failpoints stop are continued at the next look.
        rate: Records per second of the feed.
    """

    cluster: Cluster
    folder: Path
    application_id: str
    job: str = "count_by_key"
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    record: Callable[[str, object], None] = lambda name, value: None
    resumes: bool = False
    rate: int = RECORDS_PER_S
    workers: dict[str, WorkerProcess] = field(default_factory=dict[str, WorkerProcess])
    dead: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    feed: SteadyFeed = field(init=False)
    _lives: int = 0

    def __post_init__(self) -> None:
        chance = random.Random(5)
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

    def start(
        self,
        name: str,
        *,
        job: str = "",
        failpoints: str = "",
        runs_from: int | None = None,
        within: Sequence[str] = (),
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker, or the next life of one; its state directory keeps its name."""
        self._lives += 1
        worker = WorkerProcess(self.folder, f"{name}.{self._lives}", within=within)
        config = {
            "application_id": self.application_id,
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "state_dir": str(self.folder / f"state-{name}"),
            "statestore_cache_max_bytes": 0,
            "settling_ms": 0,
            **self.config,
            **settings,
        }
        self.workers[name] = worker
        worker.go(
            job or self.job,
            self.source,
            self.sink,
            config,
            fixed=False,
            failpoints=failpoints,
            runs_from=runs_from,
        )
        return worker

    def owners(self) -> dict[int, list[str]]:
        """Return the living workers that process each partition of the source."""
        owners: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self._resume()
        for name, worker in self.workers.items():
            if not worker.has_ended:
                for partition in owned(worker):
                    owners[partition].append(name)
        return owners

    def position(self, partition: int) -> int:
        """Return the highest next offset of a partition that a worker has processed."""
        return max(numbered(each, "position").get(partition, 0) for each in self.workers.values())

    def _resume(self) -> None:
        if self.resumes:
            for worker in self.workers.values():
                worker.signal_all(signal.SIGCONT)

    def is_owned(self) -> bool:
        """Return True if each partition has one living owner."""
        return all(len(each) == 1 for each in self.owners().values())

    def is_owned_by(self, names: Iterable[str]) -> bool:
        """Return True if one of these workers owns each partition."""
        return all(len({*owners} & {*names}) == 1 for owners in self.owners().values())

    def is_shared(self) -> bool:
        """Return True if each partition has one living owner, and each worker owns one."""
        owners = self.owners().values()
        return all(len(each) == 1 for each in owners) and {each[0] for each in owners} == set(
            self.workers
        )

    def until_owned(self) -> float:
        """Wait until each partition has one living owner; return the seconds that took."""
        return eventually(self.is_owned, "each partition has one owner")

    def until_shared(self) -> None:
        until(self.is_shared, f"{sorted(self.workers)} share the partitions")

    def stopped(self) -> list[str]:
        """Return the workers that a failpoint has stopped, or whose watchdog."""
        return [name for name, worker in self.workers.items() if _is_stopped(worker)]

    def until_one_stops(self) -> str:
        until(self.stopped, "a failpoint stops a worker or its watchdog")
        return self.stopped()[0]

    def until_progress(self, partitions: Container[int] = range(PARTITIONS)) -> float:
        """Wait until everything fed so far is committed; return the seconds that took."""
        ends = self.cluster.log_ends(self.source)
        target = {each: end for each, end in ends.items() if each.partition in partitions}

        def is_reached() -> bool:
            committed = self.cluster.committed(self.application_id)
            return all(committed.get(each, 0) >= end for each, end in target.items())

        return eventually(is_reached, f"everything up to {target} is committed")

    def kill(self, name: str) -> None:
        """Kill a worker with all its helpers, as the loss of a machine would."""
        worker = self.workers.pop(name)
        self.dead.append(worker)
        worker.signal_all(signal.SIGKILL)
        worker.wait()

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

    def verify(self) -> None:
        """Stop the feed, let the workers finish and stop, and check everything."""
        self.feed.stop()
        try:
            self.cluster.wait_until_consumed(self.application_id, self.source)
        except AssertionError as error:
            for worker in self.workers.values():
                error.add_note(f"{worker.name}:\n{worker.log[-3_000:]}")
            raise
        until(self._are_dead_fenced, "the group has fenced every dead worker")
        self.stop()
        acknowledged = Counter(key for key, _ in self.feed.records)
        verdict = verify(self.cluster, self.application_id, self.source, self.sink, acknowledged)
        _log.info("%s: %s", self.application_id, verdict)
        self.record("records", verdict.records)
        assert verdict.is_clean, verdict
        self.trace().check()

    def _are_dead_fenced(self) -> bool:
        dead = {life for worker in self.dead for life in incarnations(worker)}
        assert bool(dead) == bool(self.dead), "the logs of dead workers name no incarnation"
        return dead <= self.trace().ended()

    def trace(self) -> GroupTrace:
        return read_trace(self.cluster, self.application_id)

    def close(self) -> None:
        if self.feed.is_alive():
            self.feed.stop()
        for worker in [*self.workers.values(), *self.dead]:
            worker.signal_all(signal.SIGKILL)
            worker.close()


def incarnations(worker: WorkerProcess) -> list[str]:
    return _INCARNATION.findall(worker.log)


def _is_stopped(worker: WorkerProcess) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any(each.status() == psutil.STATUS_STOPPED for each in worker.processes())
    return False


def eventually(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> float:
    """Wait for a condition; return the seconds that took."""
    begun_s = time.monotonic()
    until(condition, what, timeout_s)
    return time.monotonic() - begun_s


def _key(chance: random.Random) -> bytes:
    # Squared: some keys are frequent and most are rare.
    return b"key-%05d" % int(chance.random() ** 2 * KEYS)
