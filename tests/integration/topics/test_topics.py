"""Topics: missing ones, internal ones, and topics deleted during a run."""

import time
from functools import partial
from typing import Any, Final

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import wait_for_counts
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import (
    KafkaStreamsState,
    MissingSourceTopicError,
    Serdes,
    StreamsBuilder,
    StreamsError,
)
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.worker.application.run_options import RunOptions

_RECORDS: Final = [(b"key-%d" % (index % 10), b"word-%d" % (index % 7)) for index in range(200)]


def _ends_with_error(app: Any) -> BaseException:
    until(lambda: app.state is KafkaStreamsState.ERROR or app.error, "the application ends")
    error = app.error
    assert isinstance(error, BaseException)
    return error


def _is_purged(cluster: Cluster, committed: dict[TopicPartition, int]) -> bool:
    beginnings = cluster.admin.beginning_offsets(list(committed))
    return all(start >= committed[partition] for partition, start in beginnings.items())


def test_missing_source_topic_is_named(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"out-{unique}": 1})

    app = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config, wait=False)

    error = _ends_with_error(app)
    assert isinstance(error, MissingSourceTopicError)
    assert f"in-{unique}" in str(error)
    assert "--wait-for-topics" in str(error)
    assert "--create-topics" in str(error)
    assert not [name for name in cluster.admin.list_topics() if config["application_id"] in name]


def test_waits_for_topics_if_configured(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.create({f"out-{unique}": 1})
    app = start_app(
        JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"),
        config,
        options=RunOptions(fixed=True, wait_for_topics=True),
        wait=False,
    )
    until(lambda: f"waiting for source topics: in-{unique}" in caplog.text, "it says so")
    assert app.state is KafkaStreamsState.REBALANCING

    cluster.create({f"in-{unique}": 2})
    cluster.send(f"in-{unique}", _RECORDS)

    assert app.wait_until_running(PATIENCE_S)
    cluster.wait_until_consumed(config["application_id"], f"in-{unique}")


def test_stops_while_it_waits_for_topics(
    start_app: StartApp, config: dict[str, Any], unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = start_app(
        JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"),
        config,
        options=RunOptions(fixed=True, wait_for_topics=True),
        wait=False,
    )
    until(lambda: "waiting for source topics" in caplog.text, "it waits")

    assert app.close(timeout=5_000)
    assert app.state is KafkaStreamsState.NOT_RUNNING
    assert app.error is None


def test_creates_topics_if_configured(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    start_app(
        JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"),
        config,
        options=RunOptions(fixed=True, create_topics=True),
    )

    assert {f"in-{unique}", f"out-{unique}"} <= cluster.admin.list_topics().keys()


def test_internal_topics_are_those_of_kafka_streams(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 3, f"out-{unique}": 1})
    start_app(JOBS["word_count"](f"in-{unique}", f"out-{unique}"), config)
    changelog = f"{config['application_id']}-{STORE}-changelog"
    repartition = f"{config['application_id']}-{STORE}-repartition"

    topics = cluster.admin.describe_topics(
        [changelog, repartition],
        config=["cleanup.policy", "retention.ms", "segment.bytes", "message.timestamp.type"],
    )

    assert {name: topic.partitions for name, topic in topics.items()} == {
        changelog: 3,
        repartition: 3,
    }
    assert topics[changelog].config["cleanup.policy"] == "compact"
    assert topics[changelog].config["message.timestamp.type"] == "CreateTime"
    assert topics[repartition].config == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": "52428800",
        "message.timestamp.type": "CreateTime",
    }


@pytest.mark.fault("53")
def test_internal_topics_accept_records_as_large_and_old_as_their_inputs(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 1}, max_message_bytes="4000000")
    now_ms = time.time_ns() // 1_000_000
    days = [0, 2, -30, 400]
    builder = StreamsBuilder()
    builder.stream(
        f"in-{unique}",
        key_serde=Serdes.string(),
        value_serde=Serdes.string(),
        timestamp_extractor=lambda record, _: now_ms + int(record.value[:4]) * 86_400_000,
    ).select_key(lambda value: value[:4]).group_by_key(key_serde=str).reduce(
        lambda _old, new: new, store="last"
    )
    cluster.send(f"in-{unique}", [(b"k", b"%4d" % day + b"x" * 1_500_000) for day in days])

    app = start_app(builder, config)
    until(
        lambda: app.error is not None or len(list(app.store("last").all())) == len(days),
        "all records are there",
    )
    assert app.error is None
    changelog = cluster.folded(f"{config['application_id']}-last-changelog")
    assert sorted(int(key) for key in changelog) == sorted(days)


