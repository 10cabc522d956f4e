"""Suite `backfill`: two live workers and backfills take turns over the same input.

Workers run as in the suite `throughput`, exactly once, with a commit every 100 ms and no cache, and
their rate is that of their commits. A backfill's rate is that of the whole call without Spark's own
start. It discards outputs; its changelog is checked.
"""

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks.backfill.plan import (
    VARIANTS,
    WORKERS,
    Size,
    Variant,
    changelog_tally,
    inputs_of,
    rows_of,
)
from benchmarks.environment.peer_process import RunFailedError, started, tail_of
from benchmarks.environment.systems import SYSTEMS
from benchmarks.jobs import plan
from benchmarks.jobs.checks import tally_for
from benchmarks.jobs.expected import expected
from benchmarks.report.results import Row, make_rows, rounds_parameter
from benchmarks.run import RunRequest, WrongResultError, delete_run_topics, run_once
from benchmarks.throughput import PROGRAM as WORKERS_PROGRAM
from benchmarks.throughput import untimed_records
from benchmarks.topics.generator import InputSpec
from benchmarks.topics.input_topic import ensure_input, quiet_admin
from benchmarks.topics.outputs import UnreadableOutputError, read_outputs
from tidewheel.tasks.kafka.internal_topics import changelog_topic

