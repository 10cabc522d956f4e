"""The suite `restore`: expected store contents, and its table."""

import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree as ET

from rich.console import Console

from benchmarks.peers.tidewheel.restore import content
from benchmarks.peers.tidewheel.restore_beside import Batches
from benchmarks.report.results import SuiteResult, make_rows
from benchmarks.report.table import GROWTH_MARK, PICTURE, write_tables
from benchmarks.restore.beside import beside_rows, to_burn
from benchmarks.restore.changelog import Changelog, expected_content
from benchmarks.restore.growth import WAYS, growth_lines, points
from benchmarks.restore.lines import HEADINGS, restore_lines
from benchmarks.restore.plot import growth_svg
from benchmarks.restore.suite import QUICK, SYSTEM_NAMES, RestoreSuite, with_size
from benchmarks.topics.generator import InputSpec, record_blocks
from tidewheel import KafkaStreams

SPEC = InputSpec(records=2_500, keys=50)
CHANGELOG = Changelog(application_id="bench-restore-test", spec=SPEC, tail=25)


class SuiteOfGivenRuns(RestoreSuite):
    """A suite with given store contents instead of programs; `lost` rows are missing."""

    lost = 0

    def _run(
        self,
        system: str,
        program: str,
        changelog: Changelog,
        folder: Path,
        extra: Mapping[str, str],
    ) -> dict[str, Any]:
        expected = expected_content(changelog.spec)
        outcome: dict[str, Any] = {"rss_mib_max": 500.0}
        if extra.get("beside", "restore") == "restore":
            outcome |= {"rows": expected.rows - self.lost, "digest": expected.digest}
        if program == "restore_beside":
            return outcome | {
                "records_per_s": 90_000.0,
                "pause_ms": 40.0,
                "window_s": 20.0,
                "busy_s": 40.0,
                "helpers_s": 10.0,
            }
        return outcome | {"seconds": 2.0, "ready_s": 3.0}

    def _forget_counts(self, changelog: Changelog) -> None:
        pass


def suite_of_given_runs() -> SuiteOfGivenRuns:
    return SuiteOfGivenRuns(
        bootstrap_servers="",
        size=QUICK,
        jobs=(),
        systems=SYSTEM_NAMES,
        console=Console(file=io.StringIO()),
        date="2026-11-26",
    )


def test_sums_of_a_restored_store_equal_the_expected_content() -> None:
    last = {key: value for block in record_blocks(SPEC) for key, value in block}

    def all_rows() -> Iterator[tuple[bytes, SimpleNamespace]]:
        return ((key, SimpleNamespace(value=value)) for key, value in last.items())

    app = SimpleNamespace(store=lambda _: SimpleNamespace(all=all_rows))
    expected = expected_content(SPEC)
    assert content(cast("KafkaStreams", app)) == {"rows": expected.rows, "digest": expected.digest}


def test_every_way_of_restoring_is_compared_with_the_peers_replay(tmp_path: Path) -> None:
    suite = suite_of_given_runs()
    for job in ("changelog", "snapshot_and_tail", "spark"):
        found = suite._restores(job, CHANGELOG, tmp_path)
        assert [
            (row.system, row.parameters["how"]) for row in found if row.metric == "seconds"
        ] == [("tidewheel", job), ("kafka-streams", "replay"), ("quix", "replay")]
    assert set(suite._single_runs) == {"quix"}
    assert not suite.failures


def test_a_task_during_a_restore_has_no_figure_if_a_restored_row_is_missing(
    tmp_path: Path,
) -> None:
    suite = suite_of_given_runs()
    outcome = suite._beside_each("busy", CHANGELOG, tmp_path, {}, nullcontext)
    assert list(outcome) == ["restore", "nothing", "burner"]
    suite.lost = 1
    assert suite._beside_each("busy", CHANGELOG, tmp_path, {}, nullcontext) == {}
    (failure,) = suite.failures
    assert "the result is wrong: 49 rows" in failure


def test_the_expected_content_is_the_last_value_of_each_key() -> None:
    spec = InputSpec(records=2_500, keys=50)
    last = {key: value for block in record_blocks(spec) for key, value in block}
    content = expected_content(spec)
    assert content.rows == len(last) == 50
    assert content.digest == sum(zlib.crc32(key + value) for key, value in last.items())


def test_a_smaller_run_keeps_its_shape() -> None:
    assert (QUICK.records, QUICK.keys) == (8_000_000, 1_000_000)
    size = with_size(QUICK, records=800_000, pairs=2)
    assert (size.records, size.keys, size.pairs) == (800_000, 100_000, 2)


