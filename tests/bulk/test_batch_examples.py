"""The guide's notebook and the example run over a small archive of flights."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from checks.repository_files import ROOT, code_blocks
from tests.streams.demo.archive import FLIGHTS, WEATHER, small_archive
from tidewheel.streams.demo.check import DELAYS, expected_results
from tidewheel.streams.demo.tables import read_rows


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.mark.usefixtures("examples", "spark")
def test_the_notebook_of_the_guide_runs(tmp_path: Path) -> None:
    (tmp_path / "flights.csv").write_text(FLIGHTS)
    (tmp_path / "weather.csv").write_text(WEATHER)
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "guides" / "batch.md").read_text(encoding="utf-8")
    text = text.replace('f"{name}.csv"', f'f"{tmp_path}/{{name}}.csv"')
    for block in code_blocks(text):
        if block.language == "python":
            exec(block.text, names)  # noqa: S102 - our own document
    assert names["late"] == [("AA", 33), ("UA", 2), ("EV", 0)]


@pytest.mark.usefixtures("examples", "spark")
def test_the_example_gives_the_results_of_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = small_archive(tmp_path / "small.tar.gz")
    importlib.import_module("flights_in_batch").main(archive)
    expected = expected_results(read_rows(archive, "flights"), read_rows(archive, "weather"))
    shown = capsys.readouterr().out
    for carrier, delays in expected[DELAYS].items():
        assert f"{carrier}: {delays['flights']} flights, {delays['minutes']} minutes" in shown
