"""Plan and execution of a reset, on fakes and a real folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tests.tasks.loop.bench import APP, Bench
from tidewheel import ConfigError, StreamsBuilder, StreamsConfig, StreamsError, Topology
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.sinks import InMemory
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.cli.commands.reset import parse_position
from tidewheel.streams.group.reset import (
    LocalSlot,
    OffsetMove,
    ResetFacts,
    ResetPlan,
    ResetScope,
    execute_reset,
    gather_facts,
    input_partitions,
    plan_reset,
    scope_of,
)
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.restore.offset_origin import StartRules

ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
TOPICS = {
    "orders": 2,
    "out": 1,
    "shop-totals-repartition": 2,
    "shop-totals-changelog": 2,
    "shop-old-changelog": 2,
    "shop-eu-counts-changelog": 2,
    "shopping-changelog": 1,
    "shop-group-state": 1,
}


def _topology() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("orders", key_serde=str, value_serde=str)
    grouped = stream.group_by(lambda value: value, key_serde=str, value_serde=str)
    grouped.count(store="totals").to_stream().to("out")
    return builder.build()


def _metadata(transactional_id: str, offset: int) -> str:
    return Progress(
        task_epoch=0,
        transactional_id=transactional_id,
        topic_id=bytes(16),
        topology_hash=bytes(8),
        vector=Vector.at(offset),
    ).encode()


def _facts(**changes: object) -> ResetFacts:
    facts = ResetFacts(
        topics=TOPICS,
        committed={
            ORDERS[0]: CommittedOffset(40, _metadata("shop-fixed-0", 40)),
            TopicPartition("shop-totals-repartition", 0): CommittedOffset(
                9, _metadata("shop-fixed-1", 9)
            ),
        },
        targets={ORDERS[0]: 3, ORDERS[1]: 0},
    )
    return replace(facts, **changes)  # type: ignore[arg-type]  # each test changes what it is about


def test_with_a_topology_only_its_internal_topics_are_deleted() -> None:
    plan = plan_reset(scope_of("shop", _topology()), _facts())
    assert plan.topics == (
        "shop-totals-repartition",
        "shop-totals-changelog",
        "shop-group-state",
    )
    assert "shop-eu-counts-changelog, shop-old-changelog" in plan.notes[0]
    assert plan.refusals == ()


def test_without_a_topology_topics_are_found_by_the_application_name() -> None:
    plan = plan_reset(ResetScope(application_id="shop"), _facts(others=frozenset({"shop-eu"})))
    assert plan.topics == (
        "shop-totals-repartition",
        "shop-old-changelog",
        "shop-totals-changelog",
        "shop-group-state",
    )
    assert any("other applications have these names: shop-eu" in note for note in plan.notes)


def test_offsets_move_from_the_committed_position_to_the_target() -> None:
    plan = plan_reset(scope_of("shop", _topology()), _facts())
    assert plan.offsets == (
        OffsetMove(partition=ORDERS[0], before=40, after=3),
        OffsetMove(partition=ORDERS[1], before=None, after=0),
    )


def test_every_producer_that_committed_is_fenced_and_no_other() -> None:
    committed = {
        **_facts().committed,
        ORDERS[1]: CommittedOffset(1, _metadata("bank-fixed-0", 1)),
        TopicPartition("orders", 2): CommittedOffset(1, "something else"),
    }
    plan = plan_reset(scope_of("shop", _topology()), _facts(committed=committed))
    assert plan.transactional_ids == ("shop-fixed-0", "shop-fixed-1")


def test_live_members_prevent_a_reset() -> None:
    """H18: on any machine."""
    plan = plan_reset(scope_of("shop", _topology()), _facts(live_members=("a", "b")))
    assert plan.refusals == (
        "members of shop were alive a few seconds ago: a, b; stop the application everywhere first",
    )


def test_a_live_application_is_not_reset() -> None:
    held = LocalSlot(slot=0, path=Path("/state/shop/0"), problem="slot 0 is held by process 7 on a")
    plan = plan_reset(scope_of("shop", _topology()), _facts(members=("'a' on h",), slots=(held,)))
    assert plan.refusals == (
        "slot 0 is held by process 7 on a",
        "group shop has 1 live members ('a' on h); stop the application first",
    )


def test_workers_with_a_fixed_assignment_are_detected_on_any_machine() -> None:
    live = _facts(fixed={"shop-fixed-b-0": "10.0.0.7", "shop-fixed-0": "10.0.0.5"})
    (refusal,) = plan_reset(scope_of("shop", _topology()), live).refusals
    assert "alive: shop-fixed-0 at 10.0.0.5, shop-fixed-b-0 at 10.0.0.7; stop them first" in refusal
    assert "--force" in refusal


def test_force_ends_only_workers_with_a_fixed_assignment() -> None:
    live = _facts(fixed={"shop-fixed-b-0": "10.0.0.7", "bank-fixed-0": "10.0.0.6"})
    plan = plan_reset(scope_of("shop", _topology()), live, force=True)
    assert plan.refusals == ()
    assert plan.transactional_ids == ("shop-fixed-0", "shop-fixed-1", "shop-fixed-b-0")
    assert any("end with FencedError: bank-fixed-0 at" in note for note in plan.notes)
    speaking = replace(live, live_members=("a",))
    assert plan_reset(scope_of("shop", _topology()), speaking, force=True).refusals


def test_inputs_are_source_topics_and_committed_partitions() -> None:
    scope = scope_of("shop", _topology())
    committed = [TopicPartition("clicks", 0), TopicPartition("shop-totals-repartition", 0)]
    found = input_partitions(scope, {**TOPICS, "clicks": 1}, committed)
    assert found == [TopicPartition("clicks", 0), *ORDERS]


def test_source_topics_that_do_not_exist_are_named() -> None:
    plan = plan_reset(scope_of("shop", _topology()), _facts(topics={}, targets={}, committed={}))
    assert plan.is_empty
    assert "source topics that do not exist: orders" in plan.notes


def test_a_plan_without_any_finding_has_a_note() -> None:
    facts = _facts(committed={}, targets={})
    plan = plan_reset(ResetScope(application_id="shpo"), facts)
    assert plan.is_empty
    assert "nothing of an application shpo was found" in plan.notes[0]
    found = plan_reset(ResetScope(application_id="shop"), facts)
    assert not any("nothing of an application" in note for note in found.notes)


class _Admin(FakeAdmin):
    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Use the time as offset: one record per millisecond."""
        return dict.fromkeys(partitions, timestamp_ms)

    def fixed_workers(self, application_id: str) -> dict[str, str]:
        assert application_id
        return {}


