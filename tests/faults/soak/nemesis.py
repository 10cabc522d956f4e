"""Nemesis: inflicts a schedule of faults on the workers and brokers of a run."""

import logging
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from types import MappingProxyType
from typing import Final

import psutil

from tests.faults.broker_cluster import BrokerCluster
from tests.faults.fault_run import FaultRun, crash_of, is_stopped
from tests.faults.soak.hosts import Host
from tests.faults.soak.schedule import BROKERS, VISITOR, Fault, Schedule
from tests.integration.cluster import PATIENCE_S
from tests.integration.processes import WorkerProcess, numbered
from tidewheel.streams.exit_codes import ExitCode

_log: Final = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_SAMPLE_S: Final = 0.1
#: Seconds in which a worker may reach its failpoint.
_REACHED_S: Final = 8.0
#: Seconds for a worker to drain and stop while brokers come and go.
_STOPPED_S: Final = 660.0

#: Each value is the number of seconds to wait until the next step.
Steps = Generator[float]


class Stalls:
    """The longest time in which a partition's position did not rise, over all workers' lives."""

    def __init__(self, now_s: float) -> None:
        self.worst_s = 0.0
        self._since_s = now_s
        self._reached: dict[int, tuple[int, float]] = {}

    def sample(self, positions: Sequence[dict[int, int]], now_s: float) -> None:
        for each in positions:
            for partition, position in each.items():
                before, since_s = self._reached.get(partition, (-1, self._since_s))
                if position > before:
                    self._reached[partition] = (position, now_s)
                    self.worst_s = max(self.worst_s, now_s - since_s)
        for _, since_s in self._reached.values():
            self.worst_s = max(self.worst_s, now_s - since_s)