PROGRAM: Final = "backfill"
GUARANTEE: Final = "exactly_once"
COMMIT_INTERVAL_MS: Final = 100
RUN_TIMEOUT_S: Final = 1_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run; `details` become parameters."""

    records_per_s: float
    processor_us_per_record: float
    rss_mib_max: float
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class BackfillSuite:
    """Runs jobs against a broker and collects the rows; `failures` has one line each."""

    bootstrap_servers: str
    size: Size
    jobs: Sequence[str]
    systems: Sequence[str]
    console: Console
    date: str
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))
    _runs: int = 0

    def rows(self) -> Iterator[list[Row]]:
        for job in self.jobs:
            yield self._job(job)

    def _job(self, job: str) -> list[Row]:
        for system in self.systems:
            for source in self._inputs(job, system):
                ensure_input(self.bootstrap_servers, source)
        found: dict[str, dict[int, Figures]] = {system: {} for system in self.systems}
        for number in range(1, self.size.pairs + 1):
            for system, figures in self._round(job, number).items():
                found[system][number] = figures
        return [
            row
            for system, rounds in found.items()
            if rounds
            for row in self._rows(job, system, rounds)
        ]

    def _inputs(self, job: str, system: str) -> tuple[InputSpec, ...]:
        share = 1 if system == WORKERS else VARIANTS[system].share
        return inputs_of(job, self.size.records // share)

    def _round(self, job: str, number: int) -> dict[str, Figures]:
        """Run each system once; a failure voids the round, because its ratios are incomplete."""
        found: dict[str, Figures] = {}
        for system in self.systems:
            label = f"{job}, {system}, round {number}"
            try:
                found[system] = figures = self._run(job, system)
            except RunFailedError as failure:
                self.failures.append(f"{label}: {failure}")
                self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)
                return {}
            self.console.print(f"{label}: {_run_text(figures)}", highlight=False, soft_wrap=True)
        return found

    def _run(self, job: str, system: str) -> Figures:
        self._runs += 1
        name = f"bench-{self._token}-{self._runs:03d}-{system}"
        inputs = self._inputs(job, system)
        if system == WORKERS:
            return self._run_workers(job, name, inputs)
        try:
            return self._run_backfill(job, name, inputs, VARIANTS[system])
        except UnreadableOutputError as error:
            raise WrongResultError(f"the result is wrong: {error}") from error
        except (KafkaException, TimeoutError) as error:
            raise RunFailedError(
                f"the broker failed, or did not answer in time: {error!r}"
            ) from error

    def _run_workers(self, job: str, name: str, inputs: tuple[InputSpec, ...]) -> Figures:
        of_job, system = plan.JOBS[job], SYSTEMS[WORKERS]
        request = RunRequest(
            system=system,
            job=WORKERS_PROGRAM,
            run_name=name,
            guarantee=GUARANTEE,
            commit_interval_ms=COMMIT_INTERVAL_MS,
            cache_bytes=0,
            threads=None,
            source=inputs[0],
            repartitions=of_job.repartitions,
            tally=tally_for(of_job.check, system.output_format),
            untimed_records=untimed_records(inputs[0]),
            extra=_job_arguments(job, inputs),
        )
        result = run_once(self.bootstrap_servers, request, expected(job, inputs))
        return Figures(
            records_per_s=result.slope.records_per_s,
            processor_us_per_record=result.cpu_s_per_million,
            rss_mib_max=result.rss_mib_max,
        )

    def _run_backfill(
        self, job: str, name: str, inputs: tuple[InputSpec, ...], variant: Variant
    ) -> Figures:
        arguments = {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": name,
            "input_topic": inputs[0].topic,
            "output_topic": f"{name}-out",
            "master": f"local[{variant.cores}]",
            **_job_arguments(job, inputs),
        }
        try:
            outcome = _outcome(arguments)
            self._check_store(job, name, inputs, outcome["stores"])
        finally:
            delete_run_topics(quiet_admin(self.bootstrap_servers), name)
        records = inputs[0].records
        return Figures(
            records_per_s=records / outcome["seconds"],
            processor_us_per_record=outcome["processor_s"] / records * 1e6,
            rss_mib_max=outcome["rss_mib_max"],
            details={
                "seconds": round(outcome["seconds"], 2),
                "spark_start_s": round(outcome["spark_start_s"], 2),
                "phases_s": outcome["phases_s"],
            },
        )

    def _check_store(
        self, job: str, name: str, inputs: tuple[InputSpec, ...], stores: Mapping[str, int]
    ) -> None:
        """Raise `WrongResultError` if the only store has other rows than the direct computation."""
        ((store, count),) = stores.items()
        rows = rows_of(job, inputs)
        if count != len(rows):
            raise WrongResultError(f"the result is wrong: {count} rows instead of {len(rows)}")
        if (tally := changelog_tally(job)) is not None:
            read_outputs(self.bootstrap_servers, changelog_topic(name, store), tally)
            if problems := tally.problems(rows):
                raise WrongResultError(f"the result is wrong: {'; '.join(problems)}")

    def _rows(self, job: str, system: str, rounds: Mapping[int, Figures]) -> list[Row]:
        source = self._inputs(job, system)[0]
        found = list(rounds.values())
        metrics = {
            "records_per_s": [figures.records_per_s for figures in found],
            "processor_us_per_record": [figures.processor_us_per_record for figures in found],
            "rss_mib_max": [figures.rss_mib_max for figures in found],
        }
        parameters = {
            "records": source.records,
            "keys": source.keys,
            "partitions": source.partitions,
            "commit_interval_ms": COMMIT_INTERVAL_MS,
            "cache_bytes": 0,
            "date": self.date,
            **{name: [each.details[name] for each in found] for name in found[0].details},
            **rounds_parameter(rounds),
        }
        return make_rows(
            metrics, system=system, job=job, guarantee=GUARANTEE, parameters=parameters
        )


def _job_arguments(job: str, inputs: tuple[InputSpec, ...]) -> dict[str, str]:
    return {"job": job, **({"other_topic": inputs[1].topic} if inputs[1:] else {})}


def _outcome(arguments: Mapping[str, str]) -> dict[str, Any]:
    """Run the program in a new folder and return what it printed."""
    folder = Path(tempfile.mkdtemp(prefix=f"{arguments['application_id']}-"))
    log_path, out_path = folder / "log", folder / "out"
    given = {**arguments, "state_dir": str(folder / "state")}
    try:
        with (
            log_path.open("wb") as log,
            out_path.open("wb") as out,
            started(
                SYSTEMS["tidewheel"].command(PROGRAM), given, folder, out=out, log=log
            ) as process,
        ):
            try:
                code = process.wait(RUN_TIMEOUT_S)
            except subprocess.TimeoutExpired as late:
                raise RunFailedError(
                    f"it did not end within {RUN_TIMEOUT_S} s\n{tail_of(log_path)}"
                ) from late
        lines = out_path.read_text(errors="replace").strip().splitlines()
        if code or not lines:
            raise RunFailedError(f"it ended with exit code {code}\n{tail_of(log_path)}")
        outcome: dict[str, Any] = json.loads(lines[-1])
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_text(figures: Figures) -> str:
    details = "".join(f", {name} {value}" for name, value in figures.details.items())
    return (
        f"{figures.records_per_s:,.0f} records/s, {figures.processor_us_per_record:.2f} µs a record,"
        f" {figures.rss_mib_max:,.0f} MiB{details}"
    )
