"""Deleted topics of a worker's input: a pattern's topics may vanish, named ones may not."""

import re

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tidewheel import MissingSourceTopicError, StreamsBuilder, StreamsError
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, is_matched, plan_application
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.loop.task_manager import AssignedTasks
from tidewheel.tasks.restore.offset_origin import StartRules
from tidewheel.tasks.restore.start_positions import Grant, find_granted_starts
from tidewheel.tasks.task.worker_input import DeletedTopics

GONE = "orders-b"


def _plan(**topics: int) -> ApplicationPlan:
    builder = StreamsBuilder()
    builder.stream(re.compile("orders-.*"), key_serde=str, value_serde=str).to("out")
    builder.stream("fixed", key_serde=str, value_serde=str).to("out")
    counts = {name.replace("_", "-"): count for name, count in topics.items()}
    return plan_application(builder.build().spec(), "app", {"fixed": 1} | counts)


class Clock:
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Work:
    """A `WorkerInput` that fails once."""

    def __init__(self, error: StreamsError) -> None:
        self.error: StreamsError | None = error
        self.forgotten: list[str] = []

    def fetch(self, ready: object, idle_s: object) -> int:
        del ready, idle_s
        error, self.error = self.error, None
        if error is not None:
            raise error
        return 7

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)


class Stage:
    """A worker whose client reports a deleted topic."""

    def __init__(self, topic: str | None) -> None:
        self.clock = Clock()
        self.work = Work(MissingSourceTopicError(f"input {topic}-0 does not exist", topic=topic))
        self.checks = 0
        self.gone = DeletedTopics(
            self.work,  # type: ignore[arg-type]  # has the used methods
            _plan(orders_a=1, orders_b=3),
            self.clock,  # type: ignore[arg-type]  # likewise
            self.check_topics,
        )

    def check_topics(self) -> None:
        self.checks += 1

    def fetch(self) -> int:
        self.gone.check()
        return self.gone.fetch([], lambda: 0.0)


def test_N12_a_deleted_topic_of_a_pattern_is_no_longer_read() -> None:
    stage = Stage(GONE)
    assert stage.fetch() == 0
    assert stage.work.forgotten == [GONE]
    assert [stage.fetch(), stage.fetch()] == [7, 7]
    assert stage.checks == 1
    stage.clock.now_s += 1
    assert stage.fetch() == 7
    assert stage.checks == 2


@pytest.mark.parametrize("topic", ["fixed", "of-others", None])
def test_a_topic_that_the_topology_names_ends_the_worker(topic: str | None) -> None:
    stage = Stage(topic)
    with pytest.raises(MissingSourceTopicError, match="does not exist"):
        stage.fetch()
    assert not stage.work.forgotten


def test_without_a_new_plan_a_deleted_topic_ends_the_worker() -> None:
    stage = Stage(GONE)
    stage.fetch()
    stage.clock.now_s += 59
    assert stage.fetch() == 7
    stage.clock.now_s += 1
    with pytest.raises(MissingSourceTopicError, match=GONE):
        stage.fetch()


def test_only_topics_of_patterns_may_vanish() -> None:
    plan = _plan(orders_a=1, orders_b=3)
    read = {
        topic
        for subtopology in plan.subtopologies.values()
        for topic in subtopology.topic_partitions
    }
    assert {topic for topic in read if is_matched(plan, topic)} == {"orders-a", GONE}


def test_the_position_of_a_deleted_topic_blocks_no_start() -> None:
    broker = FakeBroker()
    for topic in ("orders-a", "fixed"):
        broker.create_topic(topic, 1)
    admin = FakeAdmin(broker)
    here, gone = TopicPartition("orders-a", 0), TopicPartition(GONE, 0)
    progress = Progress(
        task_epoch=1,
        transactional_id="app-a-0",
        topic_id=broker.topics["orders-a"].topic_id,
        topology_hash=bytes(8),
        vector=Vector.at(0),
    )
    broker.groups["app"][here] = CommittedOffset(0, progress.encode())
    ids = {name: topic.topic_id for name, topic in admin.describe_topics(["orders-a"]).items()}

    def starts(**floors: int) -> object:
        grant = Grant(task_epoch=2, input={here: floors["here"], gone: 33})
        return find_granted_starts(
            _plan(orders_a=1),
            {TaskId(0, 0): grant},
            admin=admin,
            rules=StartRules(group_id="app"),
            topic_ids=ids,
        )

    assert starts(here=0)
    with pytest.raises(StreamsError, match="orders-a-0: the last owner left it at offset 1"):
        starts(here=1)


def test_a_recreated_topic_is_a_new_one() -> None:
    here, gone = TopicPartition("orders-a", 0), TopicPartition(GONE, 0)
    held = AssignedTasks(owned={TaskId(0, 0): Grant(task_epoch=2, input={here: 5, gone: 33})})
    held.drop_missing_inputs(_plan(orders_a=1, orders_b=1))
    assert held.owned[TaskId(0, 0)].input == {here: 5, gone: 33}
    held.drop_missing_inputs(_plan(orders_a=1))
    assert held.owned[TaskId(0, 0)] == Grant(task_epoch=2, input={here: 5})
