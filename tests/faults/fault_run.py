"""One run of a fault: three workers count keys under a steady feed; then everything is verified."""

import logging
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil

from tests.faults.group_trace import GroupTrace, read_trace
from tests.faults.verification.local_state import local_differences
from tests.faults.verification.verdict import SHOWN, Verdict, verify
from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.processes import WorkerProcess, numbered, owned
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.records import TaskRecord
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.tasks.kafka.ports import UnansweredError

_log: Final = logging.getLogger(__name__)

PARTITIONS: Final = 4
KEYS: Final = 20_000
RECORDS_PER_S: Final = 2_000
#: librdkafka 2.16 reads uninitialised memory while a starting broker knows the leaders of only some
#: partitions (confluentinc/librdkafka#5280), and aborts by an assertion after an admin request
#: without an answer (#4605).
_CLIENT_CRASHES: Final = {
    -signal.SIGSEGV: "Fatal Python error: Segmentation fault",
    -signal.SIGABRT: "Assertion `eonce->refcnt > 0'",
}
#: faulthandler writes this if a thread of Python crashed, not one of the client's own.
_CRASHED_IN_PYTHON: Final = "\nCurrent thread "
WORKERS: Final = ("a", "b", "c")
#: Time-outs for a busy machine.
PATIENT: Final = {"session_timeout_ms": 12_000, "heartbeat_interval_ms": 2_000}
#: Age and error of a clock that a worker has read; the smallest jump is an hour.
_CLOCK_MS: Final = 60_000
#: A worker logs this at each join.
_INCARNATION: Final = re.compile(r"joined the group as incarnation ([0-9a-f]+)")


