"""Creation of topics before the first task."""

import logging
import threading
from typing import Any

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tests.fakes.clock import FakeClock
from tidewheel import (
    ConfigError,
    KafkaStreams,
    Materialized,
    MissingSourceTopicError,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    TopologyError,
)
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.streams.worker.topic_setup import prepare_topics, spec_of
from tidewheel.tasks.kafka.ports import CommittedOffset, NewTopic
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

STRING = Serdes.string()
HASH = b"topology"
_REPARTITION = "app-by-value-repartition"


class Admin(FakeAdmin):
    """Admin client whose default is three partitions."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.created: list[NewTopic] = []

    def create_topics(self, topics: Any) -> None:
        self.created += topics
        super().create_topics(
            [
                NewTopic(
                    name=each.name,
                    partitions=each.partitions if each.partitions > 0 else 3,
                    config=each.config,
                )
                for each in topics
            ]
        )


class Stage:
    """Application that counts by value."""

    def __init__(self, **topics: int) -> None:
        self.broker = FakeBroker()
        for name, partitions in topics.items():
            self.broker.create_topic(name.replace("_", "-"), partitions)
        self.admin = Admin(self.broker)
        self.stopped = threading.Event()
        self.clock = FakeClock()

    def prepare(self, **options: Any) -> Any:
        builder = StreamsBuilder()
        grouped = builder.stream("in", key_serde=STRING, value_serde=STRING).group_by(
            lambda v: v, key_serde=STRING, name="by-value"
        )
        counts = grouped.count(store=Materialized("counts"))
        if (output := options.pop("output", None)) is not None:
            counts.to_stream().to(output)
        settings = {
            name: options.pop(name)
            for name in ("replication_factor", "partition_shards")
            if name in options
        }
        config = StreamsConfig(application_id="app", bootstrap_servers="unused:9092", **settings)
        return prepare_topics(
            builder.build(config).spec(config),
            config,
            self.admin,
            options=RunOptions(**options),
            topology_hash=HASH,
            stopped=self.stopped,
            clock=self.clock,
        )


def test_internal_topics_are_created_with_their_partitions_and_configs() -> None:
    stage = Stage(**{"in": 4})
    plan = stage.prepare()
    assert [str(task) for task in plan.tasks] == [
        f"{sub}_{number}" for sub in (0, 1) for number in range(4)
    ]
    assert {
        topic.name: (topic.partitions, topic.replication_factor) for topic in stage.admin.created
    } == {
        "app-by-value-repartition": (4, -1),
        "app-counts-changelog": (4, -1),
    }
    assert stage.broker.topics["app-counts-changelog"].config["cleanup.policy"] == "compact"


def test_a_missing_output_topic_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(**{"in": 2})
    assert stage.prepare(output="totals") is not None
    (told,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "tidewheel topics create totals " in told.getMessage()
    assert "totals" not in stage.broker.topics


def test_missing_topics_of_users_are_created_on_request(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    assert stage.prepare(output="totals", create_topics=True) is not None
    assert {"in", "totals"} <= stage.broker.topics.keys()
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


def test_tasks_that_do_not_exist_are_refused_before_any_topic_is_created() -> None:
    stage = Stage(**{"in": 2})
    with pytest.raises(ConfigError, match=r"--tasks names 9_9, but .* tasks are 0_0, 0_1, 1_0"):
        stage.prepare(tasks=(TaskId(0, 0), TaskId(9, 9)))
    assert stage.admin.created == []


def test_tasks_are_shards_exactly_if_partitions_have_some() -> None:
    shard = TaskId.parse("1_0/1of2")
    plan = Stage(**{"in": 2}).prepare(partition_shards=2, tasks=(shard,))
    assert shard in plan.tasks
    for count, task in ((1, shard), (2, shard.whole), (4, shard)):
        with pytest.raises(ConfigError, match=f"{task}, but .* with partition_shards={count}"):
            Stage(**{"in": 2}).prepare(partition_shards=count, tasks=(task,))


def test_existing_topics_are_not_created_again() -> None:
    stage = Stage(**{"in": 4})
    stage.prepare()
    stage.admin.created.clear()
    stage.prepare()
    assert stage.admin.created == []
    with pytest.raises(StreamsError, match="app-counts-changelog has 2 partitions"):
        Stage(**{"in": 4, "app_counts_changelog": 2}).prepare()


def test_existing_internal_topics_with_lower_limits_than_inputs_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.broker.create_topic("in", 1, {"max.message.bytes": "5000000"})
    stage.broker.create_topic(
        "app-counts-changelog", 1, {"message.timestamp.after.max.ms": "3600000"}
    )
    stage.prepare()
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "--entity-name app-counts-changelog" in warning
    wanted = f"message.timestamp.after.max.ms={(1 << 63) - 1},max.message.bytes=5065536"
    assert f"--add-config {wanted}" in warning
    (made,) = stage.admin.created
    assert made.config["max.message.bytes"] == "5065536"


@pytest.mark.parametrize("group", ["app", "app~1of2"])
@pytest.mark.parametrize(("topology_hash", "refused"), [(HASH, True), (b"an older", False)])
def test_a_deleted_changelog_is_not_created_again(
    topology_hash: bytes, refused: bool, group: str
) -> None:
    stage = Stage(**{"in": 4})
    stage.prepare()
    progress = Progress(
        task_epoch=0,
        transactional_id="app-0",
        topic_id=stage.broker.topics[_REPARTITION].topic_id,
        topology_hash=topology_hash,
        vector=Vector.at(7),
    )
    committed = CommittedOffset(7, progress.encode())
    stage.broker.groups[group][TopicPartition(_REPARTITION, 0)] = committed
    stage.prepare()
    stage.broker.delete_topic("app-counts-changelog")
    stage.admin.created.clear()
    if refused:
        with pytest.raises(
            StreamsError,
            match=r"app-counts-changelog does not exist any more.*offset 7 of app-by-value-repartition-0",
        ):
            stage.prepare()
        assert stage.admin.created == []
    else:
        stage.prepare()
        assert [topic.name for topic in stage.admin.created] == ["app-counts-changelog"]


def test_the_replication_factor_is_the_settings() -> None:
    stage = Stage(**{"in": 1})
    stage.prepare(replication_factor=3)
    assert {topic.replication_factor for topic in stage.admin.created} == {3}


def test_a_missing_source_topic_is_an_error() -> None:
    stage = Stage()
    with pytest.raises(
        MissingSourceTopicError, match=r"in not found.*--wait-for-topics.*--create-topics"
    ):
        stage.prepare()
    assert stage.admin.created == []


def test_missing_source_topics_are_created_if_configured() -> None:
    stage = Stage()
    plan = stage.prepare(create_topics=True)
    assert [topic.name for topic in stage.admin.created] == [
        "in",
        "app-by-value-repartition",
        "app-counts-changelog",
    ]
    assert plan.subtopologies[0].partitions == 3


class Ticks(threading.Event):
    """Event that is set after some waits, with an action at each."""

    def __init__(self, stage: Stage, waits: int, arrives_at: int) -> None:
        super().__init__()
        self.stage, self.waits, self.arrives_at = stage, waits, arrives_at
        self.count = 0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.count += 1
        self.stage.clock.advance(int(timeout * 1000))
        if self.count == self.arrives_at:
            self.stage.broker.create_topic("in", 2)
        return self.count >= self.waits


def test_missing_source_topics_are_awaited_if_configured(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.stopped = Ticks(stage, waits=1_000, arrives_at=70)
    with caplog.at_level(logging.WARNING):
        plan = stage.prepare(wait_for_topics=True)
    assert plan.subtopologies[0].partitions == 2
    assert [
        message for message in caplog.messages if "waiting for source topics: in" in message
    ] != []
    assert len(caplog.messages) <= 4


def test_waiting_ends_when_the_application_stops() -> None:
    stage = Stage()
    stage.stopped = Ticks(stage, waits=5, arrives_at=0)
    assert stage.prepare(wait_for_topics=True) is None
    assert stage.admin.created == []


def test_internal_topic_names_that_are_too_long_are_refused_without_a_broker() -> None:
    builder = StreamsBuilder()
    counted = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    counted.count(store="s" * 60)
    config = StreamsConfig(application_id="a" * 180, bootstrap_servers="unused:9092")
    topology = builder.build(config)
    shorter = config.replace(application_id="a" * 178)
    assert spec_of(topology, shorter).subtopologies
    with pytest.raises(
        TopologyError, match=r"changelog of store s+ .*251 characters; Kafka allows 249"
    ):
        KafkaStreams(topology, config)
