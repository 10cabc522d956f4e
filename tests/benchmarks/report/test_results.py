"""The form of the result file, and merging of several runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report.results import (
    METRICS,
    SuiteResult,
    decode,
    encode,
    fewer_runs,
    load,
    make_row,
    merged,
    results_path,
    save,
)
from benchmarks.suites import SUITES


def result(**parameters: Any) -> SuiteResult:
    rows = tuple(
        make_row(
            [3.0, 1.0, 2.0],
            system=system,
            job="count_by_key",
            guarantee="exactly_once",
            metric="records_per_s",
            parameters={"commit_interval_ms": 100, "cache_bytes": 0, **parameters},
        )
        for system in ("tidewheel", "kafka-streams")
    )
    return SuiteResult(
        suite="throughput",
        date="2026-01-02",
        cpu="A processor",
        cores=2,
        versions={"python": "3.11"},
        rows=rows,
    )


def test_the_file_has_exactly_the_specified_fields() -> None:
    data = json.loads(encode(result()))
    assert set(data) == {"suite", "date", "cpu", "cores", "versions", "rows"}
    assert data["rows"][0] == {
        "system": "tidewheel",
        "job": "count_by_key",
        "guarantee": "exactly_once",
        "metric": "records_per_s",
        "value": 2.0,
        "unit": "records/s",
        "range": [1.0, 3.0],
        "runs": 3,
        "parameters": {"commit_interval_ms": 100, "cache_bytes": 0, "values": [3.0, 1.0, 2.0]},
    }


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=5),
    st.sampled_from(sorted(METRICS)),
    st.sampled_from(["at_least_once", "exactly_once", None]),
)
def test_a_written_result_is_read_back(
    values: list[float], metric: str, guarantee: str | None
) -> None:
    row = make_row(
        values, system="s", job="j", guarantee=guarantee, metric=metric, parameters={"a": [1]}
    )
    whole = replace(result(), rows=(row,))
    assert decode(encode(whole)) == whole
    assert row.range[0] <= row.value <= row.range[1]


def test_a_file_is_kept_and_found(tmp_path: Path) -> None:
    path = tmp_path / "results" / "throughput.json"
    assert load(path) is None
    save(result(), path)
    assert load(path) == result()
    assert [each.name for each in path.parent.iterdir()] == ["throughput.json"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("metric", "speed", "unknown metric 'speed'"),
        ("guarantee", "at_most_once", "unknown guarantee 'at_most_once'"),
        ("value", 9.0, "outside"),
    ],
)
def test_a_row_that_is_wrong_is_refused(field: str, value: Any, message: str) -> None:
    data = json.loads(encode(result()))
    data["rows"][0][field] = value
    with pytest.raises(ValueError, match=message):
        decode(json.dumps(data).encode())


def test_a_missing_field_is_named() -> None:
    data = json.loads(encode(result()))
    del data["rows"][0]["runs"]
    with pytest.raises(msgspec.ValidationError, match="runs"):
        decode(json.dumps(data).encode())


def test_a_row_needs_a_run() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        make_row([], system="s", job="j", guarantee=None, metric="seconds", parameters={})


def test_new_settings_join_the_old_ones() -> None:
    old, new = result(commit_interval_ms=100), result(commit_interval_ms=1_000)
    assert merged(old, new).rows == old.rows + new.rows
    assert merged(old, replace(old, date="2026-02-03")).rows == old.rows
    assert merged(None, new) == new


def test_a_setting_is_never_mixed_from_two_runs() -> None:
    old = result()
    new = replace(result(), rows=old.rows[:1])
    assert merged(old, new).rows == new.rows


def test_without_turns_each_system_is_replaced_alone() -> None:
    old = replace(result(), suite="handoff")
    first = old.rows[0].system
    others = tuple(row for row in old.rows if row.system != first)
    new = replace(
        old, rows=tuple(row for row in old.rows if row.system == first), date="2026-02-03"
    )
    assert others
    assert merged(old, new).rows == others + new.rows
    assert fewer_runs(old, new) == []


def test_rows_with_fewer_runs_than_before_are_reported() -> None:
    old = result()
    new = replace(old, rows=(replace(old.rows[0], runs=1),))
    setting = "count_by_key, exactly_once, commit_interval_ms 100, cache_bytes 0"
    assert fewer_runs(old, new) == [
        f"{setting}, tidewheel: replaces rows of 3 runs by 1",
        f"{setting}, kafka-streams: replaces rows of 3 runs by 0",
    ]
    assert fewer_runs(old, result(commit_interval_ms=1_000)) == []
    assert fewer_runs(old, old) == fewer_runs(new, replace(old, date="d")) == []
    assert fewer_runs(None, old) == []


def test_cycles_count_like_runs() -> None:
    old, new = (
        replace(result(), rows=(replace(row, runs=1, parameters={"events": events}),))
        for events in (13, 2)
        for row in result().rows[:1]
    )
    assert fewer_runs(old, new) == [
        "count_by_key, exactly_once, tidewheel: replaces rows of 13 runs by 2"
    ]


def test_results_of_another_machine_name_the_machine() -> None:
    here, elsewhere = "A processor, Python 3.11, 2 cores", "Another, Python 3.11, 2 cores"
    old = replace(result(commit_interval_ms=1_000), cpu="Another")
    both = merged(old, result())
    machines = [both.machine_of(row) for row in both.rows]
    assert machines == [elsewhere] * 2 + [here] * 2
    assert [row.setting for row in both.rows[:2]] == [row.setting for row in old.rows]
    third = merged(both, replace(result(commit_interval_ms=5), cpu="Another"))
    assert [third.machine_of(row) for row in third.rows[2:4]] == [here] * 2
    assert third.rows[:2] == old.rows


def test_results_of_another_python_name_the_python() -> None:
    new = result()
    built_here = replace(
        new, versions={**new.versions, "python": "3.11 built without optimizations"}
    )
    both = merged(built_here, result(commit_interval_ms=1_000))
    assert [both.machine_of(row) for row in both.rows] == [
        *["A processor, Python 3.11 built without optimizations, 2 cores"] * 2,
        *["A processor, Python 3.11, 2 cores"] * 2,
    ]


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_the_kept_results_are_well_formed(suite: str) -> None:
    kept = load(results_path(suite))
    assert kept is None or kept.suite == suite