@dataclass(slots=True, kw_only=True)
class FaultRun:
    """Workers of one application, by name, and their feed.

    Attributes:
        job: Name of the workers' job, which counts by key.
        config: Settings of all workers; their state is in `folder`.
        record: Receives figures for a report.
        forged: Values that the test itself wrote into the group's topics; its trace lacks them.
        lost_messages: Messages of an inbox that was deleted; its trace begins with them.
        target: Sink of the job, if it is no topic.
        rate: Records per second of the feed.
        is_static: Workers are static members.
        within: Command that starts a worker on a host of its own, by name.
        runs_from: Restore gaps above this many records go to a restore helper.
        resumes: From now on, processes that failpoints stop are continued at the next look.
        supervised: Workers that crash are started again at the next look; no other end is allowed.
        crashes: Their number by kind.
        verdict: What `verify` has found, also if it fails.
    """

    cluster: Cluster
    folder: Path
    application_id: str
    job: str = "count_by_key"
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    record: Callable[[str, object], None] = lambda name, value: None
    target: str = ""
    rate: int = RECORDS_PER_S
    is_static: bool = False
    within: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    runs_from: int | None = None
    resumes: bool = False
    supervised: bool = False
    crashes: Counter[str] = field(default_factory=Counter[str])
    forged: set[bytes] = field(default_factory=set[bytes])
    lost_messages: list[AnyMessage] = field(default_factory=list[AnyMessage])
    workers: dict[str, WorkerProcess] = field(default_factory=dict[str, WorkerProcess])
    dead: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    verdict: Verdict | None = None
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
        within = within or self.within.get(name, ())
        worker = WorkerProcess(self.folder, f"{name}.{self._lives}", within=within)
        config = {
            "application_id": self.application_id,
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "state_dir": str(self.folder / f"state-{name}"),
            "statestore_cache_max_bytes": 0,
            "settling_ms": 0,
            "group_instance_id": name if self.is_static else None,
            **self.config,
            **settings,
        }
        self.workers[name] = worker
        worker.go(
            job or self.job,
            self.source,
            self.target or self.sink,
            config,
            fixed=False,
            failpoints=failpoints,
            runs_from=runs_from or self.runs_from,
        )
        return worker

    def until(
        self, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait until a condition holds; meanwhile look after the workers."""

        def look_and_check() -> object:
            self.look_after_workers()
            with suppress(UnansweredError):  # brokers are away
                return condition()
            return False

        until(look_and_check, what, timeout_s)

    def look_after_workers(self) -> None:
        """Continue stopped workers, and start crashed ones again, as far as the run wants it."""
        if self.resumes:
            for worker in self.workers.values():
                worker.signal_all(signal.SIGCONT)
        if self.supervised:
            for name, worker in list(self.workers.items()):
                if worker.has_ended:
                    self.crashes[crash_of(worker)] += 1
                    self.dead.append(worker)
                    self.start(name)

    def owners(self) -> dict[int, list[str]]:
        """Return the living workers that process each partition of the source."""
        owners: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self.look_after_workers()
        for name, worker in self.workers.items():
            if not worker.has_ended:
                for partition in owned(worker):
                    owners[partition].append(name)
        return owners

    def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return committed offsets; those of an open transaction do not count."""
        inputs = [TopicPartition(self.source, number) for number in partitions]
        offsets = self.cluster.admin.committed(self.application_id, inputs, stable=False)
        return {each.partition: offset.offset for each, offset in offsets.items()}

    def position(self, partition: int) -> int:
        """Return the highest next offset of a partition that a worker has processed."""
        return max(numbered(each, "position").get(partition, 0) for each in self.workers.values())

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
        begun_s = time.monotonic()
        self.until(self.is_owned, "each partition has one owner")
        return time.monotonic() - begun_s

    def until_shared(self) -> None:
        self.until(self.is_shared, f"{sorted(self.workers)} share the partitions")

    def stopped(self) -> list[str]:
        """Return the workers that a failpoint has stopped, or whose watchdog."""
        return [name for name, worker in self.workers.items() if is_stopped(worker)]

    def until_one_stops(self) -> str:
        self.until(self.stopped, "a failpoint stops a worker or its watchdog")
        return self.stopped()[0]

    def until_progress(self, partitions: Container[int] = range(PARTITIONS)) -> float:
        """Wait until everything fed so far is committed; return the seconds that took."""
        target: dict[TopicPartition, int] = {}

        def is_reached() -> bool:
            if not target:
                ends = self.cluster.log_ends(self.source)
                target.update({each: ends[each] for each in ends if each.partition in partitions})
            committed = self.cluster.committed(self.application_id)
            return all(committed.get(each, 0) >= end for each, end in target.items())

        begun_s = time.monotonic()
        self.until(is_reached, "everything fed so far is committed")
        return time.monotonic() - begun_s

    def kill(self, name: str) -> None:
        """Kill a worker with all its helpers, as the loss of a machine would."""
        worker = self.workers.pop(name)
        self.dead.append(worker)
        worker.signal_all(signal.SIGKILL)
        worker.wait()

    def leave(self, name: str) -> None:
        """Stop a worker cleanly."""
        worker = self.workers.pop(name)
        self.dead.append(worker)
        worker.send(signal.SIGTERM)
        self.until(lambda: worker.has_ended, f"{worker.name} ends")
        assert worker.wait() == ExitCode.OK, worker.log[-4_000:]

    def stop(self) -> None:
        """Stop all workers cleanly."""
        for worker in self.workers.values():
            worker.send(signal.SIGTERM)

        def have_ended() -> bool:
            return all(worker.has_ended for worker in self.workers.values())

        self.supervised = False
        self.until(have_ended, f"{sorted(self.workers)} end")
        codes = {name: worker.wait() for name, worker in self.workers.items()}
        assert set(codes.values()) == {0}, codes

    def verify(self) -> Verdict:
        """Stop the feed, let the workers finish and stop, and check everything."""
        self.feed.stop()
        try:
            self.until(self._is_consumed, f"{self.application_id} consumes {self.source}")
        except AssertionError as error:
            for worker in self.workers.values():
                error.add_note(f"{worker.name}:\n{worker.log[-3_000:]}")
            raise
        self.until(self._are_dead_fenced, "the group has fenced every dead worker")
        self.stop()
        acknowledged = Counter(key for key, _ in self.feed.records)
        found = verify(self.cluster, self.application_id, self.source, self.sink, acknowledged)
        state_dirs = sorted(self.folder.glob("state-*"))
        copies = local_differences(self.cluster, self.application_id, state_dirs)
        self.verdict = verdict = replace(found, wrong_copies=list(islice(copies, SHOWN)))
        _log.info("%s: %s", self.application_id, verdict)
        self.record("records", verdict.records)
        assert verdict.is_clean, verdict
        self.trace().check()
        return verdict

    def _is_consumed(self) -> bool:
        return self.cluster.is_consumed(self.application_id, self.source)

    def _are_dead_fenced(self) -> bool:
        if not all(map(incarnations, self.workers.values())):
            return False  # a worker that was started again has not joined yet
        dead = {life for worker in self.dead for life in incarnations(worker)}
        return not dead or dead <= self.trace().ended()

    def epochs(self) -> dict[int, int]:
        """Return the epoch of the task of each partition."""
        records = self.trace().records
        tasks = {each.task: each for each in records if isinstance(each, TaskRecord)}
        return {int(task.rpartition("_")[2]): each.task_epoch for task, each in tasks.items()}

    def until_clock(self, name: str, offset_s: int) -> None:
        """Wait until the wall clock of a worker, as it reads it itself, has this offset."""

        def is_set() -> bool:
            read_ms = self.workers[name].numbers().get("clock_ms", 0)
            return abs(read_ms - time.time_ns() // 1_000_000 - offset_s * 1_000) < _CLOCK_MS

        self.until(is_set, f"the clock of {name} is {offset_s} s ahead")

    def trace(self) -> GroupTrace:
        trace = read_trace(self.cluster, self.application_id, self.forged)
        return replace(trace, messages=self.lost_messages + trace.messages)

    def close(self) -> None:
        if self.feed.is_alive():
            self.feed.stop()
        for worker in [*self.workers.values(), *self.dead]:
            worker.signal_all(signal.SIGKILL)
            worker.close()


def incarnations(worker: WorkerProcess) -> list[str]:
    return _INCARNATION.findall(worker.log)


def crash_of(worker: WorkerProcess) -> str:
    """Return the kind of an end that a supervisor answers by a restart; fail for any other end.

    A worker that can't reach a broker at its start ends, to be started again (docs/running.md).
    """
    code, log = worker.wait(), worker.log[-4_000:]
    if code == -signal.SIGKILL:
        return "kill"
    cause = _CLIENT_CRASHES.get(code)
    if code == ExitCode.KAFKA_UNREACHABLE and "-> RUNNING" not in worker.log:
        return "unreachable"
    assert cause is not None, f"{worker.name} ended by {code}:\n{log}"
    assert cause in worker.log, log
    assert code != -signal.SIGSEGV or _CRASHED_IN_PYTHON not in worker.log, log
    return "client"


def is_stopped(worker: WorkerProcess) -> bool:
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
