"""The suite `shards`: its plan, progress of shards, processor time, program and table."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.tidewheel import shards as ours
from benchmarks.progress import CommitRecord, slope
from benchmarks.report.results import Row, SuiteResult, make_rows
from benchmarks.report.table import markdown_table, rich_tables
from benchmarks.shards.lines import HEADINGS, shard_lines
from benchmarks.shards.plan import (
    FULL,
    JOBS,
    QUICK,
    Sample,
    Variant,
    done_records,
    processor_time,
    shard_commits,
    shard_records,
    source_of,
)
from benchmarks.topics.generator import InputSpec, direct_counts, record_blocks
from tidewheel.tasks.key_ranges.keyed_analysis import reason_against_shards
from tidewheel.testing import TopologyTestDriver

GAIN = HEADINGS.index("× one worker")  # noqa: RUF001 - the sign for times
COMPUTED_GAIN = HEADINGS.index("× by processor time")  # noqa: RUF001 - the sign for times
COUNTS = st.lists(st.integers(1, 1_000), min_size=1, max_size=8)


def test_all_inputs_have_one_partition_and_fit_their_workers() -> None:
    for job in JOBS.values():
        whole, shared = (source_of(job, variant, FULL) for variant in job.variants)
        assert (whole.partitions, shared.partitions) == (1, 1)
        assert shared.records == whole.records * job.shared.workers
        assert source_of(job, job.shared, QUICK).records < shared.records


def test_each_job_compares_a_whole_task_with_two_shards() -> None:
    assert {job.name: job.variants[0] for job in JOBS.values()} == dict.fromkeys(
        JOBS, Variant(workers=1, shards=1)
    )
    workers = {job.name: job.shared.workers for job in JOBS.values()}
    assert workers.pop("count_by_key") == 1
    assert set(workers.values()) == {2}
    assert {job.shared.shards for job in JOBS.values()} == {2}


@given(shards=st.sampled_from([1, 2, 4, 8]))
def test_the_shards_have_all_records(shards: int) -> None:
    source = InputSpec(records=2_000, keys=100, partitions=1)
    records = shard_records(source, shards)
    assert len(records) == shards
    assert sum(records) == source.records
    assert min(records) > 0


@given(records=COUNTS, data=st.data())
def test_done_records_reach_the_total_exactly_at_the_end(
    records: list[int], data: st.DataObject
) -> None:
    total = sum(records)
    offsets = [data.draw(st.integers(0, total)) for _ in records]
    assert 0 <= done_records(offsets, records) <= total
    assert done_records([total for _ in records], records) == total
    assert done_records([0, *(total for _ in records[1:])], records) == total - records[0]


def test_a_rate_counts_records_and_not_the_reads_of_each_shard() -> None:
    # Two shards of one partition each read all 1,000 records in ten seconds.
    commits = [
        [CommitRecord(at_ms=1_000 * n + shift, partition=0, offset=100 * n) for n in range(1, 11)]
        for shift in (0, 40)
    ]
    found = slope(
        shard_commits(commits, (600, 400)),
        untimed_records=100,
        records=1_000,
        commit_interval_ms=1_000,
    )
    assert found.records_per_s == pytest.approx(100, rel=0.1)


def test_processor_time_is_per_record_without_the_start() -> None:
    samples = [
        Sample(0, (5.0, 9.0), 1.0),
        Sample(1_000, (6.0, 9.5), 2.0),
        Sample(3_000, (8.0, 10.0), 4.0),
    ]
    used = processor_time(samples, untimed_records=500)
    assert (used.workers_us, used.busiest_us, used.broker_us) == (1_250, 1_000, 1_000)
    unknown = [replace(sample, broker_s=None) for sample in samples]
    assert processor_time(unknown, untimed_records=500).broker_us is None
    with pytest.raises(ValueError, match="use more records"):
        processor_time(samples, untimed_records=3_000)
    with pytest.raises(ValueError, match="use more records"):
        processor_time([], untimed_records=0)


@pytest.mark.parametrize("rounds", [0, 3])
def test_our_program_counts_and_can_have_shards(rounds: int) -> None:
    spec = InputSpec(records=40, keys=7, partitions=1)
    seen: dict[str, list[int]] = {}
    topology = ours.topology(rounds, "in", "out")
    (subtopology,) = topology.spec().subtopologies
    assert reason_against_shards(subtopology, {"in": 1}) == ""
    with TopologyTestDriver(topology) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=bytes)
        counts = driver.create_output_topic("out", key_serde=str, value_serde=int)
        for key, value in next(record_blocks(spec)):
            source.pipe_input(key.decode(), value)
        for name, count in counts.read_key_values():
            seen.setdefault(name, []).append(count)
    assert seen == {
        key.decode(): list(range(1, count + 1)) for key, count in direct_counts(spec).items()
    }


def rows(workers: int, shards: int, rate: float, busiest_us: float) -> list[Row]:
    return make_rows(
        {
            "records_per_s": [rate],
            "workers_us_per_record": [busiest_us * workers],
            "busiest_us_per_record": [busiest_us],
        },
        system=Variant(workers=workers, shards=shards).name,
        job="compute_1ms",
        guarantee="exactly_once",
        parameters={"workers": workers, "shards": shards},
    )


def result_of(*parts: list[Row]) -> SuiteResult:
    return SuiteResult(
        suite="shards",
        date="2026-01-02",
        cpu="A processor",
        cores=2,
        versions={"python": "3.11"},
        rows=tuple(row for part in parts for row in part),
    )


def test_gains_are_against_the_whole_task() -> None:
    lines = shard_lines(result_of(rows(2, 2, 1_700, 520), rows(1, 1, 1_000, 1_000)))
    assert [line[2:4] for line in lines] == [("2", "2"), ("1", "1")]
    assert [line[GAIN] for line in lines] == ["1.70", "1.00"]
    assert [line[COMPUTED_GAIN] for line in lines] == ["1.92", "1.00"]
    (alone,) = shard_lines(result_of(rows(2, 2, 1_700, 520)))
    assert alone[GAIN] == alone[COMPUTED_GAIN] == "–"  # noqa: RUF001 - a dash


def test_both_tables_show_every_line() -> None:
    result = result_of(rows(1, 1, 1_000, 1_000), rows(2, 2, 1_700, 520))
    table = markdown_table(result).split("\n\n")[0]
    assert {line.count("|") for line in table.splitlines()} == {len(HEADINGS) + 1}
    assert table.count("compute_1ms") == 2
    assert rich_tables(result).renderables
