"""Job `growth`: restore time by length of the changelog, and by size of the state (pure).

Each point has its own changelog, which all systems restore in turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.report.results import NONE, Row, SuiteResult

JOB: Final = "growth"
LENGTH: Final = "length"
STATE: Final = "state"

HEADINGS: Final = ("records", "keys", "system", "seconds", "records/s", "runs", "Spark's start")
LEFT: Final = frozenset(HEADINGS[2:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A changelog: records, keys and series."""

    records: int
    keys: int
    varied: tuple[str, ...]


def points(records: int, keys: int) -> tuple[Point, ...]:
    """Return three lengths with one number of keys, and three numbers of keys with one length.

    One point is in both series.

    >>> [(each.records, each.keys, each.varied) for each in points(8, 4)]
    [(2, 2, ('length',)), (4, 1, ('state',)), (4, 2, ('length', 'state')), (4, 4, ('state',)), (8, 2, ('length',))]
    """
    lengths = {(records // part, keys // 2) for part in (4, 2, 1)}
    states = {(records // 2, keys // part) for part in (4, 2, 1)}
    return tuple(
        Point(
            records=place[0],
            keys=place[1],
            varied=tuple(
                name for name, series in ((LENGTH, lengths), (STATE, states)) if place in series
            ),
        )
        for place in sorted(lengths | states)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A method of restoring.

    Attributes:
        name: The system in the results.
        system: The system whose program runs.
        how: The method, for tables.
        extra: More arguments of the program.
        leaves_snapshot: Its run leaves a snapshot.
        uses_snapshot: Its run begins with that snapshot.
    """

    name: str
    system: str
    how: str
    extra: Mapping[str, str]
    leaves_snapshot: bool = False
    uses_snapshot: bool = False


#: In run order: Spark on two cores makes the snapshot, and the next one uses it.
WAYS: Final = (
    Way(name="tidewheel", system="tidewheel", how="changelog", extra={}),
    Way(
        name="tidewheel-spark-2",
        system="tidewheel",
        how="spark, 2 cores",
        extra={"spark": "yes", "master": "local[2]"},
        leaves_snapshot=True,
    ),
    Way(
        name="tidewheel-snapshot",
        system="tidewheel",
        how="snapshot",
        extra={},
        uses_snapshot=True,
    ),
    Way(
        name="tidewheel-spark-1",
        system="tidewheel",
        how="spark, 1 core",
        extra={"spark": "yes", "master": "local[1]"},
    ),
    Way(name="kafka-streams", system="kafka-streams", how="replay", extra={}),
)


def growth_rows(result: SuiteResult, metric: str = "seconds") -> list[Row]:
    return [row for row in result.rows if row.job == JOB and row.metric == metric]


def growth_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    return [
        (
            f"{row.parameters['records']:,}",
            f"{row.parameters['keys']:,}",
            f"{row.system} ({row.parameters['how']})",
            f"{row.value:.1f}",
            f"{row.parameters['records'] / row.value:,.0f}",
            str(row.runs),
            _start(row),
        )
        for row in growth_rows(result)
    ]


def _start(row: Row) -> str:
    starts: list[float] = row.parameters.get("spark_start_s", [])
    return f"{median(starts):.1f} s" if starts else NONE
