"""The suite `memory`: growing keys, verdict and chart."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.memory.flatness import flatness
from benchmarks.memory.growing_keys import growing_counts, growing_keys
from benchmarks.memory.lines import HEADINGS, memory_lines
from benchmarks.memory.plot import memory_svg
from benchmarks.memory.suite import CACHE_BYTES, FULL
from benchmarks.report.results import Row, SuiteResult, make_rows
from benchmarks.report.table import MEMORY_PICTURE, write_tables


def row(system: str, *, flat: bool = True) -> list[Row]:
    return make_rows(
        {"rss_mib_max": [120.0]},
        system=system,
        job="ten_minutes",
        guarantee="exactly_once",
        parameters={
            "records_per_s": 10_000,
            "seconds": 600,
            "keys": 3_000_000,
            "cache_bytes": CACHE_BYTES,
            "middle_mib": 100.0,
            "slope_mib_per_minute": 0.2 if flat else 9.0,
            "flat": flat,
            "series": [[0.0, 50.0], [60.0, 120.0], [120.0, 110.0]],
        },
    )


def result(*rows: Row) -> SuiteResult:
    return SuiteResult(suite="memory", date="d", cpu="c", cores=2, versions={}, rows=rows)


def test_keys_grow_to_half_of_the_records() -> None:
    keys = list(growing_keys(1_000))
    known: set[bytes] = set()
    for number, key in enumerate(keys):
        assert (key not in known) == (number % 2 == 0)
        known.add(key)
    assert len(known) == 500
    assert growing_counts(1_000) == Counter(keys)
    assert FULL.records // 2 * 100 > 20 * CACHE_BYTES


def test_growth_after_the_warm_up_is_not_flat() -> None:
    start = [(float(second), 10.0 + second) for second in range(60)]
    growing = [(float(second), 100 + second / 30) for second in range(60, 600)]
    level = [(float(second), 100 + (second % 7) / 10) for second in range(60, 600)]
    found = flatness(start + growing, 60)
    assert found.slope_mib_per_minute == pytest.approx(2.0)
    assert not found.is_flat
    assert flatness(start + level, 60).is_flat
    assert flatness(start + [(second, 200 - mib) for second, mib in growing], 60).is_flat


def test_a_slope_needs_samples() -> None:
    with pytest.raises(ValueError, match="too few"):
        flatness([(0.0, 1.0), (1.0, 2.0)], 1)


def test_lines_show_if_memory_is_flat() -> None:
    lines = memory_lines(result(*row("tidewheel"), *row("kafka-streams", flat=False)))
    assert [line[HEADINGS.index("flat")] for line in lines] == ["yes", "no"]
    assert [line[HEADINGS.index("a minute")] for line in lines] == ["+0.2 MiB", "+9.0 MiB"]


def test_the_chart_has_a_line_for_each_system_and_is_above_the_table(tmp_path: Path) -> None:
    given = result(*row("tidewheel"), *row("kafka-streams"))
    document = tmp_path / "performance.md"
    document.write_text(
        "<!-- benchmarks:memory -->\nNo full run is kept yet.\n<!-- /benchmarks:memory -->\n"
    )
    assert write_tables(document, [given]) == ["memory"]
    text = document.read_text()
    assert text.index(f"]({MEMORY_PICTURE})") < text.index("| job |")
    drawn = ET.parse(tmp_path / MEMORY_PICTURE).getroot()  # noqa: S314 - our own
    assert len(drawn.findall("{*}polyline")) == 2
    assert memory_svg(replace(given, rows=())) is None
