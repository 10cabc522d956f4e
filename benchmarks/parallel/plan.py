"""Plan of the suite `parallel`: jobs with their inputs and systems (pure).

Every job has one partition and 10,000 keys. Its function reads the key's count before its work and
writes it after. Input sizes match the planned duration: per second, the records that `factor`
parallel calls can do, limited by the busiest key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.environment.systems import SYSTEMS, System
from benchmarks.topics.generator import InputSpec

FACTORS = (1, 4, 16, 64, 256)
KEYS = 10_000
ZIPF = 1.1
SYSTEM_NAMES = ("tidewheel", "kafka-streams", "quix")
#: About the rate per second of one Python process without waiting.
RECORDS_PER_S_MAX = 6_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        calls_per_s: Records per second of sequential calls.
        speeds_up: More concurrent calls can do more records.
        peers: The peers, with one thread per partition, run it too.
        zipf: Exponents of its inputs' keys; 0 is uniform.
        zipf_factors: Factors for keys that are not uniform.
        records: Fixed input size; None: it depends on the factor.
        records_per_s_max: Upper limit of the expected rate: more input would only take longer.
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
    records_per_s_max: int = RECORDS_PER_S_MAX


JOBS: Mapping[str, Job] = {
    job.name: job
    for job in (
        Job(name="blocking_10ms", factors=FACTORS, calls_per_s=100, peers=True, zipf=(0.0, ZIPF)),
        Job(name="awaitable_10ms", factors=FACTORS, calls_per_s=100),
        Job(
            name="awaitable_mapper_10ms",
            factors=FACTORS,
            calls_per_s=100,
            records_per_s_max=100 * FACTORS[-1],
        ),
        # The benchmark in the README of Confluent's Parallel Consumer: 10,000 records, 0 to 5 ms
        # each.
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


KNOWN_FACTORS = tuple(sorted({factor for job in JOBS.values() for factor in job.factors}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Planned seconds of a run without losses, and rounds (`pairs`)."""

    seconds: float
    pairs: int


FULL = Size(seconds=20.0, pairs=3)
QUICK = Size(seconds=5.0, pairs=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    system: System
    factor: int
    source: InputSpec

    @property
    def name(self) -> str:
        """Return its name in the result file: each factor of ours is a system."""
        if self.system.name == "tidewheel":
            return f"tidewheel-factor-{self.factor}"
        return self.system.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    job: Job
    guarantee: str
    zipf: float
    variants: tuple[Variant, ...]


def expected_records_per_s(job: Job, factor: int, source: InputSpec) -> float:
    """Return the rate of a run without losses.

    >>> expected_records_per_s(JOBS["blocking_10ms"], 16, InputSpec(records=1, keys=10_000))
    1600
    """
    if not job.speeds_up:
        return job.calls_per_s
    at_once = min(factor, 1 / source.largest_share)
    return min(job.calls_per_s * at_once, max(job.records_per_s_max, job.calls_per_s))


def settings(
    size: Size,
    *,
    jobs: tuple[str, ...] = tuple(JOBS),
    systems: tuple[str, ...] = SYSTEM_NAMES,
    guarantees: tuple[str, ...] = ("exactly_once",),
    factors: frozenset[int] = frozenset(KNOWN_FACTORS),
) -> Iterator[Setting]:
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
