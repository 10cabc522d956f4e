"""Suite `shards`: a whole task and shards take turns over one partition.

Workers have fixed assignment, a process each. Rates come from the broker's commits, as in the suite
`throughput`: a shard at an offset has done its share of the records before it. Processor time is
that of the workers' processes, from the warm-up on. Each key's counts must be 1, 2, 3 … to its
direct count, each once.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psutil
from confluent_kafka import KafkaException, TopicPartition
from rich.console import Console

from benchmarks import progress
from benchmarks.environment.peer_process import PeerProcess, RunFailedError, Usage, peer_process
from benchmarks.environment.systems import SYSTEMS
from benchmarks.progress import Slope
from benchmarks.report.results import Row, make_rows
from benchmarks.run import POLL_S, START_ALLOWANCE_S, WrongResultError, delete_run_topics
from benchmarks.shards.plan import (
    Job,
    ProcessorTime,
    Sample,
    Size,
    Variant,
    done_records,
    processor_time,
    shard_commits,
    shard_records,
    source_of,
)
from benchmarks.throughput import untimed_records
from benchmarks.topics import outputs
from benchmarks.topics.commit_log import read_commits
from benchmarks.topics.generator import InputSpec, direct_counts
from benchmarks.topics.group_progress import GroupProgress
from benchmarks.topics.input_topic import create_topic, ensure_input, quiet_admin
from tidewheel.rebalance.model import Shard
from tidewheel.tasks.kafka.internal_topics import offsets_group

SYSTEM = SYSTEMS["tidewheel"]
PROGRAM = "shards"
GUARANTEE = "exactly_once"
COMMIT_INTERVAL_MS = 100
#: A run beyond this multiple of its planned time is stopped.
PATIENCE = 8.0


@dataclass(frozen=True, slots=True)
class RunResult:
    slope: Slope
    used: ProcessorTime


@dataclass(slots=True)
class ShardsSuite:
    """Runs jobs against a broker and collects the rows; `failures` has one line each."""

    bootstrap_servers: str
    size: Size
    console: Console
    date: str
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))
    _runs: int = 0

    def rows(self, jobs: Sequence[Job]) -> Iterator[list[Row]]:
        for job in jobs:
            yield self._job(job)

    def _job(self, job: Job) -> list[Row]:
        for variant in job.variants:
            ensure_input(self.bootstrap_servers, source_of(job, variant, self.size))
        results: dict[Variant, list[RunResult]] = {variant: [] for variant in job.variants}
        for number in range(self.size.pairs):
            for variant, result in self._round(job, number).items():
                results[variant].append(result)
        return [
            row
            for variant, found in results.items()
            if found
            for row in self._rows(job, variant, found)
        ]

    def _round(self, job: Job, number: int) -> dict[Variant, RunResult]:
        """Run each variant once; a failure voids the round, because its pair is incomplete."""
        results: dict[Variant, RunResult] = {}
        for variant in job.variants:
            label = f"{job.name}, {variant.name}, round {number + 1}"
            try:
                result = self._run(job, variant)
            except RunFailedError as failure:
                self.failures.append(f"{label}: {failure}")
                self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)
                return {}
            results[variant] = result
            self.console.print(f"{label}: {_run_text(result)}", highlight=False, soft_wrap=True)
        return results

    def _run(self, job: Job, variant: Variant) -> RunResult:
        self._runs += 1
        run = _Run(
            bootstrap_servers=self.bootstrap_servers,
            name=f"bench-{self._token}-{self._runs:03d}-{variant.name}",
            job=job,
            variant=variant,
            source=source_of(job, variant, self.size),
            limit_s=START_ALLOWANCE_S + self.size.seconds * PATIENCE,
        )
        try:
            return run.result()
        except outputs.UnreadableOutputError as error:
            raise WrongResultError(f"the result is wrong: {error}") from error
        except (KafkaException, TimeoutError) as error:
            raise RunFailedError(
                f"the broker failed, or did not answer in time: {error!r}"
            ) from error
        except ValueError as error:
            raise RunFailedError(str(error)) from error

    def _rows(self, job: Job, variant: Variant, results: Sequence[RunResult]) -> list[Row]:
        source = source_of(job, variant, self.size)
        parameters: dict[str, Any] = {
            "workers": variant.workers,
            "shards": variant.shards,
            "records": source.records,
            "untimed_records": untimed_records(source),
            "keys": source.keys,
            "partitions": source.partitions,
            "value_bytes": source.value_bytes,
            "seed": source.seed,
            "commit_interval_ms": COMMIT_INTERVAL_MS,
            "shard_records": list(shard_records(source, variant.shards)),
            "date": self.date,
            "window_end": sorted({result.slope.window_end for result in results}),
        }
        metrics = {
            "records_per_s": [result.slope.records_per_s for result in results],
            "workers_us_per_record": [result.used.workers_us for result in results],
            "busiest_us_per_record": [result.used.busiest_us for result in results],
        }
        broker_us = [
            result.used.broker_us for result in results if result.used.broker_us is not None
        ]
        if broker_us:
            metrics["broker_us_per_record"] = broker_us
        return make_rows(
            metrics,
            system=variant.name,
            job=job.name,
            guarantee=GUARANTEE,
            parameters=parameters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    bootstrap_servers: str
    name: str
    job: Job
    variant: Variant
    source: InputSpec
    limit_s: float

    @property
    def _groups(self) -> list[str]:
        return [offsets_group(self.name, shard) for shard in Shard.all_of(self.variant.shards)]

    @property
    def _output(self) -> str:
        return f"{self.name}-out"

    def result(self) -> RunResult:
        admin = quiet_admin(self.bootstrap_servers)
        create_topic(admin, self._output, self.source.partitions)
        try:
            samples = self._samples()
            self._check_outputs()
            records = shard_records(self.source, self.variant.shards)
            commits = [
                read_commits(self.bootstrap_servers, group, self.source.topic)
                for group in self._groups
            ]
            slope = progress.slope(
                shard_commits(commits, records),
                untimed_records=untimed_records(self.source),
                records=self.source.records,
                commit_interval_ms=COMMIT_INTERVAL_MS,
            )
            return RunResult(slope, processor_time(samples, untimed_records(self.source)))
        finally:
            delete_run_topics(admin, self.name)

    def _check_outputs(self) -> None:
        tally = outputs.OutputTally(outputs.decoder(SYSTEM.output_format))
        outputs.read_outputs(self.bootstrap_servers, self._output, tally)
        problems = tally.problems(direct_counts(self.source))
        # Correct increasing counts, one per record: so each occurs once.
        if tally.outputs != self.source.records:
            problems.append(f"{tally.outputs} outputs for {self.source.records} records")
        if problems:
            raise WrongResultError(f"the result is wrong: {'; '.join(problems)}")

    def _samples(self) -> list[Sample]:
        with ExitStack() as stack:
            broker = _broker_usage()
            workers = [
                stack.enter_context(peer_process(SYSTEM, PROGRAM, self._arguments(number)))
                for number in range(self.variant.workers)
            ]
            groups = [
                stack.enter_context(GroupProgress(self.bootstrap_servers, group))
                for group in self._groups
            ]
            samples = self._until_done(workers, groups, broker)
            for worker in workers:
                worker.stop()
            return samples

    def _until_done(
        self,
        workers: Sequence[PeerProcess],
        groups: Sequence[GroupProgress],
        broker: "_BrokerUsage | None",
    ) -> list[Sample]:
        deadline_s = time.monotonic() + self.limit_s
        records = shard_records(self.source, self.variant.shards)
        place = TopicPartition(self.source.topic, 0)
        samples: list[Sample] = []
        while not samples or samples[-1].records < self.source.records:
            for worker in workers:
                worker.check()
            if time.monotonic() > deadline_s:
                done = samples[-1].records if samples else 0
                raise RunFailedError(
                    f"it had committed {done} of {self.source.records} records after {self.limit_s:.0f} s"
                )
            time.sleep(POLL_S)
            offsets = [group.committed([place]) for group in groups]
            samples.append(
                Sample(
                    done_records(offsets, records),
                    tuple(worker.look().cpu_s for worker in workers),
                    None if broker is None else broker.cpu_s(),
                )
            )
        return samples

    def _arguments(self, number: int) -> Mapping[str, str]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": self.name,
            "input_topic": self.source.topic,
            "output_topic": self._output,
            "guarantee": GUARANTEE,
            "commit_interval_ms": str(COMMIT_INTERVAL_MS),
            "rounds": str(self.job.rounds),
            "shards": str(self.variant.shards),
            "slot": str(number),
            "workers": str(self.variant.workers),
        }


@dataclass(slots=True)
class _BrokerUsage:
    pid: int
    usage: Usage = field(default_factory=Usage)

    def cpu_s(self) -> float:
        self.usage.look(self.pid)
        return self.usage.cpu_s


def _broker_usage() -> _BrokerUsage | None:
    """Return the broker that was started here; None for another one."""
    children = psutil.Process().children(recursive=True)
    return next((_BrokerUsage(child.pid) for child in children if child.name() == "java"), None)


def _run_text(result: RunResult) -> str:
    slope, used = result.slope, result.used
    return (
        f"{slope.records_per_s:,.0f} records/s ({slope.seconds:.1f} s, {slope.commits} commits),"
        f" {used.workers_us:,.1f} µs of the workers a record, {used.busiest_us:,.1f} µs of the busiest"
    )
