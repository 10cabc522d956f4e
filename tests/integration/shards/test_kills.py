"""Two workers share one partition by shards, and are killed again and again."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.conftest import StartWorker
from tests.integration.outcome import number_of
from tests.integration.processes import WorkerProcess
from tests.integration.programs.jobs import STORE
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.tasks.kafka.internal_topics import offsets_group

SHARDS: Final = 4
WORKERS: Final = 2
KILLS: Final = 8
KEYS: Final = 100
RECORDS_PER_S: Final = 300


def _record(number: int) -> tuple[bytes, bytes]:
    return b"key %d" % (number * number % KEYS), b"x"


def _reaches(committed: Callable[[int], int], number: int, offset: int) -> bool:
    return committed(number) >= offset


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("factor", [1, 4], ids=["whole", "key ranges"])
def test_K8_killed_workers_lose_repeat_and_reorder_nothing(
    cluster: Cluster, config: dict[str, Any], unique: str, start_worker: StartWorker, factor: int
) -> None:
    source, sink, app = f"in-{unique}", f"out-{unique}", config["application_id"]
    cluster.create({source: 1, sink: 1})
    at = TopicPartition(source, 0)
    sharded = config | {"partition_shards": SHARDS, "parallelising_factor": factor}
    lives = Counter[int]()

    def start(slot: int) -> WorkerProcess:
        lives[slot] += 1
        worker = start_worker(f"worker{slot}-{lives[slot]}")
        worker.go("count_by_key", source, sink, sharded, slot=slot, workers=WORKERS)
        return worker

    def committed(number: int) -> int:
        group = offsets_group(app, Shard(number, SHARDS))
        return cluster.committed(group).get(at, 0)

    workers = [start(slot) for slot in range(WORKERS)]
    feed = SteadyFeed(cluster, source, _record, rate=RECORDS_PER_S)
    feed.start()
    chance = random.Random(81)
    for kill in range(KILLS):
        slot = kill % WORKERS  # slot n runs the shards with that remainder
        wanted = committed(slot) + chance.randrange(1, 2 * RECORDS_PER_S)
        until(partial(_reaches, committed, slot, wanted), "the worker commits")
        workers[slot].kill()
        workers[slot] = start(slot)
    feed.stop()
    sent = feed.records
    end = len(sent)
    until(
        lambda: all(committed(number) >= end for number in range(SHARDS)),
        "all shards have read all",
        3 * PATIENCE_S,
    )
    until(lambda: cluster.committed(app).get(at, 0) >= end, "the floor follows", PATIENCE_S)
    assert [worker.stop() for worker in workers] == [0] * WORKERS

    expected = Counter(key for key, _ in sent)
    output = {
        key: [number_of(value or b"") for value in values]
        for key, values in cluster.values_by_key(sink).items()
    }
    assert output == {key: list(range(1, count + 1)) for key, count in expected.items()}
    rows = cluster.folded(f"{app}-{STORE}-changelog")
    assert {key: number_of(value) for key, (value, _) in rows.items()} == expected
