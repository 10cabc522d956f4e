"""Cost per record in the suite `throughput`, and the share of a plain client's rate (pure)."""

import statistics
from typing import Final

from benchmarks.report.figures import (
    CLIENT,
    CLIENTS,
    FOUR,
    ONE,
    QUIX,
    SETTING_HEADINGS,
    TWO,
    SystemFigures,
    figures_by_setting,
    rate_text,
    ratio,
    setting_cells,
)
from benchmarks.report.results import BASELINE, NONE, SuiteResult

#: Markers of the tables in a document.
LIMIT_MARK: Final = "throughput-limit"
PROCESSOR_MARK: Final = "throughput-processor"
WORKERS_MARK: Final = "throughput-workers"
_RATES: Final = {
    "1 worker": ONE,
    "2 workers": TWO,
    "by hand": "by-hand",
    "1 plain client": CLIENT,
    "2 plain clients": CLIENTS,
}
_SHARES: Final = {
    "1 worker ÷ 1 client": (ONE, CLIENT),
    "2 workers ÷ 1 client": (TWO, CLIENT),
    "2 workers ÷ 2 clients": (TWO, CLIENTS),
}
LIMIT_HEADINGS: Final = (*SETTING_HEADINGS, *_RATES, *_SHARES)
_SPENT: Final = {
    "Tidewheel, 1 worker": ONE,
    "2 workers": TWO,
    "Kafka Streams": BASELINE,
    "Quix Streams": QUIX,
    "by hand": "by-hand",
    "plain client": CLIENT,
}
PROCESSOR_HEADINGS: Final = (*SETTING_HEADINGS, *_SPENT)
_WORKERS: Final = {"1 worker": ONE, "2 workers": TWO, "4 workers": FOUR}
WORKERS_HEADINGS: Final = (*SETTING_HEADINGS, *_WORKERS, "2 workers ÷ 1", "4 workers ÷ 1")
#: Text columns of all tables.
LEFT: Final = frozenset(SETTING_HEADINGS)


def limit_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    return [
        (
            *setting_cells(figures[CLIENT].rate),
            *(rate_text(figures.get(system)) for system in _RATES.values()),
            *(_share(figures.get(ours), figures.get(theirs)) for ours, theirs in _SHARES.values()),
        )
        for figures in figures_by_setting(result)
        if CLIENT in figures and ONE in figures
    ]


def workers_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    return [
        (
            *setting_cells(one.rate),
            *(rate_text(figures.get(system)) for system in _WORKERS.values()),
            *(f"{ratio(figures[more], one):.2f}" for more in (TWO, FOUR)),
        )
        for figures in figures_by_setting(result)
        if {TWO, FOUR} <= figures.keys() and (one := figures.get(ONE)) is not None
    ]


def processor_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    return [
        (
            *setting_cells(figures[ONE].rate),
            *(_seconds(figures.get(system)) for system in _SPENT.values()),
        )
        for figures in figures_by_setting(result)
        if BASELINE in figures and ONE in figures
    ]


def _share(ours: SystemFigures | None, theirs: SystemFigures | None) -> str:
    return NONE if ours is None or theirs is None else f"{ratio(ours, theirs):.0%}"


def _seconds(figures: SystemFigures | None) -> str:
    spent: list[float] = figures.rate.parameters.get("cpu_s_per_million", []) if figures else []
    return f"{statistics.median(spent):.1f}" if spent else NONE
