"""Tables of result files: on the terminal with rich, in documents as Markdown."""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.backfill import lines as backfill
from benchmarks.coordinator import lines as coordinator
from benchmarks.environment.systems import SYSTEMS, System
from benchmarks.handoff import lines as handoff
from benchmarks.jobs import plan
from benchmarks.latency import lines as latency
from benchmarks.memory import lines as memory
from benchmarks.memory import plot as memory_plot
from benchmarks.parallel import lines as parallel
from benchmarks.report import costs, goals, summary
from benchmarks.report.figures import (
    SETTING_HEADINGS,
    SystemFigures,
    figures_by_setting,
    ratio_text,
    setting_cells,
    system_text,
)
from benchmarks.report.results import (
    BASELINE,
    COMMON_INTERVALS_MS,
    GUARANTEES,
    NO_TURNS,
    NONE,
    PYTHON,
    Row,
    SuiteResult,
)
from benchmarks.restore import growth, plot
from benchmarks.restore import lines as restore
from benchmarks.shards import lines as shards

HEADINGS = (
    *SETTING_HEADINGS,
    "system",
    "records/s",
    "range",
    "runs",
    "did commit every",
    "outputs a record",
    "memory",
    "× Kafka Streams",  # noqa: RUF001 - the sign for times
)
SETTING_COLUMNS = len(SETTING_HEADINGS)
GROWTH_MARK = "restore-growth"
PICTURE = "images/restore-growth.svg"
MEMORY_PICTURE = "images/memory.svg"
NUMERIC = frozenset(HEADINGS[SETTING_COLUMNS + 1 :])
NEVER_CUT = frozenset({"system", "what happens"})
#: Headings, text columns, and the maker of a table's lines.
_Table = tuple[Sequence[str], frozenset[str], Callable[[SuiteResult], list[tuple[str, ...]]]]
#: Further tables in documents, by suite and marker.
_PLAIN: Mapping[str, Mapping[str, _Table]] = {
    "throughput": {
        goals.MARK: (goals.HEADINGS, goals.LEFT, goals.goal_lines),
        costs.LIMIT_MARK: (costs.LIMIT_HEADINGS, costs.LEFT, costs.limit_lines),
        costs.WORKERS_MARK: (costs.WORKERS_HEADINGS, costs.LEFT, costs.workers_lines),
        costs.PROCESSOR_MARK: (costs.PROCESSOR_HEADINGS, costs.LEFT, costs.processor_lines),
    },
    "backfill": {
        backfill.COSTS_MARK: (backfill.COSTS_HEADINGS, backfill.COSTS_LEFT, backfill.cost_lines),
    },
}
#: Suites with a table of their own.
_OWN: Mapping[str, _Table] = {
    "backfill": (backfill.HEADINGS, backfill.LEFT, backfill.backfill_lines),
    "coordinator": (coordinator.HEADINGS, coordinator.LEFT, coordinator.coordinator_lines),
    "handoff": (handoff.HEADINGS, handoff.LEFT, handoff.handoff_lines),
    "latency": (latency.HEADINGS, latency.LEFT, latency.latency_lines),
    "memory": (memory.HEADINGS, memory.LEFT, memory.memory_lines),
    "parallel": (parallel.HEADINGS, parallel.LEFT, parallel.parallel_lines),
    "restore": (restore.HEADINGS, restore.LEFT, restore.restore_lines),
    "shards": (shards.HEADINGS, shards.LEFT, shards.shard_lines),
}


def table_lines(result: SuiteResult) -> list[tuple[str, ...]]:
    """Return the table's lines: settings in a fixed order, systems in the order of their turns."""
    lines: list[tuple[str, ...]] = []
    for figures in figures_by_setting(result):
        baseline = figures.get(BASELINE)
        lines.extend(_line(figure, baseline) for figure in figures.values())
        lines.extend(_lacking_lines(next(iter(figures.values())).rate, figures))
    return lines


