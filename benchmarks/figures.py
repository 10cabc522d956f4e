"""What systems did in the settings of the suite `throughput`, and which of them may be compared. Pure: rows in, figures out.

A ratio is only told between systems that wrote about as many outputs: one that writes fewer has had less to do.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from operator import truediv
from typing import Any, Final

from benchmarks.jobs import plan
from benchmarks.results import COMMON_INTERVALS_MS, NONE, Row, SuiteResult

OUTPUTS_TOLERANCE: Final = 0.10
DIFFER: Final = "outputs differ"
#: What `setting_cells` are, as tables have them.
SETTING_HEADINGS: Final = ("job", "guarantee", "commit every", "cache")
#: Systems that several tables name: one, two and four workers, Quix Streams, and as many plain clients as workers.
ONE: Final = "tidewheel"
TWO: Final = "tidewheel-workers-2"
FOUR: Final = "tidewheel-workers-4"
QUIX: Final = "quix"
CLIENT: Final = "raw-client"
CLIENTS: Final = "raw-client-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFigures:
    """What one system did in one setting."""

    rate: Row
    outputs: Row | None
    memory: Row | None

    @property
    def outputs_per_record(self) -> float | None:
        """How many outputs there were for each record, if that was counted."""
        records = self.rate.parameters.get("records")
        return self.outputs.value / records if self.outputs and records else None


def figures_by_setting(result: SuiteResult) -> Iterator[dict[str, SystemFigures]]:
    """Yield the figures of each setting's systems by their names.

    Settings are in a fixed order, whichever was run last; systems in the order of their turns.
    """
    settings: dict[tuple[Any, ...], dict[str, dict[str, Row]]] = {}
    for row in result.rows:
        settings.setdefault(row.setting, {}).setdefault(row.system, {})[row.metric] = row
    for _, systems in sorted(settings.items(), key=lambda item: _order(item[0])):
        figures = {
            system: SystemFigures(
                rate=metrics["records_per_s"],
                outputs=metrics.get("outputs"),
                memory=metrics.get("rss_mib_max"),
            )
            for system, metrics in systems.items()
            if "records_per_s" in metrics
        }
        if figures:
            yield figures


def _order(setting: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what settings are sorted by: texts and numbers as they are, what is absent first."""
    return tuple((part is not None, part) for part in setting)


def comparable(first: float | None, second: float | None) -> bool:
    """Return whether two systems wrote about as much: then their rates may be compared."""
    if first is None or second is None:
        return False
    larger = max(first, second)
    return larger == 0 or abs(first - second) / larger <= OUTPUTS_TOLERANCE


def ratio(figures: SystemFigures, baseline: SystemFigures) -> float:
    """Return how many times as fast as the baseline a system was."""
    return row_ratio(figures.rate, baseline.rate)


def row_ratio(row: Row, baseline: Row) -> float:
    """Return a figure as a multiple of the baseline's.

    The median of the rounds' ratios, because what slows a round down slows down all its systems; where they have not the
    same rounds, the ratio of the medians.
    """
    ours: list[float] = row.parameters.get("values", [])
    theirs: list[float] = baseline.parameters.get("values", [])
    if len(ours) > 0 and row.rounds == baseline.rounds and all(theirs):
        ratios: list[float] = list(map(truediv, ours, theirs))
        return statistics.median(ratios)
    return row.value / baseline.value


def rate_text(figures: SystemFigures | None) -> str:
    """Return a system's records a second, or that there is no such figure."""
    return NONE if figures is None else f"{figures.rate.value:,.0f}"


def ratio_text(figures: SystemFigures, baseline: SystemFigures | None) -> str:
    """Return how many times as fast as the baseline a system was, or why that is not said."""
    if baseline is None or baseline.rate.value == 0:
        return NONE
    if baseline is figures:
        return "1"
    if not comparable(figures.outputs_per_record, baseline.outputs_per_record):
        return DIFFER
    return f"{ratio(figures, baseline):.2f}"


def system_text(rate: Row) -> str:
    """Return a system's name, with its number of threads if it had a choice."""
    threads = rate.parameters.get("threads")
    return rate.system + (f" ({threads} thread{'s' if threads > 1 else ''})" if threads else "")


def setting_cells(rate: Row) -> tuple[str, ...]:
    """Return what a row's setting is called, a text for each of `SETTING_HEADINGS`."""
    parameters = rate.parameters
    return (
        rate.job,
        (rate.guarantee or NONE).replace("_", " "),
        _interval(parameters.get("commit_interval_ms")),
        _cache(parameters.get("cache_bytes")),
    )


def _interval(interval_ms: int | None) -> str:
    if interval_ms is None:
        return NONE
    text = f"{interval_ms // 1000} s" if interval_ms % 1000 == 0 else f"{interval_ms} ms"
    return text if interval_ms in COMMON_INTERVALS_MS else f"{text} (own default)"


def _cache(cache_bytes: int | None) -> str:
    return NONE if cache_bytes is None else plan.cache_text(cache_bytes)
