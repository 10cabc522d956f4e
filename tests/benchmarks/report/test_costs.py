"""Cost per record."""

from pathlib import Path

from benchmarks.report import costs
from benchmarks.report.costs import limit_lines, processor_lines, workers_lines
from benchmarks.report.results import BASELINE, NONE
from benchmarks.report.table import write_tables
from tests.benchmarks.throughput_result import rows, suite

SETTING = ("count_by_key", "exactly once", "100 ms", "none")


def test_a_share_of_the_limit_is_that_of_the_rounds() -> None:
    result = suite(
        rows("tidewheel", [100.0, 200.0, 300.0]),
        rows("tidewheel-workers-2", [400.0, 400.0, 400.0]),
        rows("raw-client", [800.0, 400.0, 900.0]),
    )
    assert limit_lines(result) == [(*SETTING, "200", "400", NONE, "800", NONE, "33%", "50%", NONE)]


def test_two_workers_are_compared_with_two_clients_too() -> None:
    result = suite(
        rows("tidewheel", [100.0]),
        rows("tidewheel-workers-2", [180.0]),
        rows("by-hand", [90.0]),
        rows("raw-client", [400.0]),
        rows("raw-client-2", [600.0]),
    )
    assert limit_lines(result) == [
        (*SETTING, "100", "180", "90", "400", "600", "25%", "45%", "30%")
    ]


def test_without_a_plain_client_there_is_no_limit() -> None:
    assert limit_lines(suite(rows("tidewheel", [1.0]), rows(BASELINE, [1.0]))) == []


def test_several_workers_are_compared_with_one_worker() -> None:
    two = rows("tidewheel", [100.0, 100.0]), rows("tidewheel-workers-2", [180.0, 190.0])
    assert workers_lines(suite(*two)) == []
    assert workers_lines(suite(*two, rows("tidewheel-workers-4", [110.0, 90.0]))) == [
        (*SETTING, "100", "185", "100", "1.85", "1.00")
    ]


def test_processor_time_is_the_median_of_the_rounds() -> None:
    result = suite(
        rows("tidewheel", [1.0], cpu_s_per_million=[3.0, 9.0, 4.0]),
        rows(BASELINE, [1.0], cpu_s_per_million=[7.04]),
        rows("quix", [1.0]),
    )
    assert processor_lines(result) == [(*SETTING, "4.0", NONE, "7.0", NONE, NONE, NONE)]


def test_documents_have_the_tables_of_their_markers(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    marks = {
        mark: f"<!-- benchmarks:{mark} -->\n<!-- /benchmarks:{mark} -->"
        for mark in (costs.LIMIT_MARK, costs.WORKERS_MARK, costs.PROCESSOR_MARK)
    }
    document.write_text("before\n" + "\nbetween\n".join(marks.values()) + "\nafter\n")
    result = suite(
        rows("tidewheel", [50.0], cpu_s_per_million=[2.0]),
        rows(BASELINE, [1.0]),
        rows("raw-client", [100.0]),
    )
    assert write_tables(document, [result]) == list(marks)
    written = document.read_text()
    assert "| 50 | – | – | 100 | – | 50% | – | – |" in written  # noqa: RUF001 - en dashes
    assert "| 2.0 | – | – | – | – | – |" in written  # noqa: RUF001 - the same
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
