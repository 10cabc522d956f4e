"""Result files: one per suite, in a fixed form that stays comparable over years.

    {"suite", "date", "cpu", "cores", "versions": {...},
     "rows": [{"system", "job", "guarantee", "metric", "value", "unit", "range": [lo, hi], "runs",
               "parameters": {...}}]}

A row is one metric of one system in one setting: the median of its runs and their range.
`parameters` has the setting, and the single values in the order of the rounds.
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
    # Of the suite shards.
    "workers_us_per_record": "µs",
    "busiest_us_per_record": "µs",
    "broker_us_per_record": "µs",
    # Of the suite backfill.
    "processor_us_per_record": "µs",
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
# Commit intervals of all systems; another one is a system's own default.
COMMON_INTERVALS_MS = (100, 1_000)
SETTING_KEYS = ("commit_interval_ms", "cache_bytes", "factor", "zipf", "members", "tasks")
#: Suites without turns: cycles are the repetitions.
NO_TURNS = frozenset({"handoff"})
#: Parameter of rows from another machine than their result's.
MACHINE = "machine"
#: Parameter of rows with gaps in their rounds: the rounds with a figure.
ROUNDS = "rounds"
#: The system that the others are compared with.
BASELINE = "kafka-streams"
#: Empty cell of a table.
NONE = "–"  # noqa: RUF001 - an en dash
#: The version that belongs to the machine.
PYTHON = "python"
RESULTS_DIR = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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
        return (self.job, self.guarantee, *(self.parameters.get(key) for key in SETTING_KEYS))

    @property
    def rounds(self) -> list[int]:
        """Rounds of its values: from the first on, unless a parameter lists them."""
        others: list[int] | None = self.parameters.get(ROUNDS)
        return list(range(1, self.runs + 1)) if others is None else others

    def of_machine(self, machine: str | None) -> "Row":
        """Return the row with its machine, if that differs from its result's."""
        others = {name: value for name, value in self.parameters.items() if name != MACHINE}
        return replace(self, parameters=others if machine is None else {**others, MACHINE: machine})


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    suite: str
    date: str
    cpu: str
    cores: int
    versions: dict[str, str]
    rows: tuple[Row, ...] = ()

    @property
    def machine(self) -> str:
        """Machine of rows without one of their own, with its Python: builds differ in speed."""
        python = f"Python {self.versions[PYTHON]}, " if PYTHON in self.versions else ""
        return f"{self.cpu}, {python}{self.cores} cores"

    def machine_of(self, row: Row) -> str:
        machine: str = row.parameters.get(MACHINE, self.machine)
        return machine


def rounds_parameter(rounds: Iterable[int]) -> dict[str, list[int]]:
    """Return the parameter of rounds with gaps; none for all rounds from the first on.

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
    """Return the new result, with the old rows of settings that it lacks.

    All rows of one setting come from one result, because they ran in turns. Suites without turns
    are replaced by system. Rows from another machine name it.
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
    """Return a line per setting and system whose new rows have fewer runs than the old ones."""
    if old is None:
        return []
    now, run = _runs(new), _places(new)
    return [
        f"{_setting_text(setting)}, {system}: replaces rows of {before} runs by {now.get((setting, system), 0)}"
        for (setting, system), before in _runs(old).items()
        if _place(new.suite, setting, system) in run and before > now.get((setting, system), 0)
    ]


def encode(result: SuiteResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def decode(data: bytes) -> SuiteResult:
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
    return decode(path.read_bytes()) if path.exists() else None


def save(result: SuiteResult, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(encode(result))
    part.replace(path)


def results_path(suite: str) -> Path:
    return RESULTS_DIR / f"{suite}.json"


def _place(suite: str, setting: tuple[Any, ...], system: str) -> tuple[Any, ...]:
    """Return the key of rows that stay together: setting, and system without turns."""
    return (setting, system) if suite in NO_TURNS else (setting,)


def _places(result: SuiteResult) -> set[tuple[Any, ...]]:
    return {_place(result.suite, row.setting, row.system) for row in result.rows}


def _runs(result: SuiteResult) -> dict[tuple[tuple[Any, ...], str], int]:
    found: dict[tuple[tuple[Any, ...], str], int] = {}
    for row in result.rows:
        runs = max(row.runs, row.parameters.get("events", 0))
        found[row.setting, row.system] = max(runs, found.get((row.setting, row.system), 0))
    return found


def _setting_text(setting: tuple[Any, ...]) -> str:
    named = zip(("", "", *SETTING_KEYS), setting, strict=True)
    return ", ".join(f"{key} {value}".strip() for key, value in named if value is not None)


def _rounded(value: float) -> float:
    return round(value, 3) if abs(value) < 100 else round(value)
