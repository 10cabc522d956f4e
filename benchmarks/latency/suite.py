"""Suite `latency`: steady input, and the delay of each record's readable result.

An open loop: record n is due at begin + n / rate, independent of the system, and its latency counts
from then. So all delays are in the figures, the feeder's included. Systems run in turns. A wrong
result voids the whole round.
"""

import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product
from typing import Any

from rich.console import Console

from benchmarks.environment.peer_process import PeerProcess, RunFailedError, peer_process
from benchmarks.environment.systems import SYSTEMS
from benchmarks.handoff.gaps import percentile
from benchmarks.jobs import plan
from benchmarks.latency.results_read import Arrivals, ResultsReader, places_by_key
from benchmarks.report.results import GUARANTEES, Row, make_rows, rounds_parameter
from benchmarks.run import WrongResultError, delete_run_topics
from benchmarks.topics import input_topic, outputs
from benchmarks.topics.generator import InputSpec, key_blocks, record_blocks
from benchmarks.topics.steady_feed import SteadyFeeder

JOBS = ("count_by_key",)
#: Names in `plan.CACHES`: no cache, and the default of Tidewheel and Kafka Streams.
CACHES = ("0", "10MiB")
SYSTEM_NAMES = ("tidewheel", "kafka-streams", "quix")
#: Much slower than the others: one round is enough.
ONCE = frozenset({"quix"})
#: They have no output cache and run once, without.
WITHOUT_CACHE = frozenset({"quix"})
#: The programs are those of the suite throughput.
PROGRAM = "throughput"
RECORDS_PER_S = 10_000
COMMIT_INTERVAL_MS = 100
THREADS = (1, 2)
START_S = 120.0
#: Wait for the last results (s). A system that cannot keep up has a backlog, no latency.
DRAIN_S = 60.0
LOOK_S = 0.05
#: Feeder and reader share an interpreter; neither may block it for long.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySize:
    """Amount of work.

    Attributes:
        seconds: Measured time of each run.
        warm_up_s: Unmeasured time before, at the same rate.
        pairs: Number of rounds.
        primed: Records sent and awaited before the clock starts, so the system has started.
    """

    seconds: int
    warm_up_s: int
    pairs: int
    primed: int = 10_000

    @property
    def spec(self) -> InputSpec:
        return InputSpec(
            records=self.primed + (self.warm_up_s + self.seconds) * RECORDS_PER_S, keys=100_000
        )