@pytest.fixture
def cluster() -> FakeBroker:
    """Cluster of the application `shop` and another of a similar name."""
    broker = FakeBroker()
    for topic, partitions in TOPICS.items():
        broker.create_topic(topic, partitions)
    for _ in range(5):
        broker.send("orders", b"x", partition=0)
    broker.groups["shop"] = dict(_facts().committed)
    broker.groups["shop-eu"] = {ORDERS[0]: CommittedOffset(1, "")}
    return broker


def _used_state(state_dir: Path) -> None:
    for slot in (0, 1):
        with StateDirectory.acquire(state_dir, "shop", slot=slot) as directory:
            (directory.task_directory("0_0") / "data").write_text("x")


@pytest.mark.parametrize(("to", "after"), [("earliest", 0), ("latest", 5), (4, 4)])
def test_a_reset_deletes_all_state_except_the_new_offsets(
    cluster: FakeBroker, tmp_path: Path, to: str, after: int
) -> None:
    _used_state(tmp_path)
    admin, scope = _Admin(cluster), ResetScope(application_id="shop")
    position = parse_position(str(to))
    plan = plan_reset(scope, gather_facts(scope, admin, tmp_path, position))
    assert [slot.tasks for slot in plan.slots] == [("0_0",), ("0_0",)]
    execute_reset(plan, admin, tmp_path)
    committed = cluster.groups["shop"][ORDERS[0]]
    assert committed.offset == after
    # A start rejects offsets of other applications.
    assert StartRules(group_id="shop").own(committed)
    assert not any(partition.topic.startswith("shop") for partition in cluster.groups["shop"])
    assert set(cluster.topics) == {
        "orders",
        "out",
        "shop-eu-counts-changelog",
        "shopping-changelog",
    }
    assert cluster.fenced == ["shop-fixed-0", "shop-fixed-1"]
    assert not list(tmp_path.rglob("data"))
    again = plan_reset(scope, gather_facts(scope, admin, tmp_path, position))
    assert (again.topics, again.slots) == ((), ())


