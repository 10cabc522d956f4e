"""The result file: one per suite, its form laid down for good, so that years can be compared.

    {"suite", "date", "cpu", "cores", "versions": {...},
     "rows": [{"system", "job", "guarantee", "metric", "value", "unit", "range": [lo, hi], "runs",
               "parameters": {...}}]}

A row is one metric of one system in one setting: the median of its runs and their range.
`parameters` holds the setting, and the single values in the order of the rounds.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

GUARANTEES = ("at_least_once", "exactly_once")
METRICS: Mapping[str, str] = {
    "records_per_s": "records/s",
    "seconds": "s",
    "outputs": "records",
    "latency_ms_p50": "ms",
    "latency_ms_p99": "ms",
    "gap_ms_moved_max": "ms",
    "gap_ms_moved_p95": "ms",
    "gap_ms_unmoved_max": "ms",
    "balance_s": "s",
    "lost": "records",
    "repeated": "records",
    "rss_mib_max": "MiB",
    # Of the suite coordinator.
    "decide_ms_p50": "ms",
    "decide_ms_p99": "ms",
    "apply_ms_p99": "ms",
    "assign_ms_max": "ms",
    "leader_ms_per_s": "ms/s",
    "log_bytes": "bytes",
    "log_records": "records",
    "snapshot_bytes": "bytes",
    "beat_bytes": "bytes",
    "leader_beat_bytes": "bytes",
}
# Commit intervals that all systems run with; another one is somebody's own default.
COMMON_INTERVALS_MS = (100, 1_000)
SETTING_KEYS = ("commit_interval_ms", "cache_bytes", "factor", "zipf", "members", "tasks")
#: Suites in which each system has its run alone: cycles are the repetitions.
NO_TURNS = frozenset({"handoff"})
#: The parameter of rows that were measured on another machine than their result says: which one.
MACHINE = "machine"
#: The parameter of rows without a figure in one of the rounds before their last: which rounds they have.
ROUNDS = "rounds"
#: The system that the others are compared with.
BASELINE = "kafka-streams"
#: What stands in a table where there is nothing to tell.
NONE = "–"  # noqa: RUF001 - an en dash
#: The version that belongs to the machine.
PYTHON = "python"
RESULTS_DIR = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric of one system in one setting."""

    system: str
    job: str
    guarantee: str | None
    metric: str
    value: float
    unit: str
    range: tuple[float, float]
    runs: int
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def setting(self) -> tuple[Any, ...]:
        """What two rows must share to stand side by side."""
        return (self.job, self.guarantee, *(self.parameters.get(key) for key in SETTING_KEYS))

    @property
    def rounds(self) -> list[int]:
        """The rounds that its values are of: all from the first on, unless it says others."""
        others: list[int] | None = self.parameters.get(ROUNDS)
        return list(range(1, self.runs + 1)) if others is None else others

    def of_machine(self, machine: str | None) -> "Row":
        """Return the row with the machine that it was measured on, if that is not its result's."""
        others = {name: value for name, value in self.parameters.items() if name != MACHINE}
        return replace(self, parameters=others if machine is None else {**others, MACHINE: machine})


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """All rows of a suite, and the machine and versions they were measured with."""

    suite: str
    date: str
    cpu: str
    cores: int
    versions: dict[str, str]
    rows: tuple[Row, ...] = ()

    @property
    def machine(self) -> str:
        """The machine of all rows that don't name another one, and the Python on it: builds differ in speed, too."""
        python = f"Python {self.versions[PYTHON]}, " if PYTHON in self.versions else ""
        return f"{self.cpu}, {python}{self.cores} cores"

    def machine_of(self, row: Row) -> str:
        """Return the machine that a row was measured on."""
        machine: str = row.parameters.get(MACHINE, self.machine)
        return machine


def rounds_parameter(rounds: Iterable[int]) -> dict[str, list[int]]:
    """Return the parameter that says which rounds there were a figure in, nothing if it is all from the first on.

    >>> rounds_parameter([1, 2, 3]), rounds_parameter([1, 3])
    ({}, {'rounds': [1, 3]})
    """
    found = list(rounds)
    return {} if found == list(range(1, len(found) + 1)) else {ROUNDS: found}


