"""Requests about tasks of other workers."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin, FakeTransactionalProducer
from tests.fakes.clock import FakeClock
from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TopicPartition
from tidewheel.state_stores.layout.position import Position
from tidewheel.tasks.kafka.ports import CommittedOffset, UnsettledOffsetsError
from tidewheel.tasks.restore.offset_origin import StartRules
from tidewheel.tasks.restore.restore_planner import RestorePlanner
from tidewheel.tasks.restore.start_positions import Grant


def test_copies_get_ready_while_commits_of_their_owners_are_undecided() -> None:
    broker, partition = FakeBroker(), TopicPartition("in", 0)
    broker.create_topic("in", 1)
    admin = FakeAdmin(broker)
    owner = FakeTransactionalProducer(broker, "app-fixed-0")
    owner.init()
    owner.begin()
    owner.send_offsets("app", {partition: CommittedOffset(7, "")})
    with pytest.raises(UnsettledOffsetsError):
        admin.committed("app", [partition], stable=True)
    planner = RestorePlanner(
        lambda: pytest.fail("no restore is planned"),
        admin,
        FakeClock(),
        rules=StartRules(group_id="app"),
        topology_hash=b"hash",
    )
    copy: Any = SimpleNamespace(
        task_id=TaskId(0, 0),
        inputs=[partition],
        stores=SimpleNamespace(
            specs={"windows": SimpleNamespace(kept_longer_ms=1)}, slowest_position_ms=None
        ),
    )
    planner.refresh_slowest_positions([copy])
    seen, copy.stores.slowest_position_ms = copy.stores.slowest_position_ms, None
    assert seen is not None
    planner.prepare_promotions([copy])
    assert copy.stores.slowest_position_ms == seen


def test_K8_a_shard_restores_past_an_open_transaction_of_another_and_keeps_its_store() -> None:
    """After a fence: up to the stable offset its own last rows would be missing."""
    broker, clock, topic = FakeBroker(), FakeClock(), "app-counts-changelog"
    broker.create_topic(topic, 1)
    other, own = (FakeTransactionalProducer(broker, f"app-{name}") for name in ("other", "own"))
    for producer, rows in ((other, 1), (own, 3)):
        producer.init()
        producer.begin()
        keys = [b"%d" % number for number in range(rows)]
        producer.produce_changelog(TopicPartition(topic, 0), keys, keys, [0] * rows)
    own.commit("app", {})
    at = ShardInput.of(TopicPartition(topic, 0), Shard(1, 4))
    admin = FakeAdmin(broker)
    position = Position(
        offset=3,
        topic_id=admin.describe_topics([topic])[topic].topic_id,
        written_at_ms=clock.now_ms(),
    )
    task: Any = SimpleNamespace(
        task_id=TaskId(0, 0, at.shard),
        inputs=[],
        stores=SimpleNamespace(
            changelogs={at: "counts"},
            sources={},
            specs={},
            topic_ids={},
            position=lambda _: position,
            forget=lambda _: pytest.fail("the store is emptied"),
        ),
    )
    planner = RestorePlanner(
        lambda: pytest.fail("the end is not below the position"),
        admin,
        clock,
        rules=StartRules(group_id="app"),
        topology_hash=b"hash",
    )
    facts = planner.read_log_facts([task])
    assert facts[at].stable == 0
    (restore,) = planner.restores(task, facts, starts={}, grant=Grant(), complete=False)
    assert (restore.start, restore.end) == (3, facts[at].end)
    assert facts[at].end > 4