def rich_tables(result: SuiteResult) -> Group:
    shown: list[RenderableType] = [f"[bold]{result.suite}[/bold]: {_measured(result, result.rows)}"]
    own = _own_lines(result)
    if own is not None:
        tables = [_own_table(*own)] if own[2] else []
        grown = growth.growth_lines(result)
        if grown:
            tables.append(_own_table(growth.HEADINGS, growth.LEFT, grown))
        return Group(*shown, *tables)
    lines = table_lines(result)
    for setting, systems in groupby(lines, key=lambda line: line[:SETTING_COLUMNS]):
        job, guarantee, interval, cache = setting
        table = Table(
            title=f"{job}, {guarantee}, commit every {interval}, cache {cache}",
            title_justify="left",
        )
        for heading in HEADINGS[SETTING_COLUMNS:]:
            justify: Literal["right", "left"] = "right" if heading in NUMERIC else "left"
            table.add_column(heading, justify=justify, no_wrap=heading == "system")
        for line in systems:
            table.add_row(*line[SETTING_COLUMNS:])
        shown.extend(("", table))
    return Group(*shown)


def _own_lines(
    result: SuiteResult,
) -> tuple[Sequence[str], frozenset[str], list[tuple[str, ...]]] | None:
    own = _OWN.get(result.suite)
    return None if own is None else (own[0], own[1], own[2](result))


def _own_table(
    headings: Sequence[str], left: frozenset[str], lines: Sequence[tuple[str, ...]]
) -> Table:
    # Many columns: minimal space between them; figures and system names stay whole.
    table = Table(box=SIMPLE, padding=(0, 0, 0, 1), pad_edge=False)
    for heading in headings:
        if heading in left:
            table.add_column(heading, no_wrap=heading in NEVER_CUT)
        else:
            table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def markdown_table(result: SuiteResult) -> str:
    headings: Sequence[str]
    left: frozenset[str]
    lines: Sequence[Sequence[str]]
    own = _own_lines(result)
    if own is not None:
        headings, left, lines = own
    else:
        headings, lines = HEADINGS, table_lines(result)
        left = frozenset(HEADINGS) - NUMERIC
    measured = [row for row in result.rows if row.job != growth.JOB]
    return _markdown(result, headings, left, lines, _measured(result, measured))


def growth_markdown(result: SuiteResult, picture: str) -> str:
    shown = "How long a restore takes as the changelog and the state grow"
    lines = growth.growth_lines(result)
    measured = [row for row in result.rows if row.job == growth.JOB]
    where = _measured(result, measured)
    table = _markdown(result, growth.HEADINGS, growth.LEFT, lines, where)
    return f"![{shown}]({picture})\n\n{table}"


def _markdown(
    result: SuiteResult,
    headings: Sequence[str],
    left: frozenset[str],
    lines: Sequence[Sequence[str]],
    measured: str,
) -> str:
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(result.versions.items()) if name != PYTHON
    )
    return (
        f"{_rows(headings, left, lines)}\n\n"
        f"{measured}; {versions}.\n"
        f"Made from `benchmarks/results/{result.suite}.json` by `python -m benchmarks table`."
    )