def test_positions_of_sinks_are_deleted_too(cluster: FakeBroker, tmp_path: Path) -> None:
    resets: list[str] = []

    class Outside(InMemory):
        def reset(self, application_id: str) -> None:
            resets.append(application_id)

    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=str).to_sink(Outside())
    admin, scope = _Admin(cluster), scope_of("shop", builder.build())
    plan = plan_reset(scope, gather_facts(scope, admin, tmp_path, "earliest"))
    assert [sink.target for sink in plan.sinks] == ["Outside"]
    assert resets == []
    execute_reset(plan, admin, tmp_path)
    assert resets == ["shop"]


def test_sink_that_can_not_be_reset_is_named(cluster: FakeBroker, tmp_path: Path) -> None:
    class Outside(InMemory):
        def reset(self, application_id: str) -> None:
            raise ConnectionError("away")

    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=str).to_sink(Outside)
    admin, scope = _Admin(cluster), scope_of("shop", builder.build())
    plan = plan_reset(scope, gather_facts(scope, admin, tmp_path, "earliest"))
    with pytest.raises(StreamsError, match=r"Outside.*away"):
        execute_reset(plan, admin, tmp_path)


def test_a_plan_changes_nothing(cluster: FakeBroker, tmp_path: Path) -> None:
    _used_state(tmp_path)
    before = {**cluster.groups}, set(cluster.topics)
    scope = scope_of("shop", _topology())
    plan_reset(scope, gather_facts(scope, _Admin(cluster), tmp_path, "earliest"))
    assert ({k: v for k, v in cluster.groups.items() if v}, set(cluster.topics)) == before
    assert len(list(tmp_path.rglob("data"))) == 2


def test_a_slot_in_use_prevents_a_reset(cluster: FakeBroker, tmp_path: Path) -> None:
    _used_state(tmp_path)
    admin, scope = _Admin(cluster), scope_of("shop", _topology())
    with StateDirectory.acquire(tmp_path, "shop", slot=1):
        plan = plan_reset(scope, gather_facts(scope, admin, tmp_path, "earliest"))
        (refusal,) = plan.refusals
        assert "slot 1" in refusal
        assert "process" in refusal
        with pytest.raises(StreamsError, match="slot 1"):
            execute_reset(plan, admin, tmp_path)
    assert len(list(tmp_path.rglob("data"))) == 2


