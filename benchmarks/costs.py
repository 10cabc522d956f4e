"""What a record costs in the suite `throughput`, and how near to a plain client it comes. Pure: rows in, lines out."""

import statistics
from typing import Final

from benchmarks.figures import SystemFigures, figures_by_setting, rate_text, ratio, setting_cells
from benchmarks.results import BASELINE, NONE, SuiteResult

#: What the marks of the tables in a document are called.
LIMIT_MARK: Final = "throughput-limit"
PROCESSOR_MARK: Final = "throughput-processor"
WORKERS_MARK: Final = "throughput-workers"
_SETTING: Final = ("job", "guarantee", "commit every", "cache")
_ONE: Final = "tidewheel"
_TWO: Final = "tidewheel-workers-2"
_FOUR: Final = "tidewheel-workers-4"
_CLIENT: Final = "raw-client"
_CLIENTS: Final = "raw-client-2"
_RATES: Final = {
    "1 worker": _ONE,
    "2 workers": _TWO,
    "by hand": "by-hand",
    "1 plain client": _CLIENT,
    "2 plain clients": _CLIENTS,
}
_SHARES: Final = {
    "1 worker ÷ 1 client": (_ONE, _CLIENT),
    "2 workers ÷ 1 client": (_TWO, _CLIENT),
    "2 workers ÷ 2 clients": (_TWO, _CLIENTS),
}
LIMIT_HEADINGS: Final = (*_SETTING, *_RATES, *_SHARES)
_SPENT: Final = {
    "Tidewheel, 1 worker": _ONE,
    "2 workers": _TWO,
    "Kafka Streams": BASELINE,
    "Quix Streams": "quix",
    "by hand": "by-hand",
    "plain client": _CLIENT,
}
PROCESSOR_HEADINGS: Final = (*_SETTING, *_SPENT)
_WORKERS: Final = {"1 worker": _ONE, "2 workers": _TWO, "4 workers": _FOUR}
WORKERS_HEADINGS: Final = (*_SETTING, *_WORKERS, "2 workers ÷ 1", "4 workers ÷ 1")
#: The headings of columns with texts, in all.
LEFT: Final = frozenset(_SETTING)


def limit_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return a line for each setting in which a plain client ran beside us, a text for each of `LIMIT_HEADINGS`."""
    return [
        (
            *setting_cells(figures[_CLIENT].rate),
            *(rate_text(figures.get(system)) for system in _RATES.values()),
            *(_share(figures.get(ours), figures.get(theirs)) for ours, theirs in _SHARES.values()),
        )
        for figures in figures_by_setting(result)
        if _CLIENT in figures and _ONE in figures
    ]


def workers_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return a line for each setting that four workers had, too, a text for each of `WORKERS_HEADINGS`."""
    return [
        (
            *setting_cells(one.rate),
            *(rate_text(figures.get(system)) for system in _WORKERS.values()),
            *(f"{ratio(figures[more], one):.2f}" for more in (_TWO, _FOUR)),
        )
        for figures in figures_by_setting(result)
        if {_TWO, _FOUR} <= figures.keys() and (one := figures.get(_ONE)) is not None
    ]


def processor_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return a line for each setting in which Kafka Streams ran beside us, a text for each of `PROCESSOR_HEADINGS`."""
    return [
        (
            *setting_cells(figures[_ONE].rate),
            *(_seconds(figures.get(system)) for system in _SPENT.values()),
        )
        for figures in figures_by_setting(result)
        if BASELINE in figures and _ONE in figures
    ]


def _share(ours: SystemFigures | None, theirs: SystemFigures | None) -> str:
    return NONE if ours is None or theirs is None else f"{ratio(ours, theirs):.0%}"


def _seconds(figures: SystemFigures | None) -> str:
    spent: list[float] = figures.rate.parameters.get("cpu_s_per_million", []) if figures else []
    return f"{statistics.median(spent):.1f}" if spent else NONE
