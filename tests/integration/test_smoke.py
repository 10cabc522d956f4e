"""Kafka Streams' SmokeTest (golden case `smoke_test_invariants`): workers killed under load.

Every integer of a range comes once per key, nearly in order. The range alone determines the results
of windows, joins and the regrouped table.
"""

import random
import secrets
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.golden.test_golden import CASES
from tests.integration.cluster import Cluster, Feed, until
from tests.integration.processes import WorkerProcess
from tests.integration.programs.smoke import FLUSH, OUTPUTS
from tidewheel.streams.worker.application.application import SystemClock

pytestmark = pytest.mark.timeout(300)

GUARANTEES: Final = ("exactly_once", "at_least_once")
KEYS: Final = 20
PER_KEY: Final = 1_000
PARTITIONS: Final = 2
WORKERS: Final = 2
KILLS: Final = 8
_DAY_MS: Final = 86_400_000
#: Record times are values plus this (0 in the case). It starts a one-day and a two-day window that
#: have both ended: a broker refuses records from the future, which would end them.
BASE_MS: Final = (SystemClock().now_ms() // (2 * _DAY_MS) - 1) * 2 * _DAY_MS


def shuffled(chance: random.Random, first: int) -> list[int]:
    """Return a key's values, each at most ten places from its sorted position."""
    values = list(range(first, first + PER_KEY))
    for index in range(len(values)):
        other = index + chance.randrange(min(len(values) - index, 10))
        values[index], values[other] = values[other], values[index]
    return values


def interleaved(chance: random.Random) -> Iterator[tuple[str, int]]:
    """Yield (key, value) of all keys, in the order of writing."""
    left = {f"{first}-{first + PER_KEY - 1}": shuffled(chance, first) for first in range(KEYS)}
    while left:
        key = chance.choice(list(left))
        yield key, left[key].pop(0)
        if not left[key]:
            del left[key]


class SmokeRun:
    def __init__(self, cluster: Cluster, folder: Path, guarantee: str, unique: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.source, self.sink = f"data-{unique}", f"smoke-{unique}"
        self.kills = 0
        self.config: dict[str, Any] = {
            "application_id": f"smoke-test-{unique}",
            "bootstrap_servers": cluster.bootstrap_servers,
            "state_dir": str(folder / "state"),
            "processing_guarantee": guarantee,
            "commit_interval_ms": 100,
            "emit_interval_ms": 0,
            "rocksdb": {"write_buffer_bytes": 128 << 10, "family_write_buffer_bytes": 64 << 10},
        }
        topics = {self.source: PARTITIONS} | {f"{self.sink}-{name}": PARTITIONS for name in OUTPUTS}
        cluster.create(topics)

    def run(self) -> Self:
        chance = random.Random(1071)
        workers = [self._worker(slot) for slot in range(WORKERS)]
        try:
            with Feed(self.cluster, self.source) as feed:
                for number, (key, value) in enumerate(interleaved(chance)):
                    feed.send(
                        [(key.encode(), struct.pack(">i", value))], first_timestamp=BASE_MS + value
                    )
                    if number % (KEYS * PER_KEY // KILLS) == KEYS * PER_KEY // KILLS // 2:
                        self._kill(workers, chance)
            for partition in range(PARTITIONS):
                self.cluster.send(
                    self.source,
                    [(FLUSH.encode(), struct.pack(">i", 0))],
                    partition=partition,
                    first_timestamp=BASE_MS + 2 * _DAY_MS,
                )
            application_id = str(self.config["application_id"])
            self.cluster.wait_until_consumed(  # in one call: topics feed each other
                application_id,
                self.source,
                *(f"{self.sink}-{name}" for name in ("min", "max", "sum", "cnt")),
                f"{application_id}-cntByCnt-repartition",
                timeout_s=240,
            )
            for worker in workers:
                assert worker.stop() == 0, worker.log[-3000:]
        except BaseException as error:
            for worker in workers:
                error.add_note(f"{worker.name}:\n{worker.log[-3000:]}")
            raise
        finally:
            for worker in workers:
                worker.close()
        return self

    def _worker(self, slot: int) -> WorkerProcess:
        worker = WorkerProcess(self.folder, f"slot-{slot}-life-{self.kills}")
        worker.go("smoke", self.source, self.sink, self.config, slot=slot, workers=WORKERS)
        return worker

    def _kill(self, workers: list[WorkerProcess], chance: random.Random) -> None:
        slot = chance.randrange(WORKERS)
        victim = workers[slot]
        until(
            lambda: victim.numbers().get("commits", 0) >= 2 or victim.has_ended,
            f"{victim.name} commits",
        )
        time.sleep(chance.uniform(0, 0.2))
        assert not victim.has_ended, f"{victim.name} ended by itself: {victim.log[-3000:]}"
        victim.kill()
        victim.close()
        self.kills += 1
        workers[slot] = self._worker(slot)

    def last(self, name: str, form: str) -> dict[str, Any]:
        values = self.cluster.values_by_key(f"{self.sink}-{name}")
        return {
            key.decode(): struct.unpack(form, each[-1] or b"")[0] for key, each in values.items()
        }

    def per_key(self, name: str) -> Counter[str]:
        values = self.cluster.values_by_key(f"{self.sink}-{name}")
        return Counter({key.decode(): len(each) for key, each in values.items()})


@pytest.fixture(scope="module")
def runs(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[SmokeRun]]]:
    made = [
        SmokeRun(cluster, tmp_path_factory.mktemp(guarantee), guarantee, secrets.token_hex(4))
        for guarantee in GUARANTEES
    ]
    with ThreadPoolExecutor(len(made)) as threads:
        yield {
            guarantee: threads.submit(run.run)
            for guarantee, run in zip(GUARANTEES, made, strict=True)
        }


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_smoke_test_invariants(runs: dict[str, Future[SmokeRun]], guarantee: str) -> None:
    assert CASES["smoke_test_invariants"]["kind"] == "integration"
    run = runs[guarantee].result()
    assert run.kills == KILLS
    ranges = {f"{first}-{first + PER_KEY - 1}": first for first in range(KEYS)}
    assert run.last("min", ">i") == ranges
    assert run.last("max", ">i") == {key: first + PER_KEY - 1 for key, first in ranges.items()}
    assert run.last("dif", ">i") == dict.fromkeys(ranges, PER_KEY - 1)
    assert run.last("cnt", ">q") == dict.fromkeys(ranges, PER_KEY)
    sums = {key: (2 * first + PER_KEY - 1) * PER_KEY // 2 for key, first in ranges.items()}
    assert run.last("sum", ">q") == sums
    assert run.last("avg", ">d") == {key: total / PER_KEY for key, total in sums.items()}
    tagg = run.last("tagg", ">q")
    assert tagg.pop(str(PER_KEY)) == KEYS
    assert set(tagg.values()) == {0}
    for name in ("min-suppressed", "sws-suppressed"):
        results = run.per_key(name)
        assert {key.partition("@")[0] for key in results} == set(ranges)
        if guarantee == "exactly_once":
            assert set(results.values()) == {1}
    if guarantee == "exactly_once":
        assert run.per_key("echo") == dict.fromkeys(ranges, PER_KEY)
