"""Suite `memory`: ten minutes of steady load on a large, growing state; samples RSS each second."""

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from confluent_kafka import TopicPartition
from rich.console import Console

from benchmarks.environment.peer_process import PeerProcess, RunFailedError, peer_process
from benchmarks.environment.systems import SYSTEMS
from benchmarks.memory.flatness import Flatness, flatness
from benchmarks.memory.growing_keys import growing_counts, growing_records
from benchmarks.report.results import Row, make_rows
from benchmarks.run import WrongResultError, delete_run_topics
from benchmarks.topics import input_topic, outputs
from benchmarks.topics.group_progress import GroupProgress
from benchmarks.topics.steady_feed import SteadyFeeder

JOBS = ("ten_minutes",)
SYSTEM_NAMES = ("tidewheel", "kafka-streams")
#: The programs are those of the suite throughput.
PROGRAM = "throughput"
RECORDS_PER_S = 10_000
FILLED_PER_S = 40_000
PARTITIONS = 4
COMMIT_INTERVAL_MS = 100
#: Cache size: a hundredth of the keys of ten minutes fill it.
CACHE_BYTES = 10 * 1024 * 1024
GUARANTEE = "exactly_once"
SAMPLE_S = 1.0
DRAIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySize:
    """Records that fill the state, duration of the load, and its warm-up.

    The filled state exceeds all caches with a budget. Later growth comes from keys alone.
    """

    filled: int
    seconds: int
    warm_up_s: int

    @property
    def records(self) -> int:
        return self.filled + self.seconds * RECORDS_PER_S


FULL = MemorySize(filled=6_000_000, seconds=600, warm_up_s=60)
QUICK = MemorySize(filled=200_000, seconds=90, warm_up_s=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    samples: tuple[tuple[float, float], ...]
    found: Flatness


@dataclass(slots=True)
class MemorySuite:
    bootstrap_servers: str
    size: MemorySize
    systems: tuple[str, ...]
    console: Console
    date: str
    threads: int | None = None
    failures: list[str] = field(default_factory=list[str])
    _token: str = field(default_factory=lambda: secrets.token_hex(3))

    def rows(self) -> Iterator[list[Row]]:
        found: list[Row] = []
        for name in self.systems:
            label = f"ten_minutes, {GUARANTEE}, {name}"
            try:
                run = self._run(name)
            except (RunFailedError, TimeoutError) as failure:
                self.failures.append(f"{label}: {failure}")
                self.console.print(f"{label}: {failure}", style="red", markup=False, soft_wrap=True)
                continue
            self.console.print(f"{label}: {run_text(run.found)}", highlight=False, soft_wrap=True)
            found += self._rows(name, run)
        if found:
            yield found

    def _run(self, name: str) -> MemoryRun:
        system = SYSTEMS[name]
        run_name = f"bench-{self._token}-memory-{name}"
        topics = {"input_topic": f"{run_name}-in", "output_topic": f"{run_name}-out"}
        admin = input_topic.quiet_admin(self.bootstrap_servers)
        system.command(PROGRAM)  # no download or compilation during the measurement
        for topic in topics.values():
            input_topic.create_topic(admin, topic, PARTITIONS)
        arguments = {
            "bootstrap_servers": self.bootstrap_servers,
            "application_id": run_name,
            "guarantee": GUARANTEE,
            "commit_interval_ms": str(COMMIT_INTERVAL_MS),
            "cache_bytes": str(CACHE_BYTES),
            "threads": str(self.threads or 1),
            "job": "count_by_key",
            **topics,
        }
        records = growing_records(self.size.records)
        try:
            with peer_process(system, PROGRAM, arguments) as peer:
                self._sampled(self._feeder(topics, records, self.size.filled), peer)
                self._await(self.size.filled, run_name, topics["input_topic"], peer)
                samples = self._sampled(self._feeder(topics, records, None), peer)
                self._await(self.size.records, run_name, topics["input_topic"], peer)
                peer.stop()
            tally = outputs.OutputTally(outputs.decoder(system.output_format))
            outputs.read_outputs(self.bootstrap_servers, topics["output_topic"], tally)
            problems = tally.problems(growing_counts(self.size.records))
            if problems:
                raise WrongResultError(f"the result is wrong: {'; '.join(problems)}")
            return MemoryRun(samples=samples, found=flatness(samples, self.size.warm_up_s))
        finally:
            delete_run_topics(admin, run_name)

    def _feeder(
        self, topics: Mapping[str, str], records: Iterator[tuple[bytes, bytes]], filled: int | None
    ) -> SteadyFeeder:
        return SteadyFeeder(
            self.bootstrap_servers,
            topics["input_topic"],
            islice(records, filled),
            records_per_s=RECORDS_PER_S if filled is None else FILLED_PER_S,
        )

    def _sampled(self, feeder: SteadyFeeder, peer: PeerProcess) -> tuple[tuple[float, float], ...]:
        samples: list[tuple[float, float]] = []
        begin_s = time.monotonic()
        feeder.start()
        try:
            while feeder.is_alive():
                peer.check()
                feeder.check()
                at_s = time.monotonic() - begin_s
                samples.append((round(at_s, 1), round(peer.look().rss_bytes / 2**20, 1)))
                feeder.join(SAMPLE_S)
        finally:
            feeder.stop()
        return tuple(samples)

    def _await(self, records: int, group: str, topic: str, peer: PeerProcess) -> None:
        places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
        deadline = time.monotonic() + DRAIN_S
        with GroupProgress(self.bootstrap_servers, group) as progress:
            while (done := progress.committed(places)) < records:
                peer.check()
                if time.monotonic() > deadline:
                    raise RunFailedError(
                        f"it had committed {done} of {records} records {DRAIN_S:.0f} s after the last:"
                        " it did not keep up, so its memory is no result"
                    )
                time.sleep(SAMPLE_S)

    def _rows(self, name: str, run: MemoryRun) -> list[Row]:
        parameters: dict[str, Any] = {
            "commit_interval_ms": COMMIT_INTERVAL_MS,
            "cache_bytes": CACHE_BYTES,
            "records_per_s": RECORDS_PER_S,
            "seconds": self.size.seconds,
            "filled": self.size.filled,
            "warm_up_s": self.size.warm_up_s,
            "keys": (self.size.records + 1) // 2,
            "partitions": PARTITIONS,
            "slope_mib_per_minute": run.found.slope_mib_per_minute,
            "middle_mib": run.found.middle_mib,
            "flat": run.found.is_flat,
            "series": [list(sample) for sample in run.samples],
            "date": self.date,
            **({"threads": self.threads or 1} if SYSTEMS[name].threads else {}),
        }
        return make_rows(
            {"rss_mib_max": [run.found.largest_mib]},
            system=name,
            job="ten_minutes",
            guarantee=GUARANTEE,
            parameters=parameters,
        )


def run_text(found: Flatness) -> str:
    return (
        f"{found.largest_mib:,.0f} MiB at most, {found.middle_mib:,.0f} MiB in the middle,"
        f" {found.slope_mib_per_minute:+.1f} MiB a minute after the warm-up:"
        f" {'flat' if found.is_flat else 'it grows'}"
    )