def _rows(headings: Sequence[str], left: frozenset[str], lines: Sequence[Sequence[str]]) -> str:
    marks = [":--" if heading in left else "--:" for heading in headings]
    rows: Iterable[Sequence[str]] = (headings, marks, *lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _measured(result: SuiteResult, rows: Iterable[Row]) -> str:
    settings: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        text = _setting_text(row) + (f" of {row.system}" if result.suite in NO_TURNS else "")
        dates = settings.setdefault(result.machine_of(row), {}).setdefault(text, set())
        dates.add(row.parameters.get("date", result.date))
    shown: list[str] = []
    for machine, measured in settings.items() or ((result.machine, {"": {result.date}}),):
        days = sorted(set[str]().union(*measured.values()))
        days = [days[0], days[-1]] if days[0] != days[-1] else days[:1]
        of = f" ({'; '.join(measured)})" if len(settings) > 1 else ""
        shown.append(f"{machine} shared with the broker, {' to '.join(days)}{of}")
    return ". ".join(shown)


def _setting_text(row: Row) -> str:
    cells = setting_cells(row) if "commit_interval_ms" in row.parameters else (row.job,)
    return ", ".join(cell.replace("_", " ") for cell in cells if cell != NONE)


def marked(text: str, suite: str, table: str) -> str:
    """Return a document with a new table between a suite's two markers.

    Raises:
        ValueError: The document does not have both markers, in order, once.
    """
    start, end = f"<!-- benchmarks:{suite} -->", f"<!-- /benchmarks:{suite} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"the document needs one {start} and after it one {end}: add both lines")
    head, rest = text.split(start)
    return f"{head}{start}\n{table}\n{end}{rest.split(end)[1]}"


def write_tables(document: Path, results: Iterable[SuiteResult]) -> list[str]:
    """Write each suite's table into a document; return the suites written.

    Suites without markers in the document are skipped. Charts are written next to the document.
    """
    text = document.read_text(encoding="utf-8")
    written: list[str] = []
    for result in results:
        if f"<!-- benchmarks:{result.suite} -->" in text:
            text = marked(text, result.suite, _with_picture(result, document))
            written.append(result.suite)
        if result.suite == "throughput" and f"<!-- benchmarks:{summary.MARK} -->" in text:
            text = marked(text, summary.MARK, _summary(result, document))
            written.append(summary.MARK)
        for mark, (headings, left, lines) in _PLAIN.get(result.suite, {}).items():
            if f"<!-- benchmarks:{mark} -->" in text:
                text = marked(text, mark, _rows(headings, left, lines(result)))
                written.append(mark)
        picture = plot.growth_svg(result)
        if picture is not None and f"<!-- benchmarks:{GROWTH_MARK} -->" in text:
            _write_picture(document, PICTURE, picture)
            text = marked(text, GROWTH_MARK, growth_markdown(result, PICTURE))
            written.append(GROWTH_MARK)
    if written:
        document.write_text(text, encoding="utf-8")
    return written


def _write_picture(document: Path, name: str, svg: str) -> None:
    path = document.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(svg, encoding="utf-8")


def _summary(result: SuiteResult, document: Path) -> str:
    lines, machines = summary.summary_lines(result), summary.machines_text(result)
    table = _markdown(result, summary.HEADINGS, summary.LEFT, lines, machines)
    text = f"{table}\n\n{summary.NOTES}"
    drawn = summary.throughput_svg(result)
    if drawn is None:
        return text
    _write_picture(document, summary.PICTURE, drawn)
    return f"![Records a second as multiples of Kafka Streams']({summary.PICTURE})\n\n{text}"


def _with_picture(result: SuiteResult, document: Path) -> str:
    table = markdown_table(result)
    picture = memory_plot.memory_svg(result) if result.suite == "memory" else None
    if picture is None:
        return table
    _write_picture(document, MEMORY_PICTURE, picture)
    return f"![Resident memory over the minutes of a steady load]({MEMORY_PICTURE})\n\n{table}"


def _lacking_lines(rate: Row, found: Collection[str]) -> Iterator[tuple[str, ...]]:
    job = plan.JOBS.get(rate.job)
    if job is None:
        return
    for name, system in SYSTEMS.items():
        why = _lack(system, job, rate)
        if why is not None and name not in found and name not in plan.YARDSTICKS:
            dashes = (NONE,) * (len(HEADINGS) - SETTING_COLUMNS - 2)
            yield (*setting_cells(rate), name, *dashes, why)


def _lack(system: System, job: plan.Job, rate: Row) -> str | None:
    """Return the feature a system lacks for a setting, if it is the only obstacle."""
    parameters = rate.parameters
    own_default = parameters.get("commit_interval_ms") not in COMMON_INTERVALS_MS
    if own_default or (parameters.get("cache_bytes") and not system.cache):
        return None
    why = job.lacking.get(system.name)
    if why is None and rate.guarantee in GUARANTEES and rate.guarantee not in system.guarantees:
        return f"no {rate.guarantee}"
    return None if why == plan.NOT_MEASURED else why


def _line(figures: SystemFigures, baseline: SystemFigures | None) -> tuple[str, ...]:
    rate, parameters = figures.rate, figures.rate.parameters
    per_record = figures.outputs_per_record
    did = parameters.get("committed_every_ms")
    return (
        *setting_cells(rate),
        system_text(rate),
        f"{rate.value:,.0f}",
        f"{rate.range[0]:,.0f} … {rate.range[1]:,.0f}" if rate.runs > 1 else NONE,
        str(rate.runs),
        f"{statistics.median(did):,.0f} ms" if did else NONE,
        NONE if per_record is None else f"{per_record:.2f}",
        f"{figures.memory.value:,.0f} MiB" if figures.memory else NONE,
        ratio_text(figures, baseline),
    )
