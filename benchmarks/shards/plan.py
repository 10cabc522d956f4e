"""Plan of the suite `shards`: jobs, variants and input sizes, and the progress of shards (pure).

Every job has one partition and 10,000 keys. Input sizes match the planned duration at the rate that
is expected of the variant.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.progress import CommitRecord
from benchmarks.topics.generator import InputSpec, direct_counts
from tidewheel.rebalance.model import Shard
from tidewheel.tasks.key_ranges.key_ranges import shard_of

KEYS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Workers and shards of one partition; worker n runs every shard whose number modulo this is n."""

    workers: int
    shards: int

    @property
    def name(self) -> str:
        """Return its name in the result file.

        >>> Variant(workers=2, shards=4).name
        'tidewheel-workers-2-shards-4'
        """
        return f"tidewheel-workers-{self.workers}-shards-{self.shards}"


WHOLE = Variant(workers=1, shards=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        rounds: Rounds of arithmetic per record; 0: a count by key without any.
        records_per_s: Expected rate of one worker.
        shared: The variant that is compared with one whole task.
    """

    name: str
    rounds: int
    records_per_s: int
    shared: Variant = Variant(workers=2, shards=2)

    @property
    def variants(self) -> tuple[Variant, Variant]:
        return (WHOLE, self.shared)


JOBS: Mapping[str, Job] = {
    job.name: job
    for job in (
        Job(name="compute_1ms", rounds=15_000, records_per_s=900),
        Job(name="compute_100us", rounds=1_500, records_per_s=8_500),
        Job(name="compute_10us", rounds=150, records_per_s=45_000),
        # One worker with both shards: the price of shards where they gain nothing.
        Job(
            name="count_by_key",
            rounds=0,
            records_per_s=80_000,
            shared=Variant(workers=1, shards=2),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Planned seconds of a run, and rounds (`pairs`)."""

    seconds: float
    pairs: int


FULL = Size(seconds=20.0, pairs=5)
QUICK = Size(seconds=5.0, pairs=1)


def source_of(job: Job, variant: Variant, size: Size) -> InputSpec:
    records = int(job.records_per_s * variant.workers * size.seconds)
    return InputSpec(records=records, keys=KEYS, partitions=1)


def shard_records(source: InputSpec, shards: int) -> tuple[int, ...]:
    """Return the number of input records of each shard.

    >>> shard_records(InputSpec(records=1_000, keys=10), 1)
    (1000,)
    """
    counts: Counter[Shard] = Counter()
    for key, count in direct_counts(source).items():
        counts[shard_of(key, shards)] += count
    return tuple(counts[shard] for shard in Shard.all_of(shards))


def done_records(offsets: Iterable[int], records: Sequence[int]) -> int:
    """Return the records that shards have done at their offsets, with `records` of each in the input.

    Each shard has read all records before its offset, and processed its share of them.

    >>> done_records([100, 50], [60, 40])
    80
    """
    total = sum(records)
    return sum(offset * share // total for offset, share in zip(offsets, records, strict=True))


def shard_commits(
    commits: Sequence[Sequence[CommitRecord]], records: Sequence[int]
) -> Iterator[CommitRecord]:
    """Yield the commits of all shards as if each had a partition with its records only."""
    total = sum(records)
    for number, (of_shard, share) in enumerate(zip(commits, records, strict=True)):
        for commit in of_shard:
            yield replace(commit, partition=number, offset=commit.offset * share // total)


@dataclass(frozen=True, slots=True)
class Sample:
    """Records done at a time, and the processor time that each worker and the broker had used (s).

    `broker_s` is None if the broker was not started here.
    """

    records: int
    workers_s: tuple[float, ...]
    broker_s: float | None


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Microseconds per record: all workers together, the busiest of them, and the broker."""

    workers_us: float
    busiest_us: float
    broker_us: float | None


def processor_time(samples: Sequence[Sample], untimed_records: int) -> ProcessorTime:
    """Return the processor time between the warm-up and the last sample, without the start.

    Raises:
        ValueError: No two samples after the warm-up differ.
    """
    warm = [sample for sample in samples if sample.records >= untimed_records]
    if not warm or warm[-1].records == warm[0].records:
        raise ValueError(
            f"{len(warm)} samples after the first {untimed_records} records show no progress: use more records"
        )
    first, last = warm[0], warm[-1]
    records = last.records - first.records
    used_s = [after - before for before, after in zip(first.workers_s, last.workers_s, strict=True)]
    broker_us = (
        None
        if first.broker_s is None or last.broker_s is None
        else (last.broker_s - first.broker_s) / records * 1e6
    )
    return ProcessorTime(sum(used_s) / records * 1e6, max(used_s) / records * 1e6, broker_us)
