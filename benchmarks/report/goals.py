"""Goals of the suite `throughput` against kept rows (pure).

A goal may cover several settings; the lowest measured ratio counts. With a cache, and against a
plain client, the ratio ignores the number of outputs, as the goals demand.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from benchmarks.report.figures import (
    CLIENT,
    CLIENTS,
    ONE,
    QUIX,
    TWO,
    SystemFigures,
    comparable,
    figures_by_setting,
    ratio,
    setting_cells,
)
from benchmarks.report.results import BASELINE, SuiteResult

MARK: Final = "throughput-goals"
HEADINGS: Final = (
    "job",
    "cache",
    "measured",
    "beside",
    "asked",
    "1 worker",
    "2 workers",
    "reached with",
)
LEFT: Final = frozenset({*HEADINGS[:4], HEADINGS[-1]})
_SYSTEMS: Final = (ONE, TWO)
_KAFKA_STREAMS: Final = (BASELINE, BASELINE)
_QUIX: Final = (QUIX, QUIX)
#: As many plain clients as workers.
_CLIENTS: Final = (CLIENT, CLIENTS)
_NAMES: Final = {
    BASELINE: "Kafka Streams",
    QUIX: "Quix Streams",
    CLIENT: "as many plain clients",
}
_BOTH: Final = ("at least once", "exactly once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal for the speed of jobs, with settings named as in tables.

    Attributes:
        beside: Baselines of one worker and of two.
        least: Required ratio.
        wished: Desired ratio above the required one.
    """

    jobs: tuple[str, ...]
    least: float
    guarantees: tuple[str, ...] = _BOTH
    intervals: tuple[str, ...] = ("100 ms", "1 s")
    cache: str = "none"
    beside: tuple[str, str] = _KAFKA_STREAMS
    wished: float | None = None

    @property
    def bare(self) -> bool:
        return self.cache != "none" or self.shares

    @property
    def shares(self) -> bool:
        return self.beside == _CLIENTS


_COUNT: Final = ("count_by_key",)
_LEVEL: Final = ("stream_stream_join", "foreign_key_join", "session_count", "word_count")
GOALS: Final = (
    Goal(jobs=_COUNT, guarantees=("at least once",), cache="all keys", least=2.0),
    Goal(jobs=_COUNT, guarantees=("exactly once",), cache="all keys", least=3.0),
    Goal(jobs=_COUNT, least=1.5),
    Goal(jobs=("tumbling_count",), least=1.5),
    Goal(jobs=("stream_table_join",), least=1.5),
    Goal(jobs=("stateless_json",), least=1.5),
    *(Goal(jobs=(job,), least=1.0, wished=1.5) for job in _LEVEL),
    Goal(jobs=_COUNT, intervals=("1 s",), cache="all keys", beside=_QUIX, least=10.0),
    *(
        Goal(jobs=(job,), beside=_QUIX, least=8.0)
        for job in (*_COUNT, "stateless_json", "tumbling_count", "stream_table_join", *_LEVEL)
    ),
    Goal(jobs=("stateless_json",), beside=_CLIENTS, least=0.5),
    Goal(jobs=_COUNT, intervals=("1 s",), beside=_CLIENTS, least=0.35),
    Goal(jobs=_COUNT, intervals=("100 ms",), beside=_CLIENTS, least=0.35),
)


def goal_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    settings = list(figures_by_setting(result))
    return [line for goal in GOALS if (line := _line(goal, settings)) is not None]


def _line(goal: Goal, settings: list[dict[str, SystemFigures]]) -> tuple[str, ...] | None:
    measured = [figures for figures in settings if _counts(goal, figures)]
    if not measured:
        return None
    least = [
        min(ratio(figures[system], figures[beside]) for figures in measured)
        for system, beside in zip(_SYSTEMS, goal.beside, strict=True)
    ]
    reached = [
        name
        for name, value in zip(("1 worker", "2 workers"), least, strict=True)
        if value >= goal.least
    ]
    cells = [setting_cells(figures[_SYSTEMS[0]].rate) for figures in measured]
    asked = f"{goal.least:.0%}" if goal.shares else f"{goal.least:g}"
    return (
        ", ".join(goal.jobs),
        goal.cache,
        f"{_each(guarantee for _, guarantee, _, _ in cells)}; {_each(interval for _, _, interval, _ in cells)}",
        _NAMES[goal.beside[0]],
        asked if goal.wished is None else f"{asked} (wished: {goal.wished:g})",
        *(_rounded_down(value, shares=goal.shares) for value in least),
        " and ".join(reached) if reached else "neither",
    )


def _counts(goal: Goal, figures: dict[str, SystemFigures]) -> bool:
    if not {*_SYSTEMS, *goal.beside} <= figures.keys():
        return False
    ours, theirs = figures[_SYSTEMS[0]], figures[goal.beside[0]]
    job, guarantee, interval, cache = setting_cells(ours.rate)
    return (
        job in goal.jobs
        and guarantee in goal.guarantees
        and interval in goal.intervals
        and cache == goal.cache
        and (goal.bare or comparable(ours.outputs_per_record, theirs.outputs_per_record))
    )


def _each(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))


def _rounded_down(value: float, *, shares: bool) -> str:
    """Return a ratio, rounded down: rounding must not reach the goal."""
    floor = math.floor(value * 100 + 1e-9) / 100
    return f"{floor:.0%}" if shares else f"{floor:.2f}"
