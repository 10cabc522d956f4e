"""What was asked of the suite `throughput`, and what the kept rows have. Pure: rows in, lines out.

A goal may name several settings; what counts is the one with the least ratio. Where a cache holds outputs back the
ratio is that of the bare rates, whatever was written, because so it was asked.
"""

from dataclasses import dataclass
from typing import Final

from benchmarks.figures import SystemFigures, figures_by_setting, ratio, setting_cells
from benchmarks.results import BASELINE, NONE, SuiteResult

MARK: Final = "throughput-goals"
HEADINGS: Final = ("job", "settings", "beside", "asked", "1 worker", "2 workers", "reached with")
LEFT: Final = frozenset({*HEADINGS[:3], "reached with"})
_SYSTEMS: Final = ("tidewheel", "tidewheel-workers-2")
_KAFKA_STREAMS: Final = (BASELINE, BASELINE)
_QUIX: Final = ("quix", "quix")
#: As many plain clients as workers.
_CLIENTS: Final = ("raw-client", "raw-client-2")
_NAMES: Final = {
    BASELINE: "Kafka Streams",
    "quix": "Quix Streams",
    "raw-client": "the plain client",
}
_BOTH: Final = ("at least once", "exactly once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How fast a job should be in some settings.

    Attributes:
        jobs: Its jobs.
        settings: What they are called.
        guarantees: Their guarantees, as tables have them.
        intervals: Their commit intervals, as tables have them.
        cache: Their cache, as tables have it.
        beside: What one worker is held against, and what two are.
        least: The least ratio.
    """

    jobs: tuple[str, ...]
    settings: str
    least: float
    guarantees: tuple[str, ...] = _BOTH
    intervals: tuple[str, ...] = ("100 ms", "1 s")
    cache: str = "none"
    beside: tuple[str, str] = _KAFKA_STREAMS


_COUNT: Final = ("count_by_key",)
_TWO_STREAMS: Final = ("stream_stream_join", "foreign_key_join", "session_count", "word_count")
GOALS: Final = (
    Goal(
        jobs=_COUNT,
        settings="at least once, a cache for all keys",
        guarantees=("at least once",),
        cache="all keys",
        least=2.0,
    ),
    Goal(
        jobs=_COUNT,
        settings="exactly once, a cache for all keys",
        guarantees=("exactly once",),
        cache="all keys",
        least=3.0,
    ),
    Goal(jobs=_COUNT, settings="no cache", least=1.5),
    Goal(jobs=("tumbling_count",), settings="no cache", least=1.5),
    Goal(jobs=("stream_table_join",), settings="no cache", least=1.5),
    Goal(jobs=("stateless_json",), settings="no cache", least=1.5),
    *(Goal(jobs=(job,), settings="no cache", least=1.0) for job in _TWO_STREAMS),
    Goal(
        jobs=_COUNT,
        settings="a cache for all keys, 1 s",
        intervals=("1 s",),
        cache="all keys",
        beside=_QUIX,
        least=10.0,
    ),
    Goal(
        jobs=("stateless_json", "tumbling_count", "stream_table_join", *_TWO_STREAMS),
        settings="no cache",
        beside=_QUIX,
        least=8.0,
    ),
    Goal(jobs=("stateless_json",), settings="no cache", beside=_CLIENTS, least=0.5),
    Goal(jobs=_COUNT, settings="no cache, 1 s", intervals=("1 s",), beside=_CLIENTS, least=0.35),
    Goal(
        jobs=_COUNT, settings="no cache, 100 ms", intervals=("100 ms",), beside=_CLIENTS, least=0.35
    ),
)


def goal_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return a line for each goal that was measured, a text for each of `HEADINGS`."""
    settings = list(figures_by_setting(result))
    return [line for goal in GOALS if (line := _line(goal, settings)) is not None]


def _line(goal: Goal, settings: list[dict[str, SystemFigures]]) -> tuple[str, ...] | None:
    found = [
        [
            ratio(figures[system], figures[beside])
            for figures in settings
            if system in figures
            and beside in figures
            and _is_of(goal, setting_cells(figures[system].rate))
        ]
        for system, beside in zip(_SYSTEMS, goal.beside, strict=True)
    ]
    least = [min(ratios, default=None) for ratios in found]
    if not any(found):
        return None
    reached = [
        name
        for name, value in zip(("1 worker", "2 workers"), least, strict=True)
        if value is not None and value >= goal.least
    ]
    shares = goal.beside == _CLIENTS
    return (
        "all others" if len(goal.jobs) > 1 else goal.jobs[0],
        goal.settings,
        _NAMES[goal.beside[0]],
        f"{goal.least:.0%}" if shares else f"{goal.least:g}",
        *(_text(value, shares=shares) for value in least),
        " and ".join(reached) if reached else "neither",
    )


def _is_of(goal: Goal, cells: tuple[str, ...]) -> bool:
    job, guarantee, interval, cache = cells
    return (
        job in goal.jobs
        and guarantee in goal.guarantees
        and interval in goal.intervals
        and cache == goal.cache
    )


def _text(value: float | None, *, shares: bool) -> str:
    if value is None:
        return NONE
    return f"{value:.0%}" if shares else f"{value:.2f}"
