"""Killed drivers and executors: the next run ends with the results of a run that was not killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.backfill.shops import Shop, lines, output_files, words
from tests.bulk.conftest import MakeConfig
from tests.bulk.programs.backfilling import FILE_STAGES, STAGES, WRITING, WRITING_FILES
from tests.integration.cluster import Cluster
from tidewheel import Serdes, StreamsConfig
from tidewheel.bulk import BackfillRefused, backfill
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

_ROOT = Path(__file__).parents[3]
_SPARK_S = 400.0
_LAST = "over, files not deleted"
_KILLED_UNFINISHED = [stage for stage in STAGES if stage != _LAST]

Start = Callable[[dict[str, Any]], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a backfill by an order; all that runs is killed at the end."""
    programs: list[subprocess.Popen[str]] = []

    def begin(order: dict[str, Any]) -> "subprocess.Popen[str]":
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.bulk.programs.backfilling"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},  # executors must find the program, too
        )
        programs.append(program)
        assert program.stdin is not None
        program.stdin.write(json.dumps(order))
        program.stdin.close()
        return program

    yield begin
    for program in programs:
        with suppress(ProcessLookupError):  # Spark has ended, too
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(60)


def _given(config: StreamsConfig) -> dict[str, Any]:
    return {
        "application_id": config.application_id,
        "bootstrap_servers": config.bootstrap_servers,
        "state_dir": str(config.state_dir),
        "commit_interval_ms": config.commit_interval_ms,
        "statestore_cache_max_bytes": config.statestore_cache_max_bytes,
        "emit_interval_ms": config.emit_interval_ms,
    }


def _kill(start: Start, shop: Shop, stage: str, outputs: str = "topics") -> None:
    order = {
        "config": _given(shop.config),
        "source": shop.source,
        "sink": shop.sink,
        "outputs": outputs,
        "master": "local[2]",
        "stage": stage,
    }
    assert start(order).wait(_SPARK_S) == -signal.SIGKILL, stage


Outputs = list[tuple[int, bytes, bytes | None, int]]


class _Compared:
    """An unkilled backfill of the same records, and the killed one's results beside its."""

    def __init__(self, shop: Shop, spark: SparkSession) -> None:
        self._shop = shop
        self._spark = spark
        self.topology = words(shop.source, shop.sink)
        shop.send(lines(2_000, 6, late_share=0.1))
        self._whole = f"{shop.app}-whole"
        backfill(self.topology, shop.named(self._whole), outputs="topics", spark=spark)
        self._first = shop.cluster.log_ends(shop.sink)
        self._expected = self._outputs(is_ours=False)
        assert len(self._expected) > 5_000

    def _outputs(self, *, is_ours: bool) -> Outputs:
        records = self._shop.cluster.read(self._shop.sink)
        return [
            (each.partition, each.key, each.value, each.timestamp)
            for each in records
            if (each.offset >= self._first[TopicPartition(self._shop.sink, each.partition)])
            == is_ours
        ]

    def check_nothing_is_committed(self) -> None:
        assert self._shop.cluster.committed(self._shop.app) == {}

    def check_results(self) -> None:
        shop = self._shop
        assert self._outputs(is_ours=True) == self._expected
        assert shop.stores(shop.app, self.topology) == shop.stores(self._whole, self.topology)
        found, wanted = shop.progress(shop.app), shop.progress(self._whole)
        assert {_name(shop.app, at): each for at, each in self._times(found).items()} == {
            _name(self._whole, at): each for at, each in self._times(wanted).items()
        }

    @staticmethod
    def _times(progress: dict[TopicPartition, Any]) -> dict[TopicPartition, tuple[Any, ...]]:
        return {
            at: (each.committed_offset, each.stream_time_ms, each.operator_times_ms)
            for at, each in progress.items()
        }

    def run(self) -> bool:
        """Run the backfill; return true if it went on from a killed one."""
        shop = self._shop
        return backfill(self.topology, shop.config, outputs="topics", spark=self._spark).again


def _name(application_id: str, at: TopicPartition) -> TopicPartition:
    return TopicPartition(at.topic.removeprefix(application_id), at.partition)


@pytest.fixture
def compared(shop: Shop, spark: SparkSession) -> _Compared:
    return _Compared(shop, spark)


