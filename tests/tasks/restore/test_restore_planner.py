"""Requests about tasks of other workers."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin, FakeTransactionalProducer
from tests.fakes.clock import FakeClock
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.kafka.ports import CommittedOffset, UnsettledOffsetsError
from tidewheel.tasks.restore.offset_origin import StartRules
from tidewheel.tasks.restore.restore_planner import RestorePlanner


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
