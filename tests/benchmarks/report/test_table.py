"""Tables: compared and excluded rows."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.report.figures import comparable
from benchmarks.report.results import Row, make_row
from benchmarks.report.table import (
    HEADINGS,
    markdown_table,
    marked,
    rich_tables,
    table_lines,
    write_tables,
)
from tests.benchmarks.throughput_result import suite

RATIO = len(HEADINGS) - 1


def rows(system: str, rate: float, outputs: float, **parameters: object) -> list[Row]:
    setting = {"records": 1_000, "commit_interval_ms": 100, "cache_bytes": 0, **parameters}
    metrics = {
        "records_per_s": [rate * 0.9, rate, rate * 1.1],
        "outputs": [outputs],
        "rss_mib_max": [100.0],
    }
    return [
        make_row(
            values,
            system=system,
            job="count_by_key",
            guarantee="at_least_once",
            metric=metric,
            parameters=setting,
        )
        for metric, values in metrics.items()
    ]


def test_ratios_are_against_kafka_streams() -> None:
    lines = table_lines(
        suite(rows("tidewheel", 200_000, 1_000), rows("kafka-streams", 100_000, 1_000))
    )
    assert [line[4] for line in lines] == ["tidewheel", "kafka-streams"]
    assert [line[RATIO] for line in lines] == ["2.00", "1"]


def test_systems_that_write_less_are_not_compared() -> None:
    lines = table_lines(
        suite(rows("tidewheel", 200_000, 899), rows("kafka-streams", 100_000, 1_000))
    )
    assert lines[0][RATIO] == "outputs differ"


def test_outputs_are_compared_per_record() -> None:
    lines = table_lines(
        suite(rows("quix", 25_000, 250, records=250), rows("kafka-streams", 100_000, 1_000))
    )
    assert lines[0][RATIO] == "0.25"


def test_without_kafka_streams_there_is_no_ratio() -> None:
    assert table_lines(suite(rows("tidewheel", 1.0, 1)))[0][RATIO] == "–"  # noqa: RUF001 - a dash


def test_settings_do_not_mix() -> None:
    lines = table_lines(
        suite(
            rows("kafka-streams", 100, 1_000),
            rows("tidewheel", 300, 1_000, commit_interval_ms=1_000, cache_bytes=64 << 20),
            rows("kafka-streams", 200, 1_000, commit_interval_ms=1_000, cache_bytes=64 << 20),
        )
    )
    assert [line[2:5] for line in lines] == [
        ("100 ms", "none", "kafka-streams"),
        ("1 s", "all keys", "tidewheel"),
        ("1 s", "all keys", "kafka-streams"),
    ]
    assert lines[1][RATIO] == "1.50"


def test_threads_and_own_defaults_are_named() -> None:
    line = table_lines(
        suite(
            rows("kafka-streams", 1, 1, threads=2, own_default=True, commit_interval_ms=30_000),
        )
    )[0]
    assert line[2] == "30 s (own default)"
    assert line[4] == "kafka-streams (2 threads)"


def test_a_common_interval_is_not_called_a_default() -> None:
    lines = table_lines(suite(rows("tidewheel", 1, 1, own_default=True)))
    assert [line[2] for line in lines] == ["100 ms"]


def test_the_order_of_settings_does_not_depend_on_the_order_of_runs() -> None:
    late = rows("tidewheel", 1, 1, commit_interval_ms=1_000)
    early = rows("tidewheel", 1, 1)
    assert table_lines(suite(late, early)) == table_lines(suite(early, late))


def test_a_system_that_lacks_a_job_is_shown_as_such() -> None:
    job = [replace(row, job="foreign_key_join") for row in rows("kafka-streams", 100_000, 1_000)]
    lines = table_lines(suite(job))
    assert {line[4]: line[RATIO] for line in lines} == {
        "kafka-streams": "1",
        "quix": "no operator",
        "faust": "no operator",
    }
    assert {len(line) for line in lines} == {len(HEADINGS)}


def test_a_system_that_cannot_give_a_guarantee_is_shown_as_such() -> None:
    exact = [replace(row, guarantee="exactly_once") for row in rows("kafka-streams", 1, 1)]
    lines = table_lines(suite(exact, rows("kafka-streams", 1, 1)))
    assert [line[1] for line in lines if line[4] == "kafka-streams"] == [
        "at least once",
        "exactly once",
    ]
    assert [line for line in lines if line[4] != "kafka-streams"] == [
        ("count_by_key", "exactly once", "100 ms", "none", "bytewax")
        + ("–",) * 6  # noqa: RUF001 - a dash
        + ("no exactly_once",)
    ]


def test_another_reason_for_absence_is_no_missing_feature() -> None:
    with_cache = rows("kafka-streams", 1, 1, cache_bytes=64 << 20)
    own_default = rows("kafka-streams", 1, 1, commit_interval_ms=5_000)
    unwritten = [replace(row, job="tumbling_count") for row in rows("kafka-streams", 1, 1)]
    exact = [replace(row, guarantee="exactly_once") for row in with_cache + own_default + unwritten]
    lines = table_lines(suite(with_cache, own_default, unwritten, exact))
    assert {line[4] for line in lines} == {"kafka-streams"}


def test_a_cache_for_some_of_the_keys_is_named_by_its_size() -> None:
    lines = table_lines(
        suite(*(rows("tidewheel", 1, 1, cache_bytes=size << 20) for size in (0, 10, 64)))
    )
    assert [line[3] for line in lines] == ["none", "10 MiB", "all keys"]


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_comparing_is_symmetric(first: float, second: float) -> None:
    assert comparable(first, second) == comparable(second, first)
    assert comparable(first, first)


@pytest.mark.parametrize(("first", "second"), [(None, 1.0), (1.0, None), (None, None)])
def test_uncounted_outputs_are_not_compared(first: float | None, second: float | None) -> None:
    assert not comparable(first, second)


def test_the_markdown_table_is_valid_markdown() -> None:
    text = markdown_table(suite(rows("tidewheel", 2, 1), rows("kafka-streams", 1, 1)))
    table, notes = text.split("\n\n")
    assert {line.count("|") for line in table.splitlines()} == {len(HEADINGS) + 1}
    assert (
        "A processor, Python 3.11, 2 cores shared with the broker, 2026-01-02; kafka 4.3.1."
        in notes
    )


def test_a_table_of_several_machines_names_the_machine_of_each_setting() -> None:
    elsewhere = [
        row.of_machine("Another, 4 cores")
        for row in rows("tidewheel", 2, 1, commit_interval_ms=1_000, date="2026-01-01")
    ]
    notes = markdown_table(suite(elsewhere, rows("tidewheel", 2, 1))).split("\n\n")[1]
    assert notes.startswith(
        "Another, 4 cores shared with the broker, 2026-01-01 (count by key, at least once, 1 s, none). "
        "A processor, Python 3.11, 2 cores shared with the broker, 2026-01-02 (count by key, at least once, 100 ms, none); "
    )


def test_the_terminal_shows_each_setting_under_its_name() -> None:
    console = Console(width=100, file=StringIO())
    console.print(rich_tables(suite(rows("tidewheel", 234_567, 1), rows("kafka-streams", 1, 1))))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "count_by_key, at least once, commit every 100 ms, cache none" in text
    assert "234,567" in text
    assert "…" not in text.replace(" … ", "")


BEFORE = "# Title\n<!-- benchmarks:throughput -->\nold\n<!-- /benchmarks:throughput -->\nafter\n"


def test_only_the_text_between_the_markers_changes() -> None:
    assert marked(BEFORE, "throughput", "new") == BEFORE.replace("old", "new")


@pytest.mark.parametrize(
    "document",
    [
        "",
        "<!-- benchmarks:throughput -->",
        BEFORE + BEFORE,
        "\n".join(reversed(BEFORE.split("\n"))),
    ],
)
def test_a_document_without_its_markers_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="needs one <!-- benchmarks:throughput -->"):
        marked(document, "throughput", "new")


def test_a_document_receives_the_tables_of_its_markers(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text(BEFORE)
    results = [suite(rows("tidewheel", 1, 1)), replace(suite(), suite="latency")]
    assert write_tables(document, results) == ["throughput"]
    once = document.read_text()
    assert "| tidewheel |" in once
    assert write_tables(document, results) == ["throughput"]
    assert document.read_text() == once