FULL = LatencySize(seconds=120, warm_up_s=30, pairs=5)
QUICK = LatencySize(seconds=20, warm_up_s=10, pairs=1)
PROBE = LatencySize(seconds=10, warm_up_s=10, pairs=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRun:
    p50_ms: float
    p99_ms: float
    longest_ms: float
    late_ms_p99: float
    late_ms_max: float
    rss_mib_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySetting:
    system: str
    guarantee: str
    cache_bytes: int
    threads: int | None

    def __str__(self) -> str:
        return f"{self.guarantee}, cache {plan.cache_text(self.cache_bytes)}"


@dataclass(slots=True)
class LatencySuite:
    """Runs guarantees and systems against a broker and collects the rows.

    Attributes:
        caches: Names of caches. Systems without one run once.
        threads: Kafka Streams' threads; None selects the better of 1 and 2.
        date: The day, for the rows.
        failures: One line per failure.
    """

    bootstrap_servers: str
    size: LatencySize
    systems: tuple[str, ...]
    console: Console
    date: str
    guarantees: tuple[str, ...] = GUARANTEES
    caches: tuple[str, ...] = CACHES
    threads: int | None = None
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))
    _runs: int = 0

    def rows(self) -> Iterator[list[Row]]:
        for name in self.systems:  # no download or compilation between two turns
            SYSTEMS[name].command(PROGRAM)
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            for guarantee, cache in product(self.guarantees, self.caches):
                yield self._setting(guarantee, plan.CACHES[cache])
        finally:
            sys.setswitchinterval(before_s)

    def _setting(self, guarantee: str, cache_bytes: int) -> list[Row]:
        systems = [name for name in self.systems if not cache_bytes or name not in WITHOUT_CACHE]
        settings = {
            name: LatencySetting(
                system=name,
                guarantee=guarantee,
                cache_bytes=cache_bytes,
                threads=self._threads(name, guarantee, cache_bytes),
            )
            for name in systems
        }
        found: dict[str, dict[int, LatencyRun]] = {name: {} for name in systems}
        for number in range(self.size.pairs):
            turn = [name for name in systems if number == 0 or name not in ONCE]
            round_: dict[str, LatencyRun] = {}
            wrong = False
            for name in turn:
                label = f"count_by_key, {settings[name]}, {name}, round {number + 1}"
                try:
                    round_[name] = self._run(settings[name], self.size)
                except (RunFailedError, TimeoutError) as failure:
                    wrong = wrong or isinstance(failure, WrongResultError)
                    self._failed(label, failure)
                    continue
                self.console.print(f"{label}: {_run_text(round_[name])}", highlight=False)
            for name, run in round_.items() if not wrong else ():
                found[name][number + 1] = run
        return [
            row
            for name, rounds in found.items()
            if rounds
            for row in self._rows(settings[name], rounds)
        ]

    def _failed(self, label: str, failure: Exception) -> None:
        self.failures.append(f"{label}: {failure}")
        self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)

    def _threads(self, name: str, guarantee: str, cache_bytes: int) -> int | None:
        """Return a system's threads: the number with the lower p99 of two short runs."""
        if not SYSTEMS[name].threads:
            return None
        if self.threads is not None:
            return self.threads
        found: dict[int, float] = {}
        for threads in THREADS:
            setting = LatencySetting(
                system=name, guarantee=guarantee, cache_bytes=cache_bytes, threads=threads
            )
            try:
                found[threads] = self._run(setting, PROBE).p99_ms
            except (RunFailedError, TimeoutError) as failure:
                self._failed(f"choosing threads, {setting}, {name}, {threads}", failure)
        best = min(found, key=lambda each: found[each], default=THREADS[0])
        text = ", ".join(f"{threads}: {p99_ms:.0f} ms" for threads, p99_ms in found.items())
        cache = plan.cache_text(cache_bytes)
        self.console.print(
            f"{name}, {guarantee}, cache {cache}: {best} threads (p99 {text})", highlight=False
        )
        return best

    def _run(self, setting: LatencySetting, size: LatencySize) -> LatencyRun:
        self._runs += 1
        system, spec = SYSTEMS[setting.system], size.spec
        run_name = f"bench-{self._token}-latency-{self._runs:03d}"
        topics = {"input_topic": f"{run_name}-in", "output_topic": f"{run_name}-out"}
        admin = input_topic.quiet_admin(self.bootstrap_servers)
        for topic in topics.values():
            input_topic.create_topic(admin, topic, spec.partitions)
        decode = outputs.decoder(system.output_format)
        assert decode is not None, "systems of this suite write counts"
        arrivals = Arrivals(
            places_by_key(chain.from_iterable(key_blocks(spec))),
            spec.records,
            held_back=setting.cache_bytes > 0,
        )
        reader = ResultsReader(
            self.bootstrap_servers, topics["output_topic"], spec.partitions, arrivals, decode
        )
        arguments = {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": run_name,
            "guarantee": setting.guarantee,
            "commit_interval_ms": str(COMMIT_INTERVAL_MS),
            "cache_bytes": str(setting.cache_bytes),
            "threads": str(setting.threads or 1),
            "job": "count_by_key",
            **topics,
        }
        try:
            with peer_process(system, PROGRAM, arguments) as peer:
                reader.start()
                try:
                    return self._measured(
                        _Turn(self.bootstrap_servers, topics["input_topic"], size, peer, reader),
                        arrivals,
                        setting.guarantee,
                    )
                finally:
                    reader.stop()
        finally:
            delete_run_topics(admin, run_name)

    def _measured(self, turn: "_Turn", arrivals: Arrivals, guarantee: str) -> LatencyRun:
        size = turn.size
        records = chain.from_iterable(record_blocks(size.spec))
        primer = turn.feeder(islice(records, size.primed))
        turn.feed(primer)
        turn.until(lambda: arrivals.there >= size.primed, START_S, lambda: "it did not start")
        feeder = turn.feeder(records)
        turn.feed(feeder)
        turn.until(
            lambda: arrivals.there >= arrivals.records,
            DRAIN_S,
            lambda: (
                f"{arrivals.records - arrivals.there} results were missing {DRAIN_S:.0f} s after the last record"
            ),
        )
        turn.peer.stop()
        turn.reader.stop()
        problems = arrivals.problems(guarantee)
        if problems:
            raise WrongResultError(f"the result is wrong: {'; '.join(problems)}")
        assert feeder.begin_s is not None, "it has fed"
        taken = arrivals.latencies_ms(
            feeder.begin_s - size.primed / RECORDS_PER_S,
            RECORDS_PER_S,
            size.primed + size.warm_up_s * RECORDS_PER_S,
        )
        late = feeder.late_ms[size.warm_up_s * RECORDS_PER_S :]
        return LatencyRun(
            p50_ms=statistics.median(taken),
            p99_ms=percentile(taken, 0.99),
            longest_ms=taken[-1],
            late_ms_p99=percentile(late, 0.99),
            late_ms_max=max(late),
            rss_mib_max=turn.peer.usage.rss_bytes_max / 2**20,
        )

    def _rows(self, setting: LatencySetting, rounds: dict[int, LatencyRun]) -> list[Row]:
        spec, runs = self.size.spec, list(rounds.values())
        parameters: dict[str, Any] = {
            "commit_interval_ms": COMMIT_INTERVAL_MS,
            "cache_bytes": setting.cache_bytes,
            "records_per_s": RECORDS_PER_S,
            "seconds": self.size.seconds,
            "warm_up_s": self.size.warm_up_s,
            "keys": spec.keys,
            "partitions": spec.partitions,
            "value_bytes": spec.value_bytes,
            "seed": spec.seed,
            "longest_ms": [round(run.longest_ms) for run in runs],
            "feeder_late_ms_p99": [round(run.late_ms_p99, 1) for run in runs],
            "feeder_late_ms_max": [round(run.late_ms_max, 1) for run in runs],
            "date": self.date,
            **rounds_parameter(rounds),
            **({"threads": setting.threads} if setting.threads else {}),
        }
        return make_rows(
            {
                "latency_ms_p50": [run.p50_ms for run in runs],
                "latency_ms_p99": [run.p99_ms for run in runs],
                "rss_mib_max": [run.rss_mib_max for run in runs],
            },
            system=setting.system,
            job="count_by_key",
            guarantee=setting.guarantee,
            parameters=parameters,
        )


