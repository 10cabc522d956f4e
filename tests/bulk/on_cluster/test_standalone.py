"""Spark's standalone cluster: a batch run and a backfill equal those of one machine."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.backfill.shops import PARTITIONS, Shop, lines
from tests.bulk.conftest import MakeConfig
from tests.bulk.on_cluster.standalone import WORKERS, StandaloneCluster, standalone_cluster
from tests.bulk.programs import clustered
from tests.bulk.programs.clustered import SINK, SOURCE, topology
from tests.integration.cluster import Cluster
from tidewheel.bulk import FrameSource, backfill, run_batch
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession
from tidewheel.tasks.key_ranges.progress_vector import Progress

_RECORDS = "key binary, value binary, timestamp bigint"


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the user's program, outside of this repository."""
    (tmp_path / "user").mkdir()
    return Path(shutil.copy(clustered.__file__, tmp_path / "user"))


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def _check_executors(standalone: StandaloneCluster, marks: Path) -> None:
    """Check that both workers' executors ran the program's function, by the installed package."""
    found = {path.name.split("+")[0]: path.read_text() for path in marks.iterdir()}
    assert found == dict.fromkeys(WORKERS, str(standalone.package))


def test_the_checkout_cannot_be_imported_there(
    standalone: StandaloneCluster, tmp_path: Path
) -> None:
    for module in ("tests", "streams"):
        with pytest.raises(AssertionError, match="ModuleNotFoundError"):
            standalone.run("-c", f"import {module}", folder=tmp_path)


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_a_batch_run_equals_that_of_one_machine(
    standalone: StandaloneCluster, spark: SparkSession, program: Path, marks: Path, tmp_path: Path
) -> None:
    frame = tmp_path / "frame"
    spark.createDataFrame(lines(2_000, 21, late_share=0.1), _RECORDS).write.parquet(str(frame))
    order = {
        "frame": str(frame),
        "marks": str(marks),
        "work": str(tmp_path / "work"),
        "results": str(tmp_path / "results"),
        "master": standalone.master,
    }
    standalone.run(str(program), json.dumps(order), folder=tmp_path)
    _check_executors(standalone, marks)
    assert list((tmp_path / "work").iterdir()) == [], "the files of a closed result"
    here = tmp_path / "here"
    here.mkdir()
    frames = {SOURCE: FrameSource(source=str(frame), file_format="parquet")}
    made = topology(SOURCE, SINK, str(here))
    with run_batch(made, frames, partitions=PARTITIONS, spark=spark) as result:
        wanted = {SINK: result.outputs[SINK], **result.stores}
        assert set(wanted) == {SINK, "words", "windows"}
        for name, expected in wanted.items():
            found = spark.read.parquet(str(tmp_path / "results" / name))
            assert found.dtypes == expected.dtypes
            assert _rows(found) == _rows(expected)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = sorted(map(tuple, frame.collect()))
    assert len(rows) >= 10
    return rows


def test_the_command_equals_a_backfill_of_one_machine(
    standalone: StandaloneCluster,
    spark: SparkSession,
    cluster: Cluster,
    make_config: MakeConfig,
    program: Path,
    marks: Path,
    tmp_path: Path,
) -> None:
    config = make_config(snapshot_location=None)
    source, apart, here = (f"{config.application_id}-{name}" for name in ("in", "apart", "here"))
    cluster.create(dict.fromkeys((source, apart, here), PARTITIONS))
    Shop(cluster, config, source, apart).send(lines(2_000, 22, late_share=0.1))
    (program.parent / "app.py").write_text(
        "from clustered import topology as made\n"
        f"config = {{'application_id': {apart!r}}}\n"
        f"topology = made({source!r}, {apart!r}, {str(marks)!r})\n"
    )
    done = standalone.run(
        "-m", "tidewheel", "backfill", "app.py:topology", "--master", standalone.master,
        "--outputs", "topics", "--work", str(tmp_path / "work"), "--json",
        "--bootstrap-servers", cluster.bootstrap_servers, "--state-dir", str(tmp_path / "state"),
        folder=program.parent,
    )  # fmt: skip
    _check_executors(standalone, marks)
    (tmp_path / "here").mkdir()
    made = topology(source, here, str(tmp_path / "here"))
    config = config.replace(application_id=here)
    report = backfill(made, config, outputs="topics", spark=spark)
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["stores"] == dict(report.stores)
    assert printed["outputs"] == {apart: report.outputs[here]}
    assert _outputs(cluster, apart) == _outputs(cluster, here)
    for store in ("words", "windows"):
        rows = cluster.folded(f"{apart}-{store}-changelog")
        assert rows == cluster.folded(f"{here}-{store}-changelog")
        assert rows
    assert _times(cluster, apart) == _times(cluster, here)


def _outputs(cluster: Cluster, topic: str) -> list[tuple[Any, ...]]:
    return [(each.partition, each.key, each.value, each.timestamp) for each in cluster.read(topic)]


def _times(cluster: Cluster, application_id: str) -> dict[TopicPartition, tuple[Any, ...]]:
    offsets = cluster.admin.committed(application_id, None, stable=True)
    times: dict[TopicPartition, tuple[Any, ...]] = {}
    for at, committed in offsets.items():
        progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
        assert progress is not None
        name = TopicPartition(at.topic.removeprefix(application_id), at.partition)
        times[name] = committed.offset, progress.stream_time_ms, progress.operator_times_ms
    return times
