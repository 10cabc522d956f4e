"""What the suite `parallel` runs: its jobs, and for each the inputs and the systems that take turns; pure.

Every job has one partition, 10,000 keys and a count for each key that its function reads before it does its work and
writes afterwards. An input is as long as a run at that factor should take: a second holds as many records as `factor`
calls, one after the other each, can do, but never more than the busiest key allows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.generator import InputSpec
from benchmarks.systems import SYSTEMS, System

FACTORS = (1, 4, 16, 64, 256)
KEYS = 10_000
ZIPF = 1.1
SYSTEM_NAMES = ("tidewheel", "kafka-streams", "quix")
#: No run is asked for more a second: this is about what one Python process does when nothing waits.
RECORDS_PER_S_MAX = 6_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        name: As it stands in the result file; the programs know it.
        factors: The factors it runs at.
        calls_per_s: How many records a second one call after the other can do.
        speeds_up: Whether more calls at a time can do more records.
        peers: Whether the peers, which have one thread for one partition, run it too.
        zipf: The exponents of its inputs' keys; 0 is uniform.
        zipf_factors: The factors at which it runs with keys that are not uniform.
        records: The input's size where it does not depend on the factor; else None.
        keys: How many keys.
        value_bytes: The size of each value.
    """

    name: str
    factors: tuple[int, ...]
    calls_per_s: float
    speeds_up: bool = True
    peers: bool = False
    zipf: tuple[float, ...] = (0.0,)
    zipf_factors: tuple[int, ...] = (16, 64)
    records: int | None = None
    keys: int = KEYS
    value_bytes: int = 90


JOBS: Mapping[str, Job] = {
    job.name: job
    for job in (
        Job(name="blocking_10ms", factors=FACTORS, calls_per_s=100, peers=True, zipf=(0.0, ZIPF)),
        Job(name="awaitable_10ms", factors=FACTORS, calls_per_s=100),
        # What the README of Confluent's Parallel Consumer measures: 10,000 records, 0 to 5 ms each.
        Job(name="sleep_0_5ms", factors=(1, 16, 64), calls_per_s=400, peers=True, records=10_000),
        Job(name="cpu_bound", factors=(1, 4, 16), calls_per_s=5_000, speeds_up=False),
        # State of 150 MB against a block cache of 8 MiB.
        Job(
            name="cold_state",
            factors=(1, 2, 4),
            calls_per_s=30_000,
            speeds_up=False,
            keys=300_000,
            value_bytes=500,
        ),
    )
}


#: Every factor that any job runs at.
KNOWN_FACTORS = tuple(sorted({factor for job in JOBS.values() for factor in job.factors}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run.

    Attributes:
        seconds: How long a run should take if nothing is lost.
        pairs: How many rounds.
    """

    seconds: float
    pairs: int


FULL = Size(seconds=20.0, pairs=3)
QUICK = Size(seconds=5.0, pairs=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One system at one factor, with its input."""

    system: System
    factor: int
    source: InputSpec

    @property
    def name(self) -> str:
        """Return its name in the result file: our factors are systems of their own."""
        if self.system.name == "tidewheel":
            return f"tidewheel-factor-{self.factor}"
        return self.system.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, and the variants that run in it in turns."""

    job: Job
    guarantee: str
    zipf: float
    variants: tuple[Variant, ...]


def expected_records_per_s(job: Job, factor: int, source: InputSpec) -> float:
    """Return the rate of a run that loses nothing.

    >>> expected_records_per_s(JOBS["blocking_10ms"], 16, InputSpec(records=1, keys=10_000))
    1600.0
    """
    if not job.speeds_up:
        return job.calls_per_s
    at_once = min(factor, 1 / source.largest_share)
    return min(job.calls_per_s * at_once, max(RECORDS_PER_S_MAX, job.calls_per_s))


def settings(
    size: Size,
    *,
    jobs: tuple[str, ...] = tuple(JOBS),
    systems: tuple[str, ...] = SYSTEM_NAMES,
    guarantees: tuple[str, ...] = ("exactly_once",),
    factors: frozenset[int] = frozenset(KNOWN_FACTORS),
) -> Iterator[Setting]:
    """Yield what is to be run, in order; settings in which nothing would run are left out."""
    for name in jobs:
        job = JOBS[name]
        for guarantee in guarantees:
            for zipf in job.zipf:
                variants = tuple(_variants(job, zipf, size, systems, factors))
                if variants:
                    yield Setting(job=job, guarantee=guarantee, zipf=zipf, variants=variants)


def _variants(
    job: Job, zipf: float, size: Size, systems: tuple[str, ...], factors: frozenset[int]
) -> Iterator[Variant]:
    for name in systems:
        system = SYSTEMS[name]
        if name != "tidewheel":
            if job.peers and not zipf:
                yield Variant(system=system, factor=1, source=_source(job, 1, zipf, size))
            continue
        for factor in job.zipf_factors if zipf else job.factors:
            if factor in factors:
                source = _source(job, factor, zipf, size)
                yield Variant(system=system, factor=factor, source=source)


def _source(job: Job, factor: int, zipf: float, size: Size) -> InputSpec:
    source = InputSpec(
        records=job.records or 1,
        keys=job.keys,
        value_bytes=job.value_bytes,
        partitions=1,
        zipf=zipf,
    )
    if job.records is not None:
        return source
    return replace(source, records=int(expected_records_per_s(job, factor, source) * size.seconds))
