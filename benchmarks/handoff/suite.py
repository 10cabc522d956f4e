"""Suite `handoff`: instances come and go under steady input; measures gaps in the output.

A run of one system first writes and counts all keys, the state that moves. Then records come
steadily. After a quiet stretch, cycles of events follow, each with a quiet stretch after it. The
first three do not count: broker and programs compile the code of joining and leaving then. At the
end every count of every key is checked. Lost and repeated results are counted; a wrong run has no
figure.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.environment.peer_process import RunFailedError
from benchmarks.handoff.feed import Feeder, Observer, preload
from benchmarks.handoff.gaps import (
    Arrivals,
    EventFigures,
    Stretch,
    event_figures,
    percentile,
    quiet_median_ms,
)
from benchmarks.handoff.members import (
    HANDOFF_SYSTEMS,
    PLACES,
    HandoffSystem,
    Instance,
    configure_group,
)
from benchmarks.report.results import Row, make_rows
from benchmarks.run import WrongResultError, delete_run_topics
from benchmarks.topics import input_topic

_GROUP_JOBS = ("one_to_two", "two_to_four", "four_to_one")
JOBS = ("scale_out", "drain", "kill", "silent_host", "static_bounce", *_GROUP_JOBS)
RECORDS_PER_S = 2_000
#: A partition with a live owner has output at least this often.
ALIVE_S = 2.0
#: An event ends after its outcome has lasted this long.
SETTLED_S = 1.5
QUIET_S = 4.0
START_S = 180.0
UNTIMED_CYCLES = 3
LAST_RESULTS_S = 60.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffSize:
    """Keys of state, cycles (two tasks move there and back), and the first quiet stretch."""

    keys: int
    cycles: int
    quiet_s: float


FULL = HandoffSize(keys=1_000_000, cycles=13, quiet_s=10.0)
QUICK = HandoffSize(keys=200_000, cycles=3, quiet_s=5.0)


@dataclass(slots=True)
class HandoffRun:
    bootstrap_servers: str
    system: HandoffSystem
    guarantee: str
    size: HandoffSize
    name: str
    arguments: Mapping[str, str]
    folder: Path
    feeder: Feeder
    observer: Observer
    quiet: list[Stretch] = field(default_factory=list[Stretch])
    events: list[EventFigures] = field(default_factory=list[EventFigures])
    balance_s: list[float] = field(default_factory=list[float])
    started: list[Instance] = field(default_factory=list[Instance])
    happenings: list[str] = field(default_factory=list[str])
    _counts: bool = False
    _starts: int = 0

    def cycles(self) -> Iterator[int]:
        """Yield cycle numbers; those from 1 on count."""
        for cycle in range(UNTIMED_CYCLES + min(self.size.cycles, self.system.cycles_max)):
            self._counts = cycle >= UNTIMED_CYCLES
            yield cycle

    def start(self, name: str, **extra: str) -> Instance:
        self._starts += 1
        instance = Instance(
            self.system, f"{name}.{self._starts}", {**self.arguments, **extra}, self.folder
        )
        self.started.append(instance)
        return instance

    def until(self, reached: Callable[[], bool], instances: list[Instance], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        since: float | None = None
        while since is None or time.monotonic() - since < SETTLED_S:
            now_s = time.monotonic()
            since = (since or now_s) if reached() else None
            if now_s > deadline:
                raise RunFailedError(
                    f"not reached within {limit_s:.0f} s; writers: {self.observer.writers(ALIVE_S)}"
                )
            for instance in instances:
                instance.check()
            time.sleep(LOOK_S)

    def shared_by(self, *names: str) -> Callable[[], bool]:
        """Return a condition: exactly these instances write, with equal shares."""

        def reached() -> bool:
            writers = self.observer.writers(ALIVE_S)
            return all(writers.count(name) == PLACES // len(names) for name in names)

        return reached

    def rest(self, seconds: float = QUIET_S) -> None:
        from_s = time.monotonic()
        time.sleep(seconds)
        self.quiet.append(Stretch(event="quiet", from_s=from_s, until_s=time.monotonic()))

    def balanced(self, from_s: float) -> None:
        if self._counts:
            self.balance_s.append(time.monotonic() - from_s - SETTLED_S)

    def happened(self, event: str, from_s: float) -> None:
        """Store a finished event, then rest as long as it took, for the comparison."""
        part = Stretch(event=event, from_s=from_s, until_s=time.monotonic())
        self.rest(max(QUIET_S, part.until_s - from_s))
        arrivals = self.observer.arrivals
        length_s = part.until_s - part.from_s
        calm = self.quiet[-1]
        beside = Stretch(event="quiet", from_s=calm.from_s, until_s=calm.from_s + length_s)
        self.happenings.append(_happening(part, arrivals))
        if self._counts:
            self.events.append(event_figures(arrivals, part, beside))

    def finish(self) -> None:
        self.feeder.stop()
        wanted = self.size.keys + sum(self.feeder.written.values())
        deadline = time.monotonic() + LAST_RESULTS_S
        while self.observer.results < wanted and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        time.sleep(1.0)  # a surplus result would still arrive
        self.observer.stop()


def scale_out_and_drain(run: HandoffRun, first: Instance) -> None:
    for cycle in run.cycles():
        from_s = time.monotonic()
        second = run.start(f"b{cycle}")  # a new host without state
        try:
            run.until(
                run.shared_by(first.name, second.name), [first, second], run.system.balances_s
            )
            run.balanced(from_s)
            run.happened("scale_out", from_s)
            from_s = time.monotonic()
            second.terminate()
            run.until(run.shared_by(first.name), [first], run.system.balances_s)
            second.wait_ended()
            run.happened("drain", from_s)
        finally:
            second.destroy()


def _kills(run: HandoffRun, first: Instance, event: str, end: Callable[[Instance], float]) -> None:
    for _ in run.cycles():
        second = run.start("b")
        try:
            run.until(
                run.shared_by(first.name, second.name), [first, second], run.system.balances_s
            )
            run.rest()
            from_s = end(second)
            run.until(run.shared_by(first.name), [first], run.system.balances_s)
            run.happened(event, from_s)
        finally:
            second.destroy()


def kill(run: HandoffRun, first: Instance) -> None:
    """The second instance's worker is killed; the first has standbys of its tasks."""
    _kills(run, first, "kill", Instance.kill)


