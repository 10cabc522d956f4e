"""Plan of the suite `backfill`: jobs, systems, sizes, and the content of stores (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from benchmarks.jobs import plan
from benchmarks.jobs.checks import tally_for
from benchmarks.jobs.contents import input_blocks
from benchmarks.jobs.expected import expected, fingerprint, start_of
from benchmarks.topics.generator import InputSpec
from benchmarks.topics.outputs import Tally

#: Live workers, as in the suite `throughput`.
WORKERS: Final = "tidewheel-workers-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A backfill on some cores of this machine.

    Attributes:
        share: Divisor of the input's size.
    """

    cores: int
    share: int = 1

    @property
    def name(self) -> str:
        """Return its name in the result file.

        >>> Variant(cores=1).name, Variant(cores=2, share=10).name
        ('backfill-cores-1', 'backfill-cores-2-of-a-tenth')
        """
        return f"backfill-cores-{self.cores}" + ("-of-a-tenth" if self.share > 1 else "")


#: The input's tenth shows what does not grow with the input: fixed seconds, and memory.
TENTH: Final = Variant(cores=2, share=10)
VARIANTS: Final[Mapping[str, Variant]] = {
    variant.name: variant for variant in (Variant(cores=2), Variant(cores=1), TENTH)
}
SYSTEM_NAMES: Final = (WORKERS, *VARIANTS)

#: Passes of each job; every pass after the first follows a shuffle.
PASSES: Final[Mapping[str, int]] = {
    "count_by_key": 1,
    "tumbling_count": 1,
    "word_count": 2,
    "stream_table_join": 1,
}
JOBS: Final = tuple(PASSES)

#: Multiples of the size's records. Live workers write little for these jobs, so it takes a longer
#: history until the seconds that any backfill takes weigh little.
LENGTHS: Final[Mapping[str, int]] = {"tumbling_count": 3, "stream_table_join": 3}

#: Rows leave a store by segments. Each window of the job `tumbling_count` is one, and the last one
#: that is alive began just before the latest window.
KEPT_WINDOWS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Records of a job without a share or length, and rounds (`pairs`)."""

    records: int
    pairs: int


FULL: Final = Size(records=8_000_000, pairs=3)
QUICK: Final = Size(records=1_000_000, pairs=1)


def inputs_of(job: str, records: int) -> tuple[InputSpec, ...]:
    found = plan.JOBS[job]
    return found.inputs(int(records * found.record_share) * LENGTHS.get(job, 1))


def changelog_tally(job: str) -> Tally | None:
    """Return a tally for the changelog of the job's store.

    None for windows: the input's times are long past, so the broker may delete them at any moment.
    """
    if job == "tumbling_count":
        return None
    return tally_for("last_joined" if job == "stream_table_join" else "counts", "int64")


def rows_of(job: str, inputs: tuple[InputSpec, ...]) -> Mapping[bytes, int]:
    """Return the right content of the job's store: of windows, those that a restore keeps."""
    if job == "tumbling_count":
        counts = expected(job, inputs)
        starts = sorted({start_of(at) for at in counts})[-KEPT_WINDOWS:]
        return {at: count for at, count in counts.items() if start_of(at) in starts}
    if job != "stream_table_join":
        return expected(job, inputs)
    rows = chain.from_iterable(input_blocks(inputs[1]))
    return {key or b"": fingerprint(value) for key, value, _, _ in rows}
