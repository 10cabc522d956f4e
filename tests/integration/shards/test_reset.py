"""A reset of an application with shards, and a start with another number of them."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import number_of
from tests.integration.programs.jobs import JOBS
from tidewheel import StreamsConfig
from tidewheel.rebalance.model import Shard, TaskId, TopicPartition
from tidewheel.streams.group.reset import execute_reset, gather_facts, plan_reset, scope_of
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.errors import StartRefusedError
from tidewheel.tasks.kafka.internal_topics import offsets_group

BEFORE: Final = 4
AFTER: Final = 2
KEYS: Final = 50
RECORDS: Final = 400


def test_K8_a_reset_application_counts_again_with_another_number_of_shards(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    source, sink, app_id = f"in-{unique}", f"out-{unique}", config["application_id"]
    cluster.create({source: 1, sink: 1})
    at = TopicPartition(source, 0)
    records = [(b"key %d" % (number * number % KEYS), b"x") for number in range(RECORDS)]
    cluster.send(source, records)
    config |= {"group_instance_id": "one"}

    def run(count: int) -> None:
        tasks = tuple(TaskId(0, 0, shard) for shard in Shard.all_of(count))
        app = start_app(
            JOBS["count_by_key"](source, sink),
            config | {"partition_shards": count},
            options=RunOptions(tasks=tasks, slot=0),
        )
        groups = [offsets_group(app_id, task.shard) for task in tasks]
        until(
            lambda: all(cluster.committed(group).get(at) == RECORDS for group in groups),
            "all shards have read all",
        )
        until(lambda: cluster.committed(app_id).get(at) == RECORDS, "the floor follows")
        assert app.close(timeout=30_000)

    run(BEFORE)
    counts = Counter(key for key, _ in records)
    once = {key: list(range(1, count + 1)) for key, count in counts.items()}
    assert outputs(cluster, sink) == once
    refused = start_app(
        JOBS["count_by_key"](source, sink),
        config | {"partition_shards": AFTER},
        options=RunOptions(tasks=(TaskId(0, 0, Shard(0, AFTER)),), slot=0),
        wait=False,
    )
    until(lambda: refused.error is not None, "the start is refused")
    assert isinstance(refused.error, StartRefusedError)
    assert "tidewheel reshard MODULE:TOPOLOGY" in str(refused.error)
    assert refused.close(timeout=30_000)

    settings = StreamsConfig(**config, partition_shards=AFTER)
    scope = scope_of(app_id, JOBS["count_by_key"](source, sink).build(settings), settings)
    state_dir = Path(config["state_dir"])
    admin = KafkaResetAdmin(settings_of(settings)).found()
    try:
        plan = plan_reset(scope, gather_facts(scope, admin, state_dir, "earliest"), force=True)
        assert plan.shard_groups == tuple(
            offsets_group(app_id, shard) for shard in Shard.all_of(BEFORE)
        )
        execute_reset(plan, admin, state_dir)
        left = [offsets_group(app_id, shard) for shard in Shard.all_of(AFTER)]
        assert admin.groups(f"{app_id}~") == tuple(left)
    finally:
        admin.close()
    assert all(cluster.committed(group) == {at: 0} for group in (app_id, *left))

    run(AFTER)
    assert outputs(cluster, sink) == {key: [*numbers, *numbers] for key, numbers in once.items()}


def outputs(cluster: Cluster, sink: str) -> dict[bytes, list[int]]:
    return {
        key: [number_of(value or b"") for value in values]
        for key, values in cluster.values_by_key(sink).items()
    }