def silent_host(run: HandoffRun, first: Instance) -> None:
    """The second instance and all its helpers fall silent together."""
    _kills(run, first, "silent_host", Instance.silence)


def static_bounce(run: HandoffRun, first: Instance) -> None:
    """A static member restarts cleanly; its tasks wait for it."""
    second = run.start("b", group_instance_id="b")
    run.until(run.shared_by(first.name, second.name), [first, second], run.system.balances_s)
    run.rest()
    for _ in run.cycles():
        from_s = time.monotonic()
        second.terminate()
        second.wait_ended()
        second = run.start("b", group_instance_id="b")
        run.until(run.shared_by(first.name, second.name), [first, second], run.system.balances_s)
        run.happened("static_bounce", from_s)


def grow_and_shrink(run: HandoffRun, first: Instance) -> None:
    """One instance becomes two, then four, then one again."""
    for cycle in run.cycles():
        others: list[Instance] = []
        try:
            for event, names in (("one_to_two", "b"), ("two_to_four", "cd")):
                from_s = time.monotonic()
                others += [run.start(f"{name}{cycle}") for name in names]
                every = [first, *others]
                shared = run.shared_by(*(each.name for each in every))
                run.until(shared, every, run.system.balances_s)
                run.happened(event, from_s)
            from_s = time.monotonic()
            for each in others:
                each.terminate()
            run.until(run.shared_by(first.name), [first], run.system.balances_s)
            for each in others:
                each.wait_ended()
            run.happened("four_to_one", from_s)
        finally:
            for each in others:
                each.destroy()


