"""The suite `parallel`: its runs, programs and table."""

from dataclasses import replace

import pytest

from benchmarks.environment.systems import PEERS
from benchmarks.parallel.lines import HEADINGS, parallel_lines
from benchmarks.parallel.plan import (
    FACTORS,
    FULL,
    JOBS,
    QUICK,
    Setting,
    expected_records_per_s,
    settings,
)
from benchmarks.peers.tidewheel import parallel as ours
from benchmarks.report.results import Row, SuiteResult, make_row
from benchmarks.report.table import markdown_table, rich_tables
from benchmarks.topics.generator import InputSpec, direct_counts, key_blocks, record_blocks
from tidewheel.testing import TopologyTestDriver

GAIN = HEADINGS.index("× factor 1")  # noqa: RUF001 - the sign for times
SHARE = HEADINGS.index("÷ factor")


def found(**selection: object) -> dict[tuple[str, float], Setting]:
    chosen = settings(QUICK, **selection)  # type: ignore[arg-type] # whatever a test selects
    return {(each.job.name, each.zipf): each for each in chosen}


def variants(setting: Setting) -> list[tuple[str, int]]:
    return [(variant.name, variant.factor) for variant in setting.variants]


def test_each_factor_and_each_peer_has_a_variant() -> None:
    assert variants(found()["blocking_10ms", 0.0]) == [
        *((f"tidewheel-factor-{factor}", factor) for factor in FACTORS),
        ("kafka-streams", 1),
        ("quix", 1),
    ]


def test_keys_by_zipf_are_a_separate_setting() -> None:
    assert variants(found()["blocking_10ms", 1.1]) == [
        ("tidewheel-factor-16", 16),
        ("tidewheel-factor-64", 64),
    ]


def test_a_selection_omits_settings_without_runs() -> None:
    chosen = found(systems=("tidewheel",), factors=frozenset({4}))
    assert {place: variants(setting) for place, setting in chosen.items()} == {
        ("blocking_10ms", 0.0): [("tidewheel-factor-4", 4)],
        ("awaitable_10ms", 0.0): [("tidewheel-factor-4", 4)],
        ("awaitable_mapper_10ms", 0.0): [("tidewheel-factor-4", 4)],
        ("cpu_bound", 0.0): [("tidewheel-factor-4", 4)],
        ("cold_state", 0.0): [("tidewheel-factor-4", 4)],
    }


def test_all_sources_have_one_partition() -> None:
    sources = [variant.source for setting in settings(FULL) for variant in setting.variants]
    assert {source.partitions for source in sources} == {1}
    assert {source.keys for source in sources if source.value_bytes == 90} == {10_000}


def test_a_run_is_as_long_as_its_factor_allows() -> None:
    by_name = {
        variant.name: variant.source.records for variant in found()["blocking_10ms", 0.0].variants
    }
    assert by_name["tidewheel-factor-1"] == by_name["quix"] == by_name["kafka-streams"] == 500
    assert by_name["tidewheel-factor-16"] == 16 * 500
    assert {variant.source.records for variant in found()["sleep_0_5ms", 0.0].variants} == {10_000}


def test_the_busiest_key_bounds_the_expected_rate() -> None:
    source = InputSpec(records=1, keys=10_000, zipf=1.1)
    rate = expected_records_per_s(JOBS["blocking_10ms"], 64, source)
    assert rate == pytest.approx(100 / source.largest_share)
    assert 600 < rate < 800


def test_keys_follow_zipfs_law() -> None:
    spec = InputSpec(records=200_000, keys=1_000, zipf=1.1, partitions=1)
    counts = direct_counts(spec)
    assert max(counts.values()) / spec.records == pytest.approx(spec.largest_share, rel=0.05)
    assert counts[b"k00000001"] / counts[b"k00000000"] == pytest.approx(2**-1.1, rel=0.05)
    short = next(key_blocks(replace(spec, records=100)))
    assert short == next(key_blocks(spec))[:100]
    assert spec.topic != replace(spec, zipf=0.0).topic


