"""A store loaded by Spark plus the later input equals a store built from the whole input."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bulk.conftest import MakeConfig
from tests.bulk.programs.holding import ROWS_BEFORE
from tests.bulk.sums import STORE, sums
from tests.integration.cluster import PATIENCE_S, Cluster, until
from tidewheel import KafkaStreams, StreamsConfig, StreamsError, Topology
from tidewheel.bulk import BulkStep, FrameSource, bootstrap
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

PARTITIONS = 3


@dataclass(frozen=True)
class Order:
    key: str
    amount: int


def orders(count: int, *, seed: int) -> list[Order]:
    chance = random.Random(seed)
    return [Order(f"key-{chance.randrange(300)}", chance.randrange(1, 99)) for _ in range(count)]


def totals(*parts: list[Order]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part in parts:
        for order in part:
            found[order.key] += order.amount
    return dict(found)


class Shop:
    def __init__(self, cluster: Cluster, config: StreamsConfig) -> None:
        self.cluster = cluster
        self.config = config
        self.input = f"orders-{config.application_id}"
        self.changelog = f"{config.application_id}-{STORE}-changelog"
        cluster.create({self.input: PARTITIONS})

    def topology(self) -> Topology:
        return sums(self.input, self.config)

    def feed(self, part: list[Order]) -> None:
        self.cluster.send(
            self.input,
            [(order.key.encode(), order.amount.to_bytes(8, "big")) for order in part],
        )

    def content(self) -> dict[str, int]:
        found = self.cluster.folded(self.changelog)
        return {key.decode(): int.from_bytes(value, "big") for key, (value, _) in found.items()}


@pytest.fixture
def shop(cluster: Cluster, make_config: MakeConfig) -> Shop:
    return Shop(cluster, make_config(snapshot_location=None, commit_interval_ms=50))


@pytest.fixture
def running() -> Iterator[list[KafkaStreams]]:
    apps: list[KafkaStreams] = []
    yield apps
    for app in apps:
        assert app.close(timeout=int(PATIENCE_S * 1000))


def parquet_of(spark: SparkSession, path: Path, rows: Mapping[str, int]) -> FrameSource:
    frame = spark.createDataFrame(sorted(rows.items()), "customer string, total bigint")
    frame.write.parquet(str(path))
    return FrameSource(source=str(path), select=("customer AS key", "total AS value"))


@pytest.mark.parametrize("shards", [1, 4])
def test_a_store_loaded_as_of_a_time_and_fed_the_rest_equals_the_full_store(
    spark: SparkSession, shop: Shop, tmp_path: Path, running: list[KafkaStreams], shards: int
) -> None:
    shop.config = shop.config.replace(partition_shards=shards)
    before, after = orders(4_000, seed=1), orders(3_000, seed=2)
    shop.feed(before)
    source = parquet_of(spark, tmp_path / "totals.parquet", totals(before))
    steps: list[str] = []

    def on_step(told: BulkStep) -> None:
        steps.append(told.phase)
        if told.phase == "check":
            app = KafkaStreams(shop.topology(), shop.config)
            running.append(app)
            app.start()
            shop.feed(after[:100])  # later than the fixed `latest`

    report = bootstrap(
        shop.topology(),
        shop.config,
        STORE,
        source,
        input_offsets="latest",
        spark=spark,
        on_step=on_step,
    )
    assert report.rows == len(totals(before))
    assert sum(report.input_offsets.values()) == len(before)
    assert steps == ["reading", "begin", "check", "write", "close", "commit"]
    shop.feed(after[100:])
    assert running[0].wait_until_running(PATIENCE_S), running[0].error
    shop.cluster.wait_until_consumed(shop.config.application_id, shop.input)
    wanted = totals(before, after)
    until(lambda: shop.content() == wanted, "every key has its total")
    with pytest.raises(StreamsError, match="members of the group are alive"):
        bootstrap(
            shop.topology(),
            shop.config,
            STORE,
            source,
            input_offsets="latest",
            replace=True,
            spark=spark,
        )


#: Enough records to pause the last partition's writer in the middle.
MANY = 4 * ROWS_BEFORE * PARTITIONS


class Run:
    def __init__(self, shop: Shop, source: str, kill_at: str, hold_in: Path | None) -> None:
        given = {
            "config": {
                "application_id": shop.config.application_id,
                "bootstrap_servers": shop.config.bootstrap_servers,
                "state_dir": str(shop.config.state_dir),
            },
            "topic": shop.input,
            "source": source,
            "kill_at": kill_at,
            "input_offsets": "earliest",
            "hold_in": None if hold_in is None else str(hold_in),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bulk.bootstrap_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(given))
        self.process.stdin.close()

    def wait_for(self, step: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == step:
                return
        raise AssertionError(f"the run ended before {step}: {self.process.wait(PATIENCE_S)}")

    def members(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                # pid (comm) state ppid pgrp session ...
                session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
                if int(session) == self.process.pid:
                    found[int(entry.name)] = (entry / "cmdline").read_text()
            except OSError:
                continue  # it has ended
        return found

    def signal(self, number: signal.Signals) -> None:
        for pid in self.members():
            os.kill(pid, number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start_run(shop: Shop) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(source: str, kill_at: str, hold_in: Path | None = None) -> Run:
        runs.append(Run(shop, source, kill_at, hold_in))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_killed_at_each_stage_with_an_attempt_paused_until_the_group_runs(
    spark: SparkSession,
    shop: Shop,
    tmp_path: Path,
    running: list[KafkaStreams],
    start_run: Callable[..., Run],
) -> None:
    """Another run is stopped while it writes (SIGSTOP), and continues while the group runs."""
    frame = spark.range(MANY).selectExpr("concat('key-', id) AS key", "id AS value")
    source = str(tmp_path / "many.parquet")
    frame.write.parquet(source)
    first = start_run(source, "check")
    first.wait_for("check")
    first.process.wait(PATIENCE_S)
    app = KafkaStreams(shop.topology(), shop.config)
    running.append(app)
    app.start()
    shop.feed([Order("key-1", 1), Order("new", 2)])
    second = start_run(source, "never", hold_in=tmp_path)
    second.wait_for("write")
    until(
        lambda: (tmp_path / "held").exists() and sum(shop.cluster.ends(shop.changelog).values()),
        "rows are written, and others are being written",
        timeout_s=120,
    )
    assert any("pyspark.daemon" in command for command in second.members().values())
    second.signal(signal.SIGSTOP)
    third = start_run(source, "commit")
    third.wait_for("commit")
    third.process.wait(PATIENCE_S)
    assert not shop.cluster.committed(shop.config.application_id)
    assert app.tasks() == []
    rows = frame.where("value % 2 = 0")
    report = bootstrap(
        shop.topology(), shop.config, STORE, rows, input_offsets="earliest", spark=spark
    )
    assert (report.rows, report.deleted, report.again) == (MANY // 2, MANY // 2, True)
    assert app.wait_until_running(PATIENCE_S), app.error
    (tmp_path / "go on").touch()
    second.signal(signal.SIGCONT)
    shop.feed([Order("key-2", 5), Order("new", 3)])
    assert second.process.wait(120), "it finds out that it was replaced"
    until(lambda: not second.members(), "what wrote for it ends", timeout_s=120)
    shop.cluster.wait_until_consumed(shop.config.application_id, shop.input)
    wanted = {f"key-{number}": number for number in range(0, MANY, 2)}
    wanted |= {"key-1": 1, "key-2": 7, "new": 5}
    assert shop.content() == wanted