#: Events of a run, with its arguments; scale_out and drain share one run.
_SHORT_SESSIONS: Mapping[str, str] = {
    "num_standby_replicas": "1",
    "session_timeout_ms": "1500",
    "heartbeat_interval_ms": "250",
}
_RUNS: Mapping[
    str, tuple[tuple[str, ...], Callable[[HandoffRun, Instance], None], Mapping[str, str]]
] = {
    "moves": (("scale_out", "drain"), scale_out_and_drain, {}),
    "kill": (("kill",), kill, _SHORT_SESSIONS),
    "silent_host": (("silent_host",), silent_host, _SHORT_SESSIONS),
    "static_bounce": (("static_bounce",), static_bounce, {}),
    "group": (_GROUP_JOBS, grow_and_shrink, {}),
}


def _happening(part: Stretch, partitions: list[Arrivals]) -> str:
    ago_s = time.monotonic() - part.from_s
    now_s = time.time()  # noqa: TID251 - as the logs have it
    lines = [f"{now_s - ago_s:.3f} {part.event}, {part.until_s - part.from_s:.1f} s"]
    for number, each in enumerate(partitions):
        gaps = each.longest(part.from_s, part.until_s, 3)
        text = ", ".join(f"{gap * 1000:.0f} ms from {at - part.from_s:.2f} s" for gap, at in gaps)
        moved = ", ".join(
            f"moved at {at - part.from_s:.2f} s" for at in each.moves(part.from_s, part.until_s)
        )
        lines.append(f"  partition {number}: {text}{'; ' if moved else ''}{moved}")
    return "\n".join(lines)