def test_every_job_has_its_programs() -> None:
    assert set(ours.PROCESSORS) == set(JOBS) - {"cold_state", "awaitable_mapper_10ms"}
    quix = (PEERS / "quix" / "parallel.py").read_text()
    java = (PEERS / "kafka_streams" / "Parallel.java").read_text()
    for job in JOBS.values():
        assert (f'"{job.name}"' in quix) == (f'"{job.name}"' in java) == job.peers


@pytest.mark.parametrize("job", JOBS)
def test_our_program_counts(job: str) -> None:
    spec = InputSpec(records=40, keys=7, partitions=1)
    seen: dict[str, list[int]] = {}
    with TopologyTestDriver(ours.topology(job, "in", "out")) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=bytes)
        counts = driver.create_output_topic("out", key_serde=str, value_serde=int)
        for key, value in next(record_blocks(spec)):
            source.pipe_input(key.decode(), value)
        for name, count in counts.read_key_values():
            seen.setdefault(name, []).append(count)
    assert seen == {
        key.decode(): list(range(1, count + 1)) for key, count in direct_counts(spec).items()
    }


def rows(
    system: str, factor: int, rate: float, job: str = "blocking_10ms", zipf: float = 0.0
) -> list[Row]:
    parameters = {
        "factor": factor,
        "records": 1_000,
        "keys": 10_000,
        "zipf": zipf,
        "commit_interval_ms": 100,
    }
    return [
        make_row(
            [value * 0.9, value, value * 1.1],
            system=system,
            job=job,
            guarantee="exactly_once",
            metric=metric,
            parameters=parameters,
        )
        for metric, value in (("records_per_s", rate), ("rss_mib_max", 100.0))
    ]


def suite(*parts: list[Row]) -> SuiteResult:
    return SuiteResult(
        suite="parallel",
        date="2026-01-02",
        cpu="A processor",
        cores=2,
        versions={"python": "3.11"},
        rows=tuple(row for part in parts for row in part),
    )


def test_gains_are_against_our_factor_1() -> None:
    lines = parallel_lines(
        suite(
            rows("tidewheel-factor-64", 64, 6_000),
            rows("kafka-streams", 1, 90),
            rows("tidewheel-factor-1", 1, 100),
        )
    )
    assert [line[3:5] for line in lines] == [
        ("tidewheel", "1"),
        ("tidewheel", "64"),
        ("kafka-streams", "–"),  # noqa: RUF001 - a dash
    ]
    assert [line[GAIN] for line in lines] == ["1.00", "60.00", "0.90"]
    assert [line[SHARE] for line in lines] == ["1.00", "0.94", "–"]  # noqa: RUF001 - a dash


def test_keys_by_zipf_are_compared_with_factor_1_too() -> None:
    lines = parallel_lines(
        suite(
            rows("tidewheel-factor-1", 1, 100),
            rows("tidewheel-factor-16", 16, 600, zipf=1.1),
        )
    )
    assert [(line[2], line[GAIN]) for line in lines] == [
        ("10,000", "1.00"),
        ("10,000, Zipf 1.1", "6.00"),
    ]


def test_work_that_does_not_wait_has_no_share() -> None:
    line = parallel_lines(
        suite(
            rows("tidewheel-factor-1", 1, 100, job="cpu_bound"),
            rows("tidewheel-factor-16", 16, 95, job="cpu_bound"),
        )
    )[1]
    assert (line[GAIN], line[SHARE]) == ("0.95", "–")  # noqa: RUF001 - a dash


def test_both_tables_show_every_line() -> None:
    result = suite(rows("tidewheel-factor-1", 1, 100))
    table = markdown_table(result).split("\n\n")[0]
    assert {line.count("|") for line in table.splitlines()} == {len(HEADINGS) + 1}
    assert "blocking_10ms" in table
    assert rich_tables(result).renderables