def test_lines_are_compared_with_the_replay_of_kafka_streams() -> None:
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


def test_pauses_are_those_of_the_steady_input() -> None:
    busy = {
        name: [{"records_per_s": 90_000.0, "pause_ms": 250.4, "window_s": 21.0, "busy_s": 40.0}]
        for name in ("restore", "burner")
    }
    steady = {"restore": [{"records_per_s": 45_000.0, "pause_ms": 60.0, "window_s": 20.0}]}
    rows = beside_rows(busy, steady, records=8, date="2026-11-22")
    assert [(row.system, row.metric, row.value) for row in rows] == [
        ("tidewheel", "records_per_s", 90_000),
        ("tidewheel", "gap_ms_unmoved_max", 60),
        ("tidewheel-beside-burner", "records_per_s", 90_000),
    ]
    assert rows[1].parameters["steady_records_per_s"] == [45_000]
    assert rows[2].parameters["pause_ms_busy"] == [250]


def test_a_burner_also_uses_the_restores_time_outside_its_helpers() -> None:
    restore = {"window_s": 20.0, "busy_s": 40.0, "helpers_s": 10.0, "records_per_s": 100_000.0}
    nothing = {"window_s": 20.0, "busy_s": 38.0, "records_per_s": 152_000.0}
    outcome = to_burn({"restore": restore, "nothing": nothing})
    assert outcome == {"window_s": "20.0", "helpers_s": "10.0", "rest_s": "5.0"}
    assert to_burn({"restore": restore})["rest_s"] == "0.0"
    assert to_burn({"restore": restore, "nothing": {**nothing, "busy_s": 80.0}})["rest_s"] == "0.0"
    assert set(to_burn({}).values()) == {"0"}


def test_the_first_commits_are_no_pause_of_a_running_task() -> None:
    batches = Batches()
    batches.times = [(10.0, 5), (11.5, 5), (12.5, 5), (13.0, 5), (20.0, 5)]
    found = batches.figures(10.0, 14.0)
    assert (found["records_per_s"], found["pause_ms"]) == (5.0, 1_000.0)
    assert batches.figures(10.0, 20.0)["pause_ms"] == 7_000.0
    batches.times = [(10.0, 5), *((12.0 + each / 4, 5) for each in range(33))]
    assert batches.figures(10.0, 20.0)["pause_ms"] == 250.0


def grown() -> SuiteResult:
    """Return a result of the job growth at 100 records per second."""
    rows = [
        row
        for point in points(800, 400)
        for way in WAYS
        for row in make_rows(
            {"seconds": [point.records / 100]},
            system=way.name,
            job="growth",
            guarantee=None,
            parameters={
                "records": point.records,
                "keys": point.keys,
                "varied": list(point.varied),
                "how": way.how,
                **({"spark_start_s": [5.0]} if "spark" in way.extra else {}),
            },
        )
    ]
    return SuiteResult(
        suite="restore", date="2026-11-22", cpu="c", cores=2, versions={}, rows=tuple(rows)
    )


def test_growth_has_lines_of_its_own() -> None:
    result = grown()
    assert restore_lines(result) == []
    lines = growth_lines(result)
    assert len(lines) == 5 * len(WAYS)
    assert lines[1] == (
        "200",
        "200",
        "tidewheel-spark-2 (spark, 2 cores)",
        "2.0",
        "100",
        "1",
        "5.0 s",
    )


def test_growth_is_drawn() -> None:
    svg = growth_svg(grown())
    assert svg is not None
    picture = ET.fromstring(svg)  # noqa: S314 - made a moment ago, by us
    space = "{http://www.w3.org/2000/svg}"
    lines = picture.findall(f"{space}polyline")
    assert len(lines) == 2 * len(WAYS)
    assert all(len(line.attrib["points"].split()) == 3 for line in lines)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for point in picture.iter(f"{space}circle"):
        assert 0 < float(point.attrib["cx"]) < width
        assert 0 < float(point.attrib["cy"]) < height
    assert growth_svg(SuiteResult(suite="restore", date="", cpu="", cores=2, versions={})) is None


def test_a_document_receives_the_table_and_the_chart(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"<!-- benchmarks:{GROWTH_MARK} -->\n<!-- /benchmarks:{GROWTH_MARK} -->\n")
    assert write_tables(document, [grown()]) == [GROWTH_MARK]
    assert f"]({PICTURE})" in document.read_text()
    assert (tmp_path / PICTURE).read_text().startswith("<svg")
