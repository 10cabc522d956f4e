"""Suite `parallel`: factors and peers take turns over one partition.

Rates come from the broker's commits, as in the suite `throughput`. A commit's offset is that of the
slowest key range; ranges ahead of it do not count. Each key's counts must be 1, 2, 3 … to its
direct count, each once.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from benchmarks.environment.peer_process import RunFailedError
from benchmarks.parallel.plan import Setting, Variant, expected_records_per_s
from benchmarks.report.results import Row, make_rows
from benchmarks.run import RunRequest, RunResult, WrongResultError, run_once
from benchmarks.throughput import untimed_records
from benchmarks.topics.generator import direct_counts
from benchmarks.topics.input_topic import ensure_input

COMMIT_INTERVAL_MS = 100
#: The programs of this suite have all jobs in one.
PROGRAM = "parallel"
#: A run beyond this multiple of its planned time is stopped.
PATIENCE = 8.0


@dataclass(slots=True)
class ParallelSuite:
    """Runs settings against a broker and collects the rows; `failures` has one line each."""

    bootstrap_servers: str
    pairs: int
    console: Console
    date: str
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))
    _runs: int = 0

    def rows(self, settings: Iterator[Setting]) -> Iterator[list[Row]]:
        for setting in settings:
            yield self._setting(setting)

    def _setting(self, setting: Setting) -> list[Row]:
        for variant in setting.variants:  # no download, compilation or filling between two turns
            variant.system.command(PROGRAM)
            ensure_input(self.bootstrap_servers, variant.source)
        found: dict[str, list[RunResult]] = {each.name: [] for each in setting.variants}
        for number in range(self.pairs):
            for name, result in self._round(setting, number).items():
                found[name].append(result)
        return [
            row
            for variant in setting.variants
            if found[variant.name]
            for row in self._rows(setting, variant, found[variant.name])
        ]

    def _round(self, setting: Setting, number: int) -> dict[str, RunResult]:
        """Run each variant once; a wrong result voids the round."""
        results: dict[str, RunResult] = {}
        wrong = False
        for variant in setting.variants:
            label = f"{_label(setting)}, {variant.name}, round {number + 1}"
            try:
                result = self._run(setting, variant)
            except RunFailedError as failure:
                wrong = wrong or isinstance(failure, WrongResultError)
                self.failures.append(f"{label}: {failure}")
                self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)
                continue
            results[variant.name] = result
            self.console.print(f"{label}: {_run_text(result)}", highlight=False, soft_wrap=True)
        return {} if wrong else results

    def _run(self, setting: Setting, variant: Variant) -> RunResult:
        self._runs += 1
        source = variant.source
        expected_per_s = expected_records_per_s(setting.job, variant.factor, source)
        request = RunRequest(
            system=variant.system,
            job=PROGRAM,
            run_name=f"bench-{self._token}-{self._runs:03d}-{variant.name}",
            guarantee=setting.guarantee,
            commit_interval_ms=COMMIT_INTERVAL_MS,
            cache_bytes=0,
            threads=None,
            source=source,
            untimed_records=untimed_records(source),
            extra={"job": setting.job.name, "factor": str(variant.factor)},
            slowest_records_per_s=expected_per_s / PATIENCE,
        )
        result = run_once(self.bootstrap_servers, request, direct_counts(source))
        # Correct increasing counts, one per record: so each occurs once.
        if setting.guarantee == "exactly_once" and result.outputs != source.records:
            raise WrongResultError(
                f"the result is wrong: {result.outputs} outputs for {source.records} records"
            )
        return result

    def _rows(self, setting: Setting, variant: Variant, results: list[RunResult]) -> list[Row]:
        source = variant.source
        parameters: dict[str, Any] = {
            "factor": variant.factor,
            "records": source.records,
            "untimed_records": untimed_records(source),
            "keys": source.keys,
            "zipf": setting.zipf,
            "partitions": source.partitions,
            "value_bytes": source.value_bytes,
            "seed": source.seed,
            "commit_interval_ms": COMMIT_INTERVAL_MS,
            "date": self.date,
            "window_end": sorted({result.slope.window_end for result in results}),
            "cpu_s_per_million": [round(result.cpu_s_per_million, 2) for result in results],
        }
        metrics = {
            "records_per_s": [result.slope.records_per_s for result in results],
            "outputs": [float(result.outputs) for result in results],
            "rss_mib_max": [result.rss_mib_max for result in results],
        }
        return make_rows(
            metrics,
            system=variant.name,
            job=setting.job.name,
            guarantee=setting.guarantee,
            parameters=parameters,
        )


def _run_text(result: RunResult) -> str:
    slope = result.slope
    return (
        f"{slope.records_per_s:,.0f} records/s ({slope.seconds:.1f} s, {slope.commits} commits),"
        f" {result.rss_mib_max:,.0f} MiB, {result.cpu_s_per_million:.1f} s of CPU a million"
    )


def _label(setting: Setting) -> str:
    keys = f", keys by Zipf {setting.zipf:g}" if setting.zipf else ""
    return f"{setting.job.name}, {setting.guarantee}{keys}"
