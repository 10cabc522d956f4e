"""The suite `throughput`: records per second of each system and setting.

In each setting (guarantee, commit interval, cache) the systems run in turns, A B A B …, so other
load on the machine hits all. `progress` explains the rate; `outputs` checks every output by value.
A wrong output of one system voids the round for all.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from benchmarks.environment.peer_process import RunFailedError
from benchmarks.environment.systems import SYSTEMS, System
from benchmarks.jobs import plan
from benchmarks.jobs.checks import tally_for
from benchmarks.jobs.expected import expected
from benchmarks.report.results import (
    COMMON_INTERVALS_MS,
    GUARANTEES,
    Row,
    make_rows,
    rounds_parameter,
)
from benchmarks.run import (
    SLOWEST_RECORDS_PER_S,
    RunRequest,
    RunResult,
    WrongResultError,
    run_once,
)
from benchmarks.topics.generator import InputSpec, direct_counts
from benchmarks.topics.input_topic import ensure_input

JOBS = tuple(plan.JOBS)
#: The programs of this suite have all jobs in one.
PROGRAM = "throughput"
# With a commit each 30 s, a rate (two commits after the warm-up) takes over a minute.
LONG_INTERVAL_MS = 10_000
LONG_RECORDS = 24_000_000
# A peer below a fifth of our rate runs one round: more would take hours and change nothing.
SLOW = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Amount of work.

    Attributes:
        records: Input size of systems that are not much slower than the rest.
        pairs: Number of rounds.
        own_defaults: Each system also runs with its default commit interval.
        probe_records: Input size for the choice of threads.
        probe_once: Threads are chosen once, not by job, guarantee and cache.
    """

    records: int
    pairs: int
    own_defaults: bool
    probe_records: int
    probe_once: bool
    guarantees: tuple[str, ...] = GUARANTEES
    commit_intervals_ms: tuple[int, ...] = COMMON_INTERVALS_MS
    caches: tuple[str, ...] = tuple(plan.CACHES)