def test_a_backfill_whose_driver_is_killed_at_each_step_in_turn(
    shop: Shop, compared: _Compared, start: Start
) -> None:
    for stage in _KILLED_UNFINISHED:
        _kill(start, shop, stage)
        if stage != "committed, still held":
            compared.check_nothing_is_committed()
    assert compared.run(), "from the files of the killed ones"
    compared.check_results()
    with pytest.raises(BackfillRefused, match="has committed offsets"):
        compared.run()
    compared.check_results()


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.parametrize("stage", STAGES)
def test_a_driver_killed_once(shop: Shop, compared: _Compared, start: Start, stage: str) -> None:
    _kill(start, shop, stage)
    if stage == _LAST:
        with pytest.raises(BackfillRefused, match="has committed offsets"):
            compared.run()
    else:
        assert compared.run()
    compared.check_results()


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_a_driver_killed_again_and_again_while_it_writes(
    shop: Shop, compared: _Compared, start: Start
) -> None:
    for _ in range(3):
        _kill(start, shop, WRITING)
        compared.check_nothing_is_committed()
    assert compared.run()
    compared.check_results()


def test_output_files_of_drivers_killed_at_each_step_in_turn(
    shop: Shop, spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    topology, folder = words(shop.source, shop.sink), tmp_path / "outputs"
    shop.send(lines(2_000, 8, late_share=0.1))
    whole = f"{shop.app}-whole"
    backfill(topology, shop.named(whole), outputs=str(tmp_path / "whole"), spark=spark)
    wanted = output_files(spark, tmp_path / "whole", shop.sink)
    assert len(wanted) > 5_000
    for stage in FILE_STAGES:
        _kill(start, shop, stage, outputs=folder.as_uri())
        assert shop.cluster.committed(shop.app) == {}
        if stage == WRITING_FILES:
            # Spark's process may still live, and delete its unfinished files.
            assert not list(folder.rglob("_SUCCESS")), "it was killed within the files"
            assert not list((folder / shop.sink).glob("part-*")), "no reader sees a part of them"
        else:
            assert output_files(spark, folder, shop.sink) == wanted
    assert backfill(topology, shop.config, outputs=folder.as_uri(), spark=spark).again
    assert output_files(spark, folder, shop.sink) == wanted
    assert shop.stores(shop.app, topology) == shop.stores(whole, topology)
    assert not shop.cluster.read(shop.sink)


def test_executors_killed_in_each_pass_and_while_writing(
    cluster: Cluster, make_config: MakeConfig, unique: str, tmp_path: Path, start: Start
) -> None:
    """Keys are drawn at random: each number has one key, in outputs and in the store."""
    config = make_config(snapshot_location=None, statestore_cache_max_bytes=0)
    prefix, numbers = f"{unique}-", list(range(1_000))
    topics = {name: f"{prefix}{name}" for name in ("numbers", "drawn", "counted")}
    cluster.create(dict.fromkeys(topics.values(), 2))
    number = Serdes.int64()
    cluster.send(
        topics["numbers"],
        [(b"%d" % (each % 7), number.serialize("", each)) for each in numbers],
        first_timestamp=time.time_ns() // 1_000_000 - 60_000,
    )
    order = {
        "config": _given(config),
        "folder": str(tmp_path),
        "prefix": prefix,
        "master": "local-cluster[2,1,1024]",
    }
    assert start(order).wait(_SPARK_S) == 0
    for step in ("drawing", "counting", "writing"):
        assert (tmp_path / step).exists(), f"an executor was killed while {step}"
    drawn = cluster.read(topics["drawn"])
    assert sorted(number.deserialize("", each.value or b"") for each in drawn) == numbers
    keys = sorted(each.key for each in drawn)
    one = number.serialize("", 1)
    counted = cluster.read(topics["counted"])
    assert sorted((each.key, each.value) for each in counted) == [(key, one) for key in keys]
    changelog = cluster.read(f"{config.application_id}-counts-changelog")
    assert sorted(each.key for each in changelog) == keys
    assert {at.topic for at in cluster.committed(config.application_id)} == {
        topics["numbers"],
        f"{config.application_id}-counts-repartition",
    }
