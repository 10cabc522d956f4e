"""Summary of the suite `throughput`: lines and chart."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.report import summary
from benchmarks.report.figures import figures_by_setting, ratio
from benchmarks.report.results import BASELINE, NONE, ROUNDS, SuiteResult
from benchmarks.report.summary import machines_text, summary_lines, throughput_svg
from benchmarks.report.table import write_tables
from tests.benchmarks.throughput_result import rows, suite

MARKED = f"<!-- benchmarks:{summary.MARK} -->\n<!-- /benchmarks:{summary.MARK} -->\n"


def ratio_of(ours: list[float], theirs: list[float]) -> float:
    (figures,) = figures_by_setting(suite(rows("tidewheel", ours), rows(BASELINE, theirs)))
    return ratio(figures["tidewheel"], figures[BASELINE])


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio_of([300, 100, 200], [100, 80, 200]) == pytest.approx(1.25)


def test_without_the_same_rounds_it_is_the_ratio_of_the_medians() -> None:
    assert ratio_of([50], [100, 80, 200]) == pytest.approx(0.5)


def test_rounds_are_paired_by_their_numbers() -> None:
    ours = [
        replace(row, parameters=row.parameters | {ROUNDS: [1, 3]})
        for row in rows("tidewheel", [300.0, 100.0])
    ]
    theirs = [
        replace(row, parameters=row.parameters | {ROUNDS: [1, 2]})
        for row in rows(BASELINE, [100.0, 200.0])
    ]
    (figures,) = figures_by_setting(suite(ours, theirs))
    assert ratio(figures["tidewheel"], figures[BASELINE]) == pytest.approx(200 / 150)


def test_a_line_has_the_rates_and_ratios_of_a_setting() -> None:
    result = suite(
        rows("tidewheel", [150.0]), rows("tidewheel-workers-2", [300.0]), rows(BASELINE, [100.0])
    )
    assert summary_lines(result) == [
        (
            "count_by_key",
            "exactly once",
            "100 ms",
            "none",
            "150",
            "300",
            "100",
            NONE,
            "1.50",
            "3.00",
            "a",
        )
    ]


def test_lines_name_the_machine_of_the_measurement() -> None:
    elsewhere = [
        *rows("tidewheel", [1.0], job="word_count"),
        *rows(BASELINE, [1.0], job="word_count"),
    ]
    result = suite(
        rows("tidewheel", [1.0]),
        rows(BASELINE, [1.0]),
        [row.of_machine("Another, Python 3.12, 4 cores") for row in elsewhere],
    )
    assert [line[-1] for line in summary_lines(result)] == ["a", "b"]
    assert machines_text(result) == (
        "a: A processor, Python 3.11, 2 cores shared with the broker, 2026-01-02."
        " b: Another, Python 3.12, 4 cores shared with the broker, 2026-01-02"
    )


def test_a_setting_without_kafka_streams_or_without_us_has_no_line() -> None:
    assert summary_lines(suite(rows("tidewheel", [1.0]))) == []
    assert summary_lines(suite(rows(BASELINE, [1.0]), rows("quix", [1.0]))) == []


def test_a_system_with_fewer_outputs_is_not_compared() -> None:
    result = suite(
        rows("tidewheel", [150.0], outputs=500),
        rows("tidewheel-workers-2", [300.0]),
        rows(BASELINE, [100.0]),
    )
    assert summary_lines(result)[0][-3:-1] == ("outputs differ", "3.00")
    assert bars(result) == {"#0b6e4f": [3.0]}


def bars(result: SuiteResult) -> dict[str, list[float]]:
    text = throughput_svg(result)
    assert text is not None
    root = ET.fromstring(text)  # noqa: S314 - our own
    one, two = (
        float(re.findall(r"M([\d.]+),", line.attrib["d"])[0])
        for line in root.findall("{*}path")[:2]
    )
    found: dict[str, list[float]] = {}
    for each in root.findall("{*}rect"):
        if each.attrib["height"] == "10" and each.attrib["width"] != "10":
            found.setdefault(each.attrib["fill"], []).append(
                round(float(each.attrib["width"]) / (two - one), 2)
            )
    return found


def test_the_chart_has_a_bar_for_each_job_and_system() -> None:
    result = suite(
        *(rows(BASELINE, [100.0], job=job) for job in ("count_by_key", "word_count")),
        rows("tidewheel", [150.0]),
        rows("tidewheel", [200.0], job="word_count"),
        rows("tidewheel-workers-2", [310.0], job="word_count"),
        rows("quix", [10.0]),
        rows("tidewheel", [900.0], cache=64 << 20),
        rows(BASELINE, [100.0], cache=64 << 20),
    )
    assert bars(result) == {"#7dbfa3": [1.5, 2.0], "#0b6e4f": [3.1], "#888888": [0.1]}
    assert throughput_svg(suite()) is None


def test_the_chart_is_written_next_to_the_document(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(MARKED)
    result = suite(rows("tidewheel", [150.0]), rows(BASELINE, [100.0]))
    assert write_tables(document, [result]) == [summary.MARK]
    once = document.read_text()
    assert "](images/throughput.svg)" in once
    assert (tmp_path / "images" / "throughput.svg").read_text() == throughput_svg(result)
    assert "A processor, Python 3.11, 2 cores shared with the broker, 2026-01-02" in once
    write_tables(document, [result])
    assert document.read_text() == once
