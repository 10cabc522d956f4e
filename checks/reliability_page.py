"""Tables of docs/reliability.md, from what `make faults` and `make soak` recorded."""

import json
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from checks.repository_files import ROOT

_FOLDER: Final = ROOT / "tests/faults"
MATRIX: Final = _FOLDER / "faults.toml"
RESULTS: Final = _FOLDER / "results.json"
SOAKS: Final = _FOLDER / "soak/soaks.jsonl"

#: Figures with a column of their own.
_COLUMNS: Final = {"recovery_s", "times"}


def matrix() -> dict[str, dict[str, str]]:
    """Return text of each fault and of what must happen, by number."""
    return tomllib.loads(MATRIX.read_text(encoding="utf-8"))


def results() -> dict[str, dict[str, Any]]:
    """Return the last result of each test, by its node id."""
    recorded: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return recorded


def faults_table() -> str:
    rows = [_fault_row(number, text) for number, text in matrix().items()]
    return _table(["", "fault", "what happened", "tests", "times", "recovery, seconds"], rows)


def _fault_row(number: str, text: dict[str, str]) -> list[str]:
    tests = {name: each for name, each in results().items() if number in each["faults"]}
    figures = [each["figures"] for each in tests.values() if each["outcome"] == "passed"]
    recoveries = [value for each in figures for value in each.get("recovery_s", [])]
    times = sum(sum(each.get("times", [1])) for each in figures)
    return [
        number,
        text["fault"],
        _happened(tests, text["expected"]),
        str(len(figures)),
        f"{times:,}",
        _spread(recoveries),
    ]


def _happened(tests: dict[str, dict[str, Any]], expected: str) -> str:
    if not tests:
        return "not recorded yet"
    others = [
        f"`{name.rpartition('::')[2]}` {each['outcome']}"
        for name, each in tests.items()
        if each["outcome"] != "passed"
    ]
    return "; ".join([*others, expected] if len(others) < len(tests) else others)


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    median, worst = statistics.median(seconds), max(seconds)
    return f"{median:.1f}" if len(seconds) == 1 else f"{median:.1f} (at most {worst:.1f})"


def figures_table() -> str:
    rows = [
        [f"`{name.rpartition('::')[2]}`", ", ".join(each["faults"]), each["date"], shown]
        for name, each in results().items()
        if (shown := "; ".join(_figures(each["figures"])))
    ]
    return _table(["test", "fault", "date", "figures"], rows)


def _figures(figures: dict[str, list[Any]]) -> Iterator[str]:
    for name, values in figures.items():
        if name not in _COLUMNS:
            shown = ", ".join(
                f"{each:,}" if isinstance(each, int) else str(each) for each in values
            )
            yield f"{name.replace('_', ' ')}: {shown}"


def soaks_table() -> str:
    lines = SOAKS.read_text(encoding="utf-8").splitlines() if SOAKS.exists() else []
    return _table(
        [
            "date",
            "seed",
            "minutes",
            "faults",
            "records",
            "lost",
            "repeated",
            "wrong",
            "longest stall, seconds",
            "crashes of the Kafka client",
        ],
        [_soak_row(json.loads(line)) for line in lines],
    )


def _soak_row(soak: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{count} {name}" for name, count in soak["faults"].items())
    return [
        soak["date"],
        str(soak["seed"]),
        f"{soak['minutes']:g}" + ("" if soak["passed"] else ", failed"),
        f"{sum(soak['faults'].values())}: {counts}",
        f"{soak['records']:,}",
        str(soak["lost"]),
        str(soak["repeated"]),
        str(soak["wrong"]),
        f"{soak['worst_stall_s']:.1f}",
        str(soak["restarts"].get("client", 0)),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