@dataclass(slots=True)
class _Turn:
    bootstrap_servers: str
    topic: str
    size: LatencySize
    peer: PeerProcess
    reader: ResultsReader

    def feeder(self, records: Iterator[tuple[bytes, bytes]]) -> SteadyFeeder:
        return SteadyFeeder(
            self.bootstrap_servers, self.topic, records, records_per_s=RECORDS_PER_S
        )

    def feed(self, feeder: SteadyFeeder) -> None:
        feeder.start()
        try:
            while feeder.is_alive():
                self._look()
                feeder.check()
                feeder.join(LOOK_S * 4)
        finally:
            feeder.stop()

    def until(self, done: Callable[[], bool], within_s: float, why: Callable[[], str]) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            self._look()
            if time.monotonic() > deadline:
                raise RunFailedError(why())
            time.sleep(LOOK_S)

    def _look(self) -> None:
        self.peer.check()
        self.reader.check()
        self.peer.look()


def with_pairs(size: LatencySize, pairs: int | None) -> LatencySize:
    return size if pairs is None else replace(size, pairs=pairs)


def _run_text(run: LatencyRun) -> str:
    return (
        f"p50 {run.p50_ms:.0f} ms, p99 {run.p99_ms:.0f} ms, longest {run.longest_ms:.0f} ms,"
        f" feeder late by {run.late_ms_p99:.0f} ms (p99), at most {run.late_ms_max:.0f} ms, {run.rss_mib_max:,.0f} MiB"
    )
