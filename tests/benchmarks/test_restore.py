"""The suite `restore`: what a restored store must hold, and what its table says."""

import zlib

from benchmarks.generator import InputSpec, record_blocks
from benchmarks.restore.changelog import expected_content
from benchmarks.restore.lines import HEADINGS, restore_lines
from benchmarks.restore.suite import QUICK, with_size
from benchmarks.results import SuiteResult, make_rows


def test_the_expected_content_is_the_last_value_of_each_key() -> None:
    """Counted the slow way."""
    spec = InputSpec(records=2_500, keys=50)
    last = {key: value for block in record_blocks(spec) for key, value in block}
    content = expected_content(spec)
    assert content.rows == len(last) == 50
    assert content.digest == sum(zlib.crc32(key + value) for key, value in last.items())


def test_a_smaller_run_keeps_its_shape() -> None:
    """As many records per key; the full size stays under `--quick`."""
    assert (QUICK.records, QUICK.keys) == (8_000_000, 1_000_000)
    size = with_size(QUICK, records=800_000, pairs=2)
    assert (size.records, size.keys, size.pairs) == (800_000, 100_000, 2)


def test_lines_stand_beside_kafka_streams_replay_of_the_same_job() -> None:
    """And those of the job beside_running_task say beside what."""
    rows = [
        *make_rows(
            {"seconds": [10.0], "records_per_s": [800_000.0]},
            system="tidewheel",
            job="changelog",
            guarantee=None,
            parameters={"how": "changelog"},
        ),
        *make_rows(
            {"seconds": [16.0], "records_per_s": [500_000.0]},
            system="kafka-streams",
            job="changelog",
            guarantee=None,
            parameters={"how": "replay"},
        ),
        *make_rows(
            {"records_per_s": [90_000.0], "gap_ms_unmoved_max": [42.0]},
            system="tidewheel-beside-burner",
            job="beside_running_task",
            guarantee=None,
            parameters={"beside": "burner"},
        ),
    ]
    result = SuiteResult(
        suite="restore", date="2026-11-22", cpu="c", cores=2, versions={}, rows=tuple(rows)
    )
    lines = [dict(zip(HEADINGS, line, strict=True)) for line in restore_lines(result)]
    ratio = HEADINGS[-1]
    assert [line[ratio] for line in lines] == ["1.60", "1.00", "\N{EN DASH}"]
    assert (lines[2]["how"], lines[2]["longest pause"]) == ("beside burner", "42 ms")