FULL = Size(
    records=4_000_000, pairs=5, own_defaults=True, probe_records=2_000_000, probe_once=False
)
# All jobs and systems within ten minutes: each job in one setting.
QUICK = Size(
    records=300_000,
    pairs=1,
    own_defaults=False,
    probe_records=300_000,
    probe_once=True,
    guarantees=("exactly_once",),
    commit_intervals_ms=(100,),
    caches=("0",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selected part of the suite; the default is all.

    Attributes:
        caches: Names of caches; a job skips those that it does not run with.
        threads: Number of threads for systems with a choice; None selects the best.
    """

    size: Size = FULL
    jobs: tuple[str, ...] = JOBS
    systems: tuple[str, ...] = tuple(SYSTEMS)
    guarantees: tuple[str, ...] = GUARANTEES
    commit_intervals_ms: tuple[int, ...] = COMMON_INTERVALS_MS
    caches: tuple[str, ...] = tuple(plan.CACHES)
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    job: plan.Job
    guarantee: str
    commit_interval_ms: int
    cache_bytes: int
    systems: tuple[System, ...]


def settings(selection: Selection) -> Iterator[Setting]:
    """Yield the settings in order: common intervals, then each system's own default."""
    for job in (plan.JOBS[name] for name in selection.jobs):
        able = [SYSTEMS[name] for name in selection.systems if name not in job.lacking]
        for guarantee in selection.guarantees:
            chosen = [system for system in able if guarantee in system.guarantees]
            intervals: dict[int, list[System]] = {
                interval_ms: list(chosen) for interval_ms in selection.commit_intervals_ms
            }
            for system in chosen if selection.size.own_defaults and job.own_defaults else ():
                own_ms = system.default_commit_interval_ms.get(guarantee)
                if own_ms is not None and own_ms not in COMMON_INTERVALS_MS:
                    intervals.setdefault(own_ms, []).append(system)
            for interval_ms, running in intervals.items():
                for name in (cache for cache in selection.caches if cache in job.caches):
                    fit = tuple(each for each in running if each.cache or name == "0")
                    if fit:
                        yield Setting(
                            job=job,
                            guarantee=guarantee,
                            commit_interval_ms=interval_ms,
                            cache_bytes=plan.CACHES[name],
                            systems=fit,
                        )


def inputs_for(system: System, setting: Setting, size: Size) -> tuple[InputSpec, ...]:
    """Return a system's input in a setting; the first quarter of its work is not timed."""
    if setting.commit_interval_ms >= LONG_INTERVAL_MS:
        return setting.job.inputs(LONG_RECORDS)
    return setting.job.inputs(int(size.records * system.record_share * setting.job.record_share))


def right_result(
    system: System, job: plan.Job, inputs: tuple[InputSpec, ...]
) -> Mapping[bytes, int]:
    """Return the expected output: the job's result, or the input's count of each key for copies."""
    if system.output_format == "copy":
        return direct_counts(inputs[0])
    return expected(job.name, inputs)


def untimed_records(*work: InputSpec) -> int:
    """Return the records of the warm-up: a quarter, at most a million."""
    return min(sum(source.records for source in work) // 4, 1_000_000)


@dataclass(slots=True)
class ThroughputSuite:
    """Runs a selection against a broker and collects the rows; `failures` makes the exit code 1."""

    bootstrap_servers: str
    selection: Selection
    console: Console
    date: str
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))
    _runs: int = 0
    _threads: dict[tuple[str, str, str, bool], tuple[int, dict[int, float]]] = field(
        default_factory=dict[tuple[str, str, str, bool], tuple[int, dict[int, float]]]
    )

    def rows(self) -> Iterator[list[Row]]:
        for setting in settings(self.selection):
            yield self._setting(setting)

    def _setting(self, setting: Setting) -> list[Row]:
        for system in setting.systems:  # no compilation, filling or computation between two turns
            system.command(PROGRAM)
            inputs = inputs_for(system, setting, self.selection.size)
            for source in inputs:
                ensure_input(self.bootstrap_servers, source)
            right_result(system, setting.job, inputs)
        found: dict[str, dict[int, RunResult]] = {system.name: {} for system in setting.systems}
        slow: set[str] = set()
        for number in range(self.selection.size.pairs):
            turn = [system for system in setting.systems if system.name not in slow]
            results = self._round(setting, turn, number)
            if results is None:
                continue
            for name, result in results.items():
                found[name][number + 1] = result
            ours = results.get("tidewheel")
            if ours is not None:
                fifth = ours.slope.records_per_s * SLOW
                slow |= {name for name in results if results[name].slope.records_per_s < fifth}
        return [
            row
            for system in setting.systems
            if found[system.name]
            for row in self._rows(setting, system, found[system.name])
        ]

    def _round(
        self, setting: Setting, turn: list[System], number: int
    ) -> dict[str, RunResult] | None:
        """Run each system once; None after a wrong result, which voids the round."""
        results: dict[str, RunResult] = {}
        wrong = False
        for system in turn:
            label = f"{_label(setting)}, {system.name}, round {number + 1}"
            inputs = inputs_for(system, setting, self.selection.size)
            try:
                threads = self._best_threads(setting, system)
                result = self._run(setting, system, inputs, threads)
            except RunFailedError as failure:
                wrong = wrong or isinstance(failure, WrongResultError)
                self._failed(label, failure)
                continue
            results[system.name] = result
            self.console.print(f"{label}: {_run_text(result)}", highlight=False, soft_wrap=True)
        return None if wrong else results

    def _failed(self, label: str, failure: RunFailedError) -> None:
        self.failures.append(f"{label}: {failure}")
        self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)

    def _run(
        self, setting: Setting, system: System, inputs: tuple[InputSpec, ...], threads: int | None
    ) -> RunResult:
        self._runs += 1
        job = setting.job
        work = job.work(inputs)
        request = RunRequest(
            system=system,
            job=PROGRAM,
            run_name=f"bench-{self._token}-{self._runs:03d}-{system.name}",
            guarantee=setting.guarantee,
            commit_interval_ms=setting.commit_interval_ms,
            cache_bytes=setting.cache_bytes,
            threads=threads,
            source=work[0],
            second_source=work[1] if len(work) > 1 else None,
            repartitions=job.repartitions,
            tally=tally_for(job.check, system.output_format),
            untimed_records=untimed_records(*work),
            extra={"job": job.name, **({"other_topic": inputs[1].topic} if inputs[1:] else {})},
            slowest_records_per_s=SLOWEST_RECORDS_PER_S * job.slowest_share * system.slowest_share,
        )
        return run_once(self.bootstrap_servers, request, right_result(system, job, inputs))

    def _best_threads(self, setting: Setting, system: System) -> int | None:
        if not system.threads:
            return None
        if self.selection.threads is not None:
            return self.selection.threads
        place = self._probe_place(setting, system)
        if place not in self._threads:
            # At the shortest interval: there a short run has enough commits.
            probe = replace(
                setting,
                commit_interval_ms=min(COMMON_INTERVALS_MS),
                cache_bytes=0 if self.selection.size.probe_once else setting.cache_bytes,
            )
            inputs = setting.job.inputs(
                int(self.selection.size.probe_records * setting.job.record_share)
            )
            for source in inputs:
                ensure_input(self.bootstrap_servers, source)
            tried: dict[int, float] = {}
            for threads in system.threads:
                try:
                    result = self._run(probe, system, inputs, threads)
                except RunFailedError as failure:
                    self._failed(f"{_label(probe)}, {system.name}, {threads} threads", failure)
                else:
                    tried[threads] = round(result.slope.records_per_s)
            if not tried:
                raise RunFailedError("it failed with every number of threads")
            best = max(tried, key=lambda threads: tried[threads])
            self._threads[place] = best, tried
            self.console.print(f"{system.name}: threads tried {tried}, taking {best}")
        return self._threads[place][0]

    def _probe_place(self, setting: Setting, system: System) -> tuple[str, str, str, bool]:
        if self.selection.size.probe_once:
            return (system.name, "", "", False)
        return (system.name, setting.job.name, setting.guarantee, setting.cache_bytes > 0)

    def _rows(self, setting: Setting, system: System, rounds: dict[int, RunResult]) -> list[Row]:
        results = list(rounds.values())
        inputs = inputs_for(system, setting, self.selection.size)
        source, work = inputs[0], setting.job.work(inputs)
        own_ms = system.default_commit_interval_ms.get(setting.guarantee)
        parameters: dict[str, Any] = {
            "records": sum(each.records for each in work),
            "untimed_records": untimed_records(*work),
            "keys": source.keys,
            **({"zipf": source.zipf} if source.zipf else {}),
            "partitions": source.partitions,
            "value_bytes": source.value_bytes,
            "seed": source.seed,
            "commit_interval_ms": setting.commit_interval_ms,
            "date": self.date,
            "own_default": own_ms == setting.commit_interval_ms,
            "cache_bytes": setting.cache_bytes,
            "window_end": sorted({result.slope.window_end for result in results}),
            "cpu_s_per_million": [round(result.cpu_s_per_million, 2) for result in results],
            "pauses_per_million": [round(each.slope.pauses_per_million, 3) for each in results],
            "committed_every_ms": [round(each.slope.interval_ms) for each in results],
            "longest_gap_ms": [result.slope.longest_gap_ms for result in results],
            **rounds_parameter(rounds),
        }
        if system.threads:
            parameters["threads"] = self._best_threads(setting, system)
            tried = self._threads.get(self._probe_place(setting, system))
            if tried is not None:
                parameters["threads_tried"] = {str(each): rate for each, rate in tried[1].items()}
        metrics: Mapping[str, list[float]] = {
            "records_per_s": [result.slope.records_per_s for result in results],
            "outputs": [float(result.outputs) for result in results],
            "rss_mib_max": [result.rss_mib_max for result in results],
        }
        return make_rows(
            metrics,
            system=system.name,
            job=setting.job.name,
            guarantee=setting.guarantee,
            parameters=parameters,
        )


def _run_text(result: RunResult) -> str:
    slope = result.slope
    return (
        f"{slope.records_per_s:,.0f} records/s ({slope.end.records - slope.start.records:,.0f}"
        f" records in {slope.seconds:.1f} s, a commit every {slope.interval_ms:.0f} ms), {result.outputs:,} outputs,"
        f" {result.rss_mib_max:,.0f} MiB, {result.cpu_s_per_million:.1f} s of CPU a million"
    )


def _label(setting: Setting) -> str:
    return (
        f"{setting.job.name}, {setting.guarantee}, commit every {setting.commit_interval_ms} ms,"
        f" cache {plan.cache_text(setting.cache_bytes)}"
    )
