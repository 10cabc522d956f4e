"""Figures of systems by setting in the suite `throughput`, and their comparability (pure).

Ratios compare only systems with about equal numbers of outputs: fewer outputs are less work.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from operator import truediv
from typing import Any, Final

from benchmarks.jobs import plan
from benchmarks.report.results import COMMON_INTERVALS_MS, NONE, Row, SuiteResult

OUTPUTS_TOLERANCE: Final = 0.10
DIFFER: Final = "outputs differ"
#: Headings of `setting_cells`.
SETTING_HEADINGS: Final = ("job", "guarantee", "commit every", "cache")
#: Systems in several tables: one, two and four workers, Quix Streams, and plain clients.
ONE: Final = "tidewheel"
TWO: Final = "tidewheel-workers-2"
FOUR: Final = "tidewheel-workers-4"
QUIX: Final = "quix"
CLIENT: Final = "raw-client"
CLIENTS: Final = "raw-client-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFigures:
    rate: Row
    outputs: Row | None
    memory: Row | None

    @property
    def outputs_per_record(self) -> float | None:
        records = self.rate.parameters.get("records")
        return self.outputs.value / records if self.outputs and records else None


def figures_by_setting(result: SuiteResult) -> Iterator[dict[str, SystemFigures]]:
    """Yield the figures of each setting's systems by name.

    Settings have a fixed order, systems the order of their turns.
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
    return tuple((part is not None, part) for part in setting)


def comparable(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    larger = max(first, second)
    return larger == 0 or abs(first - second) / larger <= OUTPUTS_TOLERANCE


def ratio(figures: SystemFigures, baseline: SystemFigures) -> float:
    return row_ratio(figures.rate, baseline.rate)


def row_ratio(row: Row, baseline: Row) -> float:
    """Return the median of the rounds' ratios to the baseline.

    A slow round slows all its systems, so ratios per round are steadier. With different rounds it
    is the ratio of the medians.
    """
    ours: list[float] = row.parameters.get("values", [])
    theirs: list[float] = baseline.parameters.get("values", [])
    if len(ours) > 0 and row.rounds == baseline.rounds and all(theirs):
        ratios: list[float] = list(map(truediv, ours, theirs))
        return statistics.median(ratios)
    return row.value / baseline.value


def rate_text(figures: SystemFigures | None) -> str:
    return NONE if figures is None else f"{figures.rate.value:,.0f}"


def ratio_text(figures: SystemFigures, baseline: SystemFigures | None) -> str:
    if baseline is None or baseline.rate.value == 0:
        return NONE
    if baseline is figures:
        return "1"
    if not comparable(figures.outputs_per_record, baseline.outputs_per_record):
        return DIFFER
    return f"{ratio(figures, baseline):.2f}"


def system_text(rate: Row) -> str:
    threads = rate.parameters.get("threads")
    return rate.system + (f" ({threads} thread{'s' if threads > 1 else ''})" if threads else "")


def setting_cells(rate: Row) -> tuple[str, ...]:
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