def test_a_slot_locked_after_the_plan_stops_the_reset_before_any_change(
    cluster: FakeBroker, tmp_path: Path
) -> None:
    _used_state(tmp_path)
    admin, scope = _Admin(cluster), scope_of("shop", _topology())
    plan = plan_reset(scope, gather_facts(scope, admin, tmp_path, "earliest"))
    with (
        StateDirectory.acquire(tmp_path, "shop", slot=1),
        pytest.raises(StreamsError, match="slot 1"),
    ):
        execute_reset(plan, admin, tmp_path)
    assert "shop-totals-changelog" in cluster.topics


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ],
)
def test_times_without_a_zone_are_utc(text: str, position: str | int) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize("text", ["9" * 25, "soon", "2023-13-01"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write earliest, latest, a time"):
        parse_position(text)


def _counts() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    grouped.count(store="store").to_stream().to("out")
    return builder.build()


def _sharded_config(shards: int) -> StreamsConfig:
    return StreamsConfig(
        application_id=APP, bootstrap_servers="unused:9092", partition_shards=shards
    )


def _run_shards(bench: Bench, count: int) -> None:
    whole = bench.plan
    bench.plan = with_shards(whole, count, None)
    assert bench.live(assigned=frozenset(bench.plan.tasks))
    bench.plan = whole


def _reset(bench: Bench, scope: ResetScope, folder: Path) -> ResetPlan:
    admin = _Admin(bench.broker)
    plan = plan_reset(scope, gather_facts(scope, admin, folder, "earliest"))
    execute_reset(plan, admin, folder)
    bench.disk.versions.clear()
    for topic in bench.plan.changelog_topics:
        bench.broker.create_topic(topic.name, topic.partitions, topic.config)
    return plan


@pytest.mark.parametrize("after", [1, 2, 4, 8])
def test_K8_after_a_reset_the_application_starts_with_any_number_of_shards(
    tmp_path: Path, after: int
) -> None:
    bench = Bench(_counts(), {"in": 1, "out": 1})
    for number in range(20):
        bench.send("in", f"key {number % 10}", "x")
    _run_shards(bench, 4)
    before = bench.outputs("out")
    assert len(before) == 20
    plan = _reset(bench, scope_of(APP, _counts(), _sharded_config(after)), tmp_path)
    assert plan.shard_groups == tuple(f"app~{number}of4" for number in range(4))
    groups = {name for name, offsets in bench.broker.groups.items() if offsets}
    shards = [f"app~{number}of{after}" for number in range(after)] if after > 1 else []
    assert groups == {"app", *shards}
    _run_shards(bench, after)
    assert sorted(bench.outputs("out")[20:]) == sorted(before)


def test_K8_without_a_topology_a_reset_keeps_the_number_of_shards(tmp_path: Path) -> None:
    bench = Bench(_counts(), {"in": 2, "out": 1})
    whole = bench.plan
    bench.plan = with_shards(whole, 4, None)
    for number in range(20):
        bench.send("in", f"key {number % 10}", "x")
    # No floor is committed: it needs all shards of a partition.
    assert bench.live(assigned=frozenset(bench.plan.tasks[1:3]))
    bench.plan = whole
    plan = _reset(bench, ResetScope(application_id=APP), tmp_path)
    assert plan.shard_groups == ("app~1of4", "app~2of4")
    inputs = [TopicPartition("in", 0), TopicPartition("in", 1)]
    assert [str(move.partition) for move in plan.offsets] == [
        text for at in inputs for text in (str(at), *(f"{at}/{shard}" for shard in Shard.all_of(4)))
    ]
    for shard in Shard.all_of(4):
        offsets = bench.broker.groups[f"app~{shard}"]
        assert {at: offset.offset for at, offset in offsets.items()} == dict.fromkeys(inputs, 0)
        progress = Progress.decode(offsets[inputs[0]].metadata, committed_offset=0)
        assert progress is not None
        assert progress.vector == Vector.at(0, shard.first_hash, shard.end_hash)
    _run_shards(bench, 4)
    assert bench.rows("store").keys() == {f"key {number}".encode() for number in range(10)}


def test_producers_of_shards_are_fenced(tmp_path: Path) -> None:
    bench = Bench(_counts(), {"in": 1, "out": 1})
    bench.send("in", "a", "x")
    _run_shards(bench, 4)
    bench.broker.groups["app"].clear()
    plan = _reset(bench, ResetScope(application_id=APP), tmp_path)
    assert plan.transactional_ids
    assert bench.broker.fenced[-len(plan.transactional_ids) :] == list(plan.transactional_ids)


def test_the_group_of_a_backfill_is_deleted_and_its_writers_are_fenced(
    cluster: FakeBroker, tmp_path: Path
) -> None:
    written = CommittedOffset(7, "job")
    cluster.groups["shop:backfill"] = {
        TopicPartition("out", 0): written,
        TopicPartition("orders", 1): written,
    }
    cluster.groups["shop-eu:backfill"] = {TopicPartition("out", 0): written}
    admin, scope = _Admin(cluster), ResetScope(application_id="shop")
    plan = plan_reset(scope, gather_facts(scope, admin, tmp_path, "earliest"))
    assert plan.outputs_group == "shop:backfill"
    execute_reset(plan, admin, tmp_path)
    assert cluster.fenced == [
        "shop-backfill-out-orders-1",
        "shop-backfill-out-out-0",
        "shop-fixed-0",
        "shop-fixed-1",
    ]
    assert admin.groups("shop:") == ()
    assert admin.groups("shop-eu:") == ("shop-eu:backfill",)
    again = plan_reset(scope, gather_facts(scope, admin, tmp_path, "earliest"))
    assert again.outputs_group == ""


def test_outputs_of_a_backfill_alone_make_a_plan() -> None:
    facts = ResetFacts(topics={}, committed={}, targets={}, outputs=(TopicPartition("out", 0),))
    plan = plan_reset(ResetScope(application_id="shop"), facts)
    assert not plan.is_empty
    assert plan.notes == ()