def _keep_logs(run: HandoffRun, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in run.folder.glob("*.log"):
        shutil.copy(log, folder)
    (folder / "events.txt").write_text("\n".join(run.happenings) + "\n", encoding="utf-8")


@dataclass(slots=True)
class HandoffSuite:
    bootstrap_servers: str
    size: HandoffSize
    jobs: tuple[str, ...]
    systems: tuple[str, ...]
    guarantees: tuple[str, ...]
    console: Console
    date: str
    #: Folder of the instances' logs and event times; None: not kept.
    logs: Path | None = None
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))

    def rows(self) -> Iterator[list[Row]]:
        for guarantee in self.guarantees:
            for kind, (jobs, events, extra) in _RUNS.items():
                if not set(jobs) & set(self.jobs):
                    continue
                for name in self.systems:
                    label = f"{guarantee}, {', '.join(jobs)}, {name}"
                    try:
                        run = self._run(HANDOFF_SYSTEMS[name], guarantee, kind, events, extra)
                    except (RunFailedError, TimeoutError) as failure:
                        self.failures.append(f"{label}: {failure}")
                        self.console.print(f"{label}: {failure}", style="red", markup=False)
                        continue
                    for job in jobs:
                        rows = self._rows(run, job, extra)
                        self._tell(label, job, rows)
                        yield rows

    def _run(
        self,
        system: HandoffSystem,
        guarantee: str,
        kind: str,
        events: Callable[[HandoffRun, Instance], None],
        extra: Mapping[str, str],
    ) -> HandoffRun:
        name = f"bench-{self._token}-{kind.replace('_', '-')}-{system.name}-{guarantee[:2]}"
        system.command()  # no download or compilation during the measurement
        admin = input_topic.quiet_admin(self.bootstrap_servers)
        topics = {"input_topic": f"{name}-in", "output_topic": f"{name}-out"}
        for topic in topics.values():
            input_topic.create_topic(admin, topic, system.partitions)
        config = system.group_config(extra)
        if config:
            configure_group(admin, name, config)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        with ExitStack() as stack:
            stack.callback(delete_run_topics, admin, name)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            preload(self.bootstrap_servers, topics["input_topic"], self.size.keys)
            run = HandoffRun(
                bootstrap_servers=self.bootstrap_servers,
                system=system,
                guarantee=guarantee,
                size=self.size,
                name=name,
                arguments={
                    "bootstrap_servers": self.bootstrap_servers,
                    "application_id": name,
                    "guarantee": guarantee,
                    "commit_interval_ms": "100",
                    **topics,
                    **extra,
                },
                folder=folder,
                feeder=Feeder(
                    self.bootstrap_servers,
                    topics["input_topic"],
                    keys=self.size.keys,
                    records_per_s=RECORDS_PER_S,
                    seed=20_260_101,
                ),
                observer=Observer(
                    self.bootstrap_servers,
                    topics["output_topic"],
                    system.partitions,
                    system.place_of,
                    PLACES,
                ),
            )
            if self.logs is not None:
                stack.callback(_keep_logs, run, self.logs / name)
            self._carry_out(run, events)
            return run

    def _carry_out(self, run: HandoffRun, events: Callable[[HandoffRun, Instance], None]) -> None:
        run.observer.start()
        first = run.start("a")
        try:
            deadline = time.monotonic() + START_S
            while run.observer.results < run.size.keys:
                first.check()
                if time.monotonic() > deadline:
                    raise RunFailedError(
                        f"{run.observer.results} of {run.size.keys} keys after {START_S:.0f} s"
                    )
                time.sleep(LOOK_S)
            run.feeder.start()
            run.until(run.shared_by(first.name), [first], START_S)
            run.rest(run.size.quiet_s)
            events(run, first)
            run.finish()
            first.terminate()
            first.wait_ended()
        finally:
            for instance in run.started:
                instance.destroy()
        check = run.observer.counts
        missing = check.missing(run.feeder.written, run.size.keys)
        if run.guarantee == "exactly_once" and (check.repeated or missing):
            raise WrongResultError(f"{missing} results lost, {check.repeated} repeated")

    def _rows(self, run: HandoffRun, job: str, extra: Mapping[str, str]) -> list[Row]:
        events = [event for event in run.events if event.event == job]
        moved = [gap for event in events for gap in event.moved_ms]
        check = run.observer.counts
        quiet_ms = quiet_median_ms(run.observer.arrivals, run.quiet)
        parameters: dict[str, Any] = {
            **run.system.given(extra),
            "commit_interval_ms": 100,
            "records_per_s": RECORDS_PER_S,
            "partitions": run.system.partitions,
            "keys": run.size.keys,
            "moves": len(moved),
            "events": len(events),
            "untimed_cycles": UNTIMED_CYCLES,
            "moved_ms": [round(gap) for gap in moved],
            "unmoved_ms": [round(event.unmoved_ms) for event in events],
            "quiet_ms": [round(event.quiet_longest_ms) for event in events],
            "quiet_median_ms": round(quiet_ms, 1),
            "quiet_longest_ms": round(
                max((event.quiet_longest_ms for event in events), default=0.0), 1
            ),
            "date": self.date,
        }
        metrics: dict[str, list[float]] = {
            "gap_ms_unmoved_max": [max((event.unmoved_ms for event in events), default=0.0)],
            "lost": [float(check.missing(run.feeder.written, run.size.keys))],
            "repeated": [float(check.repeated)],
        }
        if moved:
            metrics["gap_ms_moved_max"] = [max(moved)]
            metrics["gap_ms_moved_p95"] = [percentile(moved, 0.95)]
        if job == "scale_out" and run.balance_s:
            metrics["balance_s"] = run.balance_s
        return make_rows(
            metrics,
            system=run.system.name,
            job=job,
            guarantee=run.guarantee,
            parameters=parameters,
        )

    def _tell(self, label: str, job: str, rows: list[Row]) -> None:
        text = ", ".join(f"{row.metric} {row.value:g}" for row in rows)
        first = rows[0].parameters
        self.console.print(
            f"{label}: {job}: {first['moves']} moves, quiet median {first['quiet_median_ms']} ms,"
            f" quiet longest {first['quiet_longest_ms']} ms, {text}",
            highlight=False,
            soft_wrap=True,
        )