def test_internal_topic_with_another_partition_count_is_refused(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 1})
    cluster.create({f"{config['application_id']}-{STORE}-changelog": 1})

    app = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config, wait=False)

    error = _ends_with_error(app)
    assert isinstance(error, StreamsError)
    assert f"{config['application_id']}-{STORE}-changelog has 1 partitions" in str(error)
    assert "needs 2" in str(error)


def test_processed_records_of_repartition_topics_are_purged(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 1})
    config["repartition_purge_interval_ms"] = 200
    repartition = f"{config['application_id']}-{STORE}-repartition"
    app = start_app(JOBS["word_count"](f"in-{unique}", f"out-{unique}"), config)

    for _ in range(3):
        cluster.send(f"in-{unique}", _RECORDS)
        cluster.wait_until_consumed(config["application_id"], f"in-{unique}")
        cluster.wait_until_consumed(config["application_id"], repartition)
        committed = {
            partition: offset
            for partition, offset in cluster.committed(config["application_id"]).items()
            if partition.topic == repartition
        }
        until(partial(_is_purged, cluster, committed), "everything committed is purged")

    wait_for_counts(app, STORE, 3 * len(_RECORDS))
    assert sum(row.value for _, row in app.store(STORE).all()) == 3 * len(_RECORDS)
    assert app.close(timeout=30_000)
    again = start_app(JOBS["word_count"](f"in-{unique}", f"out-{unique}"), config)
    assert sum(row.value for _, row in again.store(STORE).all()) == 3 * len(_RECORDS)


@pytest.mark.fault("36")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "group"])
def test_deleted_source_topic_ends_the_application(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, fixed: bool
) -> None:
    cluster.create({f"in-{unique}": 1, f"out-{unique}": 1})
    cluster.send(f"in-{unique}", _RECORDS)
    config["consumer"] = {
        "topic.metadata.refresh.interval.ms": 200,
        "topic.metadata.propagation.max.ms": 500,
    }
    job, options = JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), RunOptions(fixed=fixed)
    app = start_app(job, config, options=options)
    cluster.wait_until_consumed(config["application_id"], f"in-{unique}")

    cluster.admin.delete_topics([f"in-{unique}"])

    error = _ends_with_error(app)
    assert isinstance(error, StreamsError)
    assert f"in-{unique}" in str(error)
    again = start_app(job, config, options=options, wait=False)
    assert isinstance(_ends_with_error(again), MissingSourceTopicError)
    assert f"in-{unique}" in str(again.error)
    assert f"in-{unique}" not in cluster.admin.list_topics(), "it is not created again"


def test_source_topic_recreated_during_a_run_ends_the_application(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 1, f"out-{unique}": 1})
    cluster.send(f"in-{unique}", _RECORDS)
    app = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config)
    cluster.wait_until_consumed(config["application_id"], f"in-{unique}")

    cluster.admin.delete_topics([f"in-{unique}"])
    cluster.create({f"in-{unique}": 1})

    error = _ends_with_error(app)
    assert isinstance(error, StreamsError)
    assert f"in-{unique}" in str(error)


def test_records_deleted_before_processing_are_not_skipped_silently(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 1, f"out-{unique}": 1})
    cluster.send(f"in-{unique}", _RECORDS)
    app = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config)
    cluster.wait_until_consumed(config["application_id"], f"in-{unique}")
    assert app.close(timeout=30_000)
    cluster.send(f"in-{unique}", _RECORDS)
    cluster.admin.delete_records({TopicPartition(f"in-{unique}", 0): 300})

    again = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config, wait=False)

    error = _ends_with_error(again)
    assert f"committed offset 200 of in-{unique}-0" in str(error)
    assert "300 to 400" in str(error)


@pytest.mark.fault("41")
def test_foreign_consumer_of_the_same_group_is_refused(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    from confluent_kafka import Consumer  # noqa: PLC0415 - only here

    cluster.create({f"in-{unique}": 1, f"out-{unique}": 1})
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": config["application_id"],
            "client.id": "billing",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([f"in-{unique}"])
        deadline = time.monotonic() + 30
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline, "the consumer joins"

        app = start_app(JOBS["count_by_key"](f"in-{unique}", f"out-{unique}"), config, wait=False)
        error = _ends_with_error(app)
    finally:
        consumer.close()
    assert config["application_id"] in str(error)
    assert "1 subscribed members ('billing' on 127.0.0.1)" in str(error)
