"""The guide's notebook and the example run over a small archive of flights."""

import csv
import importlib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from checks.repository_files import ROOT, code_blocks
from tests.streams.demo.archive import FLIGHTS, WEATHER, small_archive
from tidewheel.streams.demo.check import DELAYS, Results, expected_results
from tidewheel.streams.demo.dataset import ensure_archive
from tidewheel.streams.demo.tables import read_rows, table


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def _late(folder: Path) -> list[tuple[str, int]]:
    """Run the guide's notebook over the CSV files of a folder; return its longest delays."""
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "guides" / "batch.md").read_text(encoding="utf-8")
    text = text.replace('f"{name}.csv"', f'f"{folder}/{{name}}.csv"')
    for block in code_blocks(text):
        if block.language == "python":
            exec(block.text, names)  # noqa: S102 - our own document
    late: list[tuple[str, int]] = names["late"]
    return late


@pytest.mark.usefixtures("examples", "spark")
def test_the_notebook_of_the_guide_runs(tmp_path: Path) -> None:
    (tmp_path / "flights.csv").write_text(FLIGHTS)
    (tmp_path / "weather.csv").write_text(WEATHER)
    assert _late(tmp_path) == [("AA", 33), ("UA", 2), ("EV", 0)]


def _check_example(archive: Path, capsys: pytest.CaptureFixture[str]) -> Results:
    importlib.import_module("flights_in_batch").main(archive)
    expected = expected_results(read_rows(archive, "flights"), read_rows(archive, "weather"))
    assert capsys.readouterr().out.splitlines() == [
        f"{carrier}: {delays['flights']} flights, {delays['minutes']} minutes"
        for carrier, delays in sorted(expected[DELAYS].items())
    ]
    return expected


@pytest.mark.usefixtures("examples", "spark")
def test_the_example_gives_the_results_of_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _check_example(small_archive(tmp_path / "small.tar.gz"), capsys)


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.usefixtures("examples", "spark")
def test_example_and_notebook_over_all_flights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = ensure_archive()
    delays = _check_example(archive, capsys)[DELAYS]
    assert sum(each["flights"] for each in delays.values()) == table("flights").rows
    for name in ("flights", "weather"):
        rows = read_rows(archive, name)
        first = next(rows)
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, first.keys())
            writer.writeheader()
            writer.writerows(chain([first], rows))
    longest = sorted((each["longest"] for each in delays.values()), reverse=True)
    late = _late(tmp_path)
    assert [minutes for _, minutes in late] == longest
    assert dict(late) == {carrier: each["longest"] for carrier, each in delays.items()}