class Nemesis:
    """Inflicts faults on one run.

    Attributes:
        counts: Faults by kind.
    """

    def __init__(
        self,
        run: FaultRun,
        brokers: BrokerCluster | None = None,
        hosts: Mapping[str, Host] = MappingProxyType({}),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._run, self._brokers, self._hosts = run, brokers, hosts
        self.stalls = Stalls(time.monotonic())

    def inflict(self, schedule: Schedule, tick: Callable[[], None] = lambda: None) -> None:
        """Inflict all lanes at the same time; return when each is over, and everything runs."""
        now_s = time.monotonic()
        lanes = {
            lane: self._lane(lane, faults) for lane, faults in schedule.items() if lane != BROKERS
        }
        due_s = dict.fromkeys(lanes, now_s)
        broker_lane = _Raising(lambda: self._break_brokers(schedule.get(BROKERS, ())))
        broker_lane.start()
        sample_s = now_s
        while due_s or broker_lane.is_alive():
            self._run.look_after_workers()
            now_s = time.monotonic()
            for lane in [lane for lane, at_s in due_s.items() if at_s <= now_s]:
                wait_s = next(lanes[lane], None)
                if wait_s is None:
                    del due_s[lane]
                else:
                    due_s[lane] = time.monotonic() + wait_s
            if now_s >= sample_s:
                sample_s = now_s + _SAMPLE_S
                self._sample(now_s)
                tick()
            time.sleep(_LOOK_S)
        broker_lane.finish()

    def _sample(self, now_s: float) -> None:
        lives = list(self._run.workers.values())
        self.stalls.sample([numbered(worker, "position") for worker in lives], now_s)

    # -- workers -----------------------------------------------------------------------------------

    def _lane(self, name: str, faults: Sequence[Fault]) -> Steps:
        for fault in faults:
            yield fault.wait_s
            _log.info("%s: %s", name, fault)
            yield from self._visit(fault) if name == VISITOR else self._strike(name, fault)

    def _visit(self, fault: Fault) -> Steps:
        self._run.start(VISITOR)
        yield from self._wait(fault)
        yield from self._stop(VISITOR)

    def _strike(self, name: str, fault: Fault) -> Steps:
        worker = self._run.workers[name]
        match fault.kind.split():
            case ["kill", "watchdog"] | ["kill", "restore", "helper"]:
                self._signal(_helpers(worker, fault.kind), signal.SIGKILL, fault.kind)
            case ["pause", "at", "failpoint"]:
                self._kill(name)
                yield from self._pause_at(self._start_at(name, fault, "stop"), fault)
            case ["pause", *_]:
                targets = _targets(worker, fault.kind)
                self._signal(targets, signal.SIGSTOP, fault.kind)
                yield fault.for_s
                self._signal(targets, signal.SIGCONT)
            case ["cut" | "fill", *_]:
                yield from self._break_host(self._hosts[name], fault)
            case ["kill", "at", "failpoint"]:
                self._kill(name)
                worker = self._start_at(name, fault, "kill9")
                # Its end is counted by the run, which starts it again.
                yield from _while(lambda: not worker.has_ended, _REACHED_S)
            case ["kill", "worker"]:
                self._kill(name, alone=True)
                yield from self._start_again(name, fault)
            case ["restart", "worker"]:
                yield from self._stop(name)
                yield from self._start_again(name, fault)
            case ["lose", *_]:
                self._kill(name)
                shutil.rmtree(self._run.folder / f"state-{name}", ignore_errors=True)
                yield from self._start_again(name, fault)
            case _:
                self._kill(name)
                yield from self._start_again(name, fault)

    def _break_host(self, host: Host, fault: Fault) -> Steps:
        fail, mend = (
            (host.cut, host.connect)
            if fault.kind.startswith("cut")
            else (host.disk.fill, host.disk.free)
        )
        fail()
        yield from self._wait(fault)
        mend()

    def _wait(self, fault: Fault) -> Steps:
        self.counts[fault.kind] += 1
        yield fault.for_s

    def _start_again(self, name: str, fault: Fault) -> Steps:
        yield from self._wait(fault)
        self._run.start(name)

    def _start_at(self, name: str, fault: Fault, action: str) -> WorkerProcess:
        return self._run.start(name, failpoints=f"{fault.failpoint}:{action}")

    def _pause_at(self, worker: WorkerProcess, fault: Fault) -> Steps:
        yield from _while(lambda: not (is_stopped(worker) or worker.has_ended), _REACHED_S)
        self.counts[fault.kind] += is_stopped(worker)
        yield fault.for_s
        worker.signal_all(signal.SIGCONT)

    def _kill(self, name: str, *, alone: bool = False) -> None:
        if alone:
            self._run.workers[name].kill()
        self._run.kill(name)

    def _stop(self, name: str) -> Steps:
        worker = self._run.workers.pop(name)
        self._run.dead.append(worker)
        worker.send(signal.SIGTERM)

        def is_stopping() -> bool:
            worker.signal_all(signal.SIGCONT)  # a late failpoint may have stopped it
            return not worker.has_ended

        yield from _while(is_stopping, _STOPPED_S)
        assert worker.has_ended, f"{worker.name} does not stop:\n{worker.log[-4_000:]}"
        if worker.wait() != ExitCode.OK:
            self._run.crashes[crash_of(worker)] += 1

    def _signal(
        self, targets: Sequence[psutil.Process], number: signal.Signals, kind: str | None = None
    ) -> None:
        for target in targets:
            with suppress(psutil.NoSuchProcess):
                target.send_signal(number)
        if targets and kind is not None:
            self.counts[kind] += 1

    # -- brokers -----------------------------------------------------------------------------------

    def _break_brokers(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            assert self._brokers is not None, "brokers of this run"
            time.sleep(fault.wait_s)
            _log.info("%s", fault)
            match fault.kind.split():
                case ["restart", *_]:
                    self._brokers.stop(*fault.nodes)
                case ["kill", *_]:
                    self._brokers.kill(*fault.nodes)
                case _:
                    self._brokers.pause(*fault.nodes)
            self.counts[fault.kind] += 1
            time.sleep(fault.for_s)
            if "pause" in fault.kind:
                self._brokers.resume(*fault.nodes)
            self._brokers.start()
            self._brokers.wait_until_in_sync()


class _Raising(Thread):
    """A thread whose error `finish` raises."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="broker-nemesis", daemon=True)
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by finish
            self._error = error

    def finish(self) -> None:
        self.join(PATIENCE_S)
        if self._error is not None:
            raise self._error


def _while(condition: Callable[[], bool], most_s: float) -> Steps:
    until_s = time.monotonic() + most_s
    while condition() and time.monotonic() < until_s:
        yield _LOOK_S * 5


def _targets(worker: WorkerProcess, kind: str) -> list[psutil.Process]:
    processes = worker.processes()
    if kind.endswith("and helpers"):
        return processes
    return processes[:1] if kind.endswith("worker") else _helpers(worker, kind)


def _helpers(worker: WorkerProcess, kind: str) -> list[psutil.Process]:
    """Return the watchdog or the restore helpers of a worker."""
    name = "processes.watchdog" if kind.endswith("watchdog") else "processes.restore_helper"
    found: list[psutil.Process] = []
    for process in worker.processes()[1:]:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if any(name in word for word in process.cmdline()):
                found.append(process)
    return found