def make_row(  # a row's fields are fixed by the file's form
    values: Sequence[float],
    *,
    system: str,
    job: str,
    guarantee: str | None,
    metric: str,
    parameters: Mapping[str, Any],
) -> Row:
    """Return the row for the values of one or more runs, in the order of their rounds."""
    if not values:
        raise ValueError(f"{system}, {job}, {metric}: a row needs at least one run")
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}: the known ones are {', '.join(METRICS)}")
    return Row(
        system=system,
        job=job,
        guarantee=guarantee,
        metric=metric,
        value=_rounded(statistics.median(values)),
        unit=METRICS[metric],
        range=(_rounded(min(values)), _rounded(max(values))),
        runs=len(values),
        parameters={**parameters, "values": [_rounded(value) for value in values]},
    )


def make_rows(
    metrics: Mapping[str, Sequence[float]],
    *,
    system: str,
    job: str,
    guarantee: str | None,
    parameters: Mapping[str, Any],
) -> list[Row]:
    """Return a row for each metric of one system in one setting."""
    return [
        make_row(
            values,
            system=system,
            job=job,
            guarantee=guarantee,
            metric=metric,
            parameters=parameters,
        )
        for metric, values in metrics.items()
    ]


def merged(old: SuiteResult | None, new: SuiteResult) -> SuiteResult:
    """Return the new result, with the old one's rows for settings the new one did not run.

    Rows of one setting are only ever taken from one of them, because they were run in turns: they stand beside each
    other. Suites without turns give way system by system. Rows that were measured on another machine say so.
    """
    if old is None:
        return new
    run = _places(new)
    kept = tuple(
        row.of_machine(None if old.machine_of(row) == new.machine else old.machine_of(row))
        for row in old.rows
        if _place(new.suite, row.setting, row.system) not in run
    )
    return replace(new, versions=old.versions | new.versions, rows=kept + new.rows)


def fewer_runs(old: SuiteResult | None, new: SuiteResult) -> list[str]:
    """Return where rows of fewer runs, or none, take the place of rows of more: a line for each setting and system."""
    if old is None:
        return []
    now, run = _runs(new), _places(new)
    return [
        f"{_setting_text(setting)}, {system}: replaces rows of {before} runs by {now.get((setting, system), 0)}"
        for (setting, system), before in _runs(old).items()
        if _place(new.suite, setting, system) in run and before > now.get((setting, system), 0)
    ]


def encode(result: SuiteResult) -> bytes:
    """Return the result file's bytes."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def decode(data: bytes) -> SuiteResult:
    """Return the result in a file's bytes; wrong forms name the field."""
    result = msgspec.json.decode(data, type=SuiteResult)
    for row in result.rows:
        if row.metric not in METRICS:
            raise ValueError(f"unknown metric {row.metric!r} in the results of {result.suite}")
        if row.guarantee is not None and row.guarantee not in GUARANTEES:
            raise ValueError(f"unknown guarantee {row.guarantee!r} in {result.suite}")
        if not row.range[0] <= row.value <= row.range[1]:
            raise ValueError(f"{row.system}, {row.metric}: {row.value} is outside {row.range}")
    return result


def load(path: Path) -> SuiteResult | None:
    """Return the result in a file, or None where there is no file."""
    return decode(path.read_bytes()) if path.exists() else None


def save(result: SuiteResult, path: Path) -> None:
    """Write a result file whole: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(encode(result))
    part.replace(path)


def results_path(suite: str) -> Path:
    """Return where the last full run of a suite is kept."""
    return RESULTS_DIR / f"{suite}.json"


def _place(suite: str, setting: tuple[Any, ...], system: str) -> tuple[Any, ...]:
    """Return what rows share that only stay together: their setting, where there are no turns their system, too."""
    return (setting, system) if suite in NO_TURNS else (setting,)


def _places(result: SuiteResult) -> set[tuple[Any, ...]]:
    return {_place(result.suite, row.setting, row.system) for row in result.rows}


def _runs(result: SuiteResult) -> dict[tuple[tuple[Any, ...], str], int]:
    """Return how many runs, or cycles of one, the rows of each setting and system are from."""
    found: dict[tuple[tuple[Any, ...], str], int] = {}
    for row in result.rows:
        runs = max(row.runs, row.parameters.get("events", 0))
        found[row.setting, row.system] = max(runs, found.get((row.setting, row.system), 0))
    return found


def _setting_text(setting: tuple[Any, ...]) -> str:
    named = zip(("", "", *SETTING_KEYS), setting, strict=True)
    return ", ".join(f"{key} {value}".strip() for key, value in named if value is not None)


def _rounded(value: float) -> float:
    """Return the value without digits that no run could repeat."""
    return round(value, 3) if abs(value) < 100 else round(value)
