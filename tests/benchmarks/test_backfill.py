"""The suite `backfill`: its plan, phases and tables, and one small run of each job."""

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.backfill.lines import (
    COSTS_HEADINGS,
    HEADINGS,
    backfill_lines,
    cost_lines,
)
from benchmarks.backfill.plan import (
    PASSES,
    TENTH,
    WORKERS,
    Size,
    Variant,
    inputs_of,
    rows_of,
)
from benchmarks.backfill.suite import BackfillSuite
from benchmarks.jobs.contents import FIRST_MS
from benchmarks.jobs.expected import start_of
from benchmarks.peers.tidewheel.backfill import Phases, Usage
from benchmarks.report.results import Row, SuiteResult, make_rows
from benchmarks.report.table import markdown_table, rich_tables
from tidewheel.streams.bulk.driver import BulkProgress
from tidewheel.streams.bulk.loading import BulkStep

if TYPE_CHECKING:
    from tidewheel.streams.broker import RunningBroker

TWO, ONE = Variant(cores=2).name, Variant(cores=1).name
RATIO = HEADINGS.index("× two workers")  # noqa: RUF001 - the sign for times


def rows(system: str, records: int, seconds: float, processor_s: float) -> list[Row]:
    return make_rows(
        {
            "records_per_s": [records / seconds],
            "processor_us_per_record": [processor_s / records * 1e6],
            "rss_mib_max": [100.0],
        },
        system=system,
        job="count_by_key",
        guarantee="exactly_once",
        parameters={
            "records": records,
            "seconds": [seconds],
            "spark_start_s": [4.0],
            "phases_s": [{"plan": 1.0, "pass 1": 5.0, "write": 1.5, "writing results": 0.5}],
        },
    )


def result_of(*parts: list[Row]) -> SuiteResult:
    return SuiteResult(
        suite="backfill",
        date="2026-01-02",
        cpu="A processor",
        cores=2,
        versions={"python": "3.11"},
        rows=tuple(row for part in parts for row in part),
    )


RESULT = result_of(
    rows(WORKERS, 10_000_000, 40, 60),
    rows(TWO, 10_000_000, 20, 30),
    rows(TENTH.name, 1_000_000, 4, 5),
)


def test_the_ratio_compares_runs_over_the_same_input() -> None:
    ratios = {line[1]: line[RATIO] for line in backfill_lines(RESULT)}
    assert ratios == {WORKERS: "1.00", TWO: "2.00", TENTH.name: "–"}  # noqa: RUF001 - a dash


def test_a_line_has_the_seconds_of_passes_and_of_writing() -> None:
    line = dict(zip(HEADINGS, backfill_lines(RESULT)[1], strict=True))
    assert (line["of these, passes"], line["writing"], line["Spark's start"]) == (
        "5.0",
        "2.0",
        "4.0",
    )


def test_costs_grow_from_two_sizes_without_the_fixed_seconds() -> None:
    (line,) = cost_lines(RESULT)
    costs = dict(zip(COSTS_HEADINGS, line, strict=True))
    # 25 s of processor time for 9 M more records, 16 s for them on two cores.
    assert costs["µs a record"] == "2.78"
    assert costs["seconds of any job"] == "2.2"
    assert costs["1 billion records"] == "0.8 core hours"
    assert costs["1 trillion records"] == "772 core hours"
    assert not cost_lines(result_of(rows(TWO, 10_000_000, 20, 30)))


def test_both_tables_show_every_line() -> None:
    table = markdown_table(RESULT).split("\n\n")[0]
    assert {line.count("|") for line in table.splitlines()} == {len(HEADINGS) + 1}
    assert rich_tables(RESULT).renderables


def test_phases_add_up_to_the_whole_time() -> None:
    phases = Phases()
    progress = BulkProgress(step="pass 1 of 2 (sub-topology 0)", done=1, total=2, elapsed_s=1.0)
    phases.on_progress(progress)
    phases.on_progress(replace(progress, step="pass 2 of 2 (sub-topology 1)"))
    phases.on_step(BulkStep(phase="write", text=""))
    phases.end()
    assert list(phases.seconds) == ["pass 1", "pass 2", "plan", "write"]
    assert all(seconds >= 0 for seconds in phases.seconds.values())


def test_processor_time_of_an_ended_process_still_counts() -> None:
    usage = Usage()
    usage.sample()
    before_s = usage.processor_s
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        while usage.processor_s < before_s + 0.2:
            usage.sample()
        used_s = usage.processor_s
        process.kill()
    usage.sample()
    assert usage.processor_s >= used_s


def test_the_store_of_windows_has_the_last_two() -> None:
    inputs = inputs_of("tumbling_count", 50_000)
    found = rows_of("tumbling_count", inputs)
    assert sorted({start_of(at) - FIRST_MS for at in found}) == [60_000, 120_000]
    assert sum(found.values()) == 90_000


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("job", ["tumbling_count", "word_count"])
def test_a_run_has_figures_and_right_stores(kafka_broker: "RunningBroker", job: str) -> None:
    suite = BackfillSuite(
        bootstrap_servers=kafka_broker.bootstrap_servers,
        size=Size(records=20_000, pairs=1),
        jobs=[job],
        systems=[TWO],
        console=Console(quiet=True),
        date="2026-01-02",
    )
    (found,) = suite.rows()
    assert not suite.failures
    assert {row.metric: row.value > 0 for row in found} == {
        "records_per_s": True,
        "processor_us_per_record": True,
        "rss_mib_max": True,
    }
    phases = found[0].parameters["phases_s"][0]
    assert len([name for name in phases if name.startswith("pass")]) == PASSES[job]
