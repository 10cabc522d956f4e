"""Suites by name, with their jobs and options."""

from dataclasses import dataclass

from benchmarks import throughput
from benchmarks.backfill import plan as backfill
from benchmarks.coordinator import suite as coordinator
from benchmarks.handoff import suite as handoff
from benchmarks.latency import suite as latency
from benchmarks.memory import suite as memory
from benchmarks.parallel import plan as parallel
from benchmarks.restore import suite as restore
from benchmarks.shards import plan as shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite.

    Attributes:
        summary: The question it answers.
        later_jobs: Planned jobs that are not built yet.
        options: Its options besides `COMMON_OPTIONS`.
    """

    name: str
    summary: str
    jobs: tuple[str, ...] = ()
    later_jobs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def takes(self) -> tuple[str, ...]:
        return COMMON_OPTIONS + self.options


#: Options of every suite, even with one job or one system.
COMMON_OPTIONS = ("--quick", "--jobs", "--systems", "--pairs", "--json", "--keep")

_SUITES = (
    Suite(
        name="throughput",
        summary="records a second, each guarantee, commit interval and cache",
        jobs=throughput.JOBS,
        options=(
            "--guarantees",
            "--commit-intervals",
            "--caches",
            "--threads",
            "--records",
            "--bootstrap-servers",
        ),
    ),
    Suite(
        name="latency",
        summary="from input to committed output at 10,000 records a second",
        jobs=latency.JOBS,
        options=("--guarantees", "--caches", "--threads", "--bootstrap-servers"),
    ),
    Suite(
        name="parallel",
        summary="one partition, parallelising factors 1 to 256",
        jobs=tuple(parallel.JOBS),
        options=("--guarantees", "--factors", "--bootstrap-servers"),
    ),
    Suite(
        name="shards",
        summary="one partition, one worker against two with a shard each",
        jobs=tuple(shards.JOBS),
        options=("--bootstrap-servers",),
    ),
    Suite(
        name="backfill",
        summary="the state of a history, by Spark beside two live workers",
        jobs=backfill.JOBS,
        options=("--records", "--bootstrap-servers"),
    ),
    Suite(
        name="handoff",
        summary="how long records wait while tasks move",
        jobs=handoff.JOBS,
        options=("--guarantees", "--records", "--logs", "--bootstrap-servers"),
    ),
    Suite(
        name="restore",
        summary="how long it takes to bring state back",
        jobs=restore.JOBS,
        options=("--records", "--bootstrap-servers"),
    ),
    Suite(
        name="memory",
        summary="how memory develops over ten minutes",
        jobs=memory.JOBS,
        options=("--threads", "--bootstrap-servers"),
    ),
    Suite(
        name="coordinator",
        summary="the cost of leading a group, up to 200 members and 1,000 tasks",
        jobs=coordinator.JOBS,
    ),
)
SUITES = {suite.name: suite for suite in _SUITES}
