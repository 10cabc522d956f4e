"""Hello message of a worker."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidewheel import ConfigError, RunOptions, StreamsBuilder, StreamsConfig
from tidewheel.rebalance.protocol.messages import (
    PROTOCOL_MAX,
    DiskCopy,
    JoinGroup,
    SeenTask,
    ShardCopy,
    decode_message,
    encode_message,
)
from tidewheel.streams.processes.watchdog.hello import Hello, decode_hello, encode_hello
from tidewheel.streams.worker.application.application import Application, SystemClock
from tidewheel.streams.worker.application.application_state import ApplicationState
from tidewheel.streams.worker.application.memory import ProcessMemory
from tidewheel.streams.worker.application.wiring import claim_slot
from tidewheel.streams.worker.worker_hello import fitting, make_hello
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards

SEVEN = DiskCopy(task="0_1", positions={"shop-rows-changelog-1": 7})


def application(folder: Path, **settings: Any) -> Application:
    config = StreamsConfig(application_id="shop", state_dir=folder, **settings)
    builder = StreamsBuilder()
    builder.table("in", key_serde=str, value_serde=str, store="rows")
    return Application(
        spec=builder.build(config).spec(config),
        topology_hash=b"12345678",
        config=config,
        options=RunOptions(),
        state=ApplicationState(),
        clock=SystemClock(),
        memory=ProcessMemory(config.rocksdb),
        on_restore=lambda _event: None,
    )


def introduced(folder: Path, **settings: Any) -> Hello:
    """Return the Hello of a worker with seven records of task 0_1 on disk."""
    made = application(folder, **settings)
    with closing(claim_slot(made.config, None)) as slot:
        return make_hello(
            made,
            plan_application(made.spec, "shop", {"in": 2}),
            slot,
            incarnation="b00c",
            process_id="p",
            alone=True,
            on_disk=(SEVEN,),
        )


def test_the_join_message_contains_the_settings_of_the_member(tmp_path: Path) -> None:
    join = introduced(
        tmp_path,
        topology_optimization="none",
        group_instance_id="till-1",
        rack_id="r1",
        client_tags={"zone": "a"},
        application_server="host:80",
        session_timeout_ms=900,
        heartbeat_interval_ms=100,
        num_stream_threads=3,
    ).join
    assert (join.app, join.member, join.incarnation, join.static) == (
        "shop",
        "till-1",
        "b00c",
        True,
    )
    assert join.transactional_ids == ("shop-b00c-0",)
    assert join.topology_hash == b"12345678".hex()
    assert join.tasks == tuple(
        SeenTask(task=f"0_{number}", stateful=True, changelogs=("shop-rows-changelog",))
        for number in range(2)
    )
    assert join.partitions == {"in": 2}
    assert join.on_disk == (SEVEN,)
    assert join.threads == 3
    assert (join.rack, join.tags, join.endpoint) == ("r1", {"zone": "a"}, "host:80")
    assert (join.session_timeout_ms, join.rejoin_timeout_ms) == (900, 60_000)


def test_the_join_message_names_the_input_as_changelog_of_a_reused_table(tmp_path: Path) -> None:
    join = introduced(tmp_path).join
    assert {task.changelogs for task in join.tasks} == {("in",)}


def test_a_member_without_a_name_uses_the_name_of_its_slot(tmp_path: Path) -> None:
    first, second = introduced(tmp_path).join, introduced(tmp_path).join
    assert first.member == second.member
    assert not first.static


def test_the_join_message_contains_the_settings_of_the_leader(tmp_path: Path) -> None:
    hello = introduced(
        tmp_path,
        num_standby_replicas=1,
        max_warmup_replicas=3,
        acceptable_recovery_lag=7,
        task_move_interval_ms=5,
        settling_ms=11,
    )
    told = hello.coordinator
    assert (told.num_standby_replicas, told.max_warmup_replicas) == (1, 3)
    assert (told.acceptable_recovery_lag, told.task_move_interval_ms, told.settling_ms) == (
        7,
        5,
        11,
    )


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_client_settings_are_sent_to_the_watchdog_and_not_shown(tmp_path: Path, kind: str) -> None:
    hello = introduced(tmp_path, **{kind: {"sasl.password": "canary", "sasl.username": "u"}})
    assert getattr(decode_hello(encode_hello(hello)), kind)["sasl.password"] == "canary"
    assert "canary" not in repr(hello)


def of_many(tasks: int) -> JoinGroup:
    """Return the join of a worker with this many tasks on disk."""
    topic = "shop-orders-by-customer-changelog"
    names = [f"{number // 100}_{number % 100}" for number in range(tasks)]
    return JoinGroup(
        app="shop",
        member="a",
        incarnation="b00c",
        transactional_ids=("shop-b00c-0",),
        host="h",
        pid=1,
        process_id="p",
        tasks=tuple(SeenTask(task=name, stateful=True, changelogs=(topic,)) for name in names),
        on_disk=tuple(DiskCopy(task=name, positions={f"{topic}-7": 1 << 40}) for name in names),
    )


def test_H23_a_join_message_never_exceeds_the_size_limit() -> None:
    assert fitting(of_many(100)) == of_many(100)
    large = of_many(2_000)
    assert decode_message(encode_message(large)) is None
    said = fitting(large)
    assert decode_message(encode_message(said)) == said
    assert said.tasks == large.tasks
    assert 0 < len(said.on_disk) < len(large.on_disk)
    with pytest.raises(ConfigError, match="shop has 5000 tasks, too many for a group"):
        fitting(of_many(5_000))


def test_K8_a_join_has_the_shards_in_fields_that_older_leaders_skip(tmp_path: Path) -> None:
    made = application(tmp_path, partition_shards=4)
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).group_by_key().count(store="counts")
    plan = with_shards(
        plan_application(builder.build().spec(made.config), "shop", {"in": 2}),
        4,
    )
    copy = ShardCopy(task="0_1/2of4", positions={"shop-counts-changelog-1": 7})
    with closing(claim_slot(made.config, None)) as slot:
        join = make_hello(
            made, plan, slot, incarnation="b00c", process_id="p", alone=True, on_disk=(SEVEN, copy)
        ).join
    assert (join.protocol, join.shards) == ((2, PROTOCOL_MAX), 4)
    assert [(row.task, row.shards) for row in join.tasks] == [("0_0", 4), ("0_1", 4)]
    assert (join.on_disk, join.shards_on_disk) == ((SEVEN,), (copy,))
    assert decode_message(encode_message(join)) == join


def test_a_join_without_shards_speaks_both_versions(tmp_path: Path) -> None:
    join = introduced(tmp_path).join
    assert (join.protocol, join.shards, join.shards_on_disk) == ((1, PROTOCOL_MAX), 1, ())
