"""Topics that appear or grow while an application runs: new tasks are given out, tasks gain inputs in place (N8, N12)."""

import re
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from streams import KafkaStreams, KafkaStreamsState, Materialized, RunOptions, StreamsBuilder
from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp

#: Looks for changes three times a second, and gives tasks to newcomers at once.
QUICK = {"settling_ms": 0, "consumer": {"topic.metadata.refresh.interval.ms": "300"}}

PLACES = [
    pytest.param(RunOptions(), id="group"),
    pytest.param(RunOptions(fixed=True), id="fixed"),
]


def _grow(cluster: Cluster, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in client.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result()


def _task_ids(app: KafkaStreams) -> list[str]:
    return [task.task_id for task in app.tasks() if task.state == "RUNNING"]


@pytest.mark.parametrize("place", PLACES)
def test_N12_a_topic_that_matches_later_is_read_too(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, place: RunOptions
) -> None:
    """A task gains an input in place and a new one appears; what was counted before is kept, nothing counts twice."""
    word = f"orders{unique}"
    cluster.create({f"{word}-a": 1})
    builder = StreamsBuilder()
    (
        builder.stream(re.compile(f"{word}-.*"), key_serde=str, value_serde=str)
        .group_by_key()
        .count(store=Materialized("counts"))
    )
    app = start_app(builder, config | QUICK, options=place)
    cluster.send(f"{word}-a", [(b"k", b"1"), (b"k", b"2")])
    cluster.wait_until_consumed(config["application_id"], f"{word}-a")

    cluster.create({f"{word}-b": 1})
    cluster.send(f"{word}-b", [(b"k", b"3")])
    cluster.wait_until_consumed(config["application_id"], f"{word}-a", f"{word}-b")
    cluster.send(f"{word}-a", [(b"k", b"4")])
    cluster.wait_until_consumed(config["application_id"], f"{word}-a", f"{word}-b")

    until(lambda: _task_ids(app) == ["0_0"], "the task runs")
    until(
        lambda: {key: row.value for key, row in app.store("counts").all()} == {"k": 4},
        "both inputs are counted",
    )


@pytest.mark.parametrize("place", PLACES)
def test_N8_partitions_that_are_added_become_tasks(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, place: RunOptions
) -> None:
    """Without state nothing stands against it."""
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 1, sink: 1})
    builder = StreamsBuilder()
    builder.stream(source, key_serde=str, value_serde=str).to(sink, key_serde=str, value_serde=str)
    app = start_app(builder, config | QUICK, options=place)
    until(lambda: _task_ids(app) == ["0_0"], "the first partition is read")
    _grow(cluster, source, 3)
    until(lambda: _task_ids(app) == ["0_0", "0_1", "0_2"], "each partition has a task")
    for partition in range(3):
        cluster.send(source, [(b"k", b"v")], partition=partition)
    until(lambda: len(cluster.read(sink)) == 3, "all of them are processed")


@pytest.mark.parametrize("place", PLACES)
def test_N8_partitions_that_do_not_fit_the_state_end_the_application(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, place: RunOptions
) -> None:
    """The changelog has as many partitions as the input had: keys would land elsewhere, so a person has to decide."""
    source = f"in-{unique}"
    cluster.create({source: 1})
    builder = StreamsBuilder()
    builder.stream(source, key_serde=str, value_serde=str).group_by_key().count(
        store=Materialized("counts")
    )
    app = start_app(builder, config | QUICK, options=place)
    _grow(cluster, source, 2)
    until(lambda: app.state is KafkaStreamsState.ERROR, "the application ends")
    changelog = f"{config['application_id']}-counts-changelog"
    assert f"{changelog} has 1 partitions but the application needs 2" in str(app.error)


def test_N12_a_pattern_may_match_nothing_at_first(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    """The changelog is made with the first topic, in its shape."""
    word = f"orders{unique}"
    builder = StreamsBuilder()
    (
        builder.stream(re.compile(f"{word}-.*"), key_serde=str, value_serde=str)
        .group_by_key()
        .count(store=Materialized("counts"))
    )
    app = start_app(builder, config | QUICK, options=RunOptions())
    assert app.tasks() == []
    cluster.create({f"{word}-a": 2})
    cluster.send(f"{word}-a", [(b"k", b"1")])
    cluster.wait_until_consumed(config["application_id"], f"{word}-a")
    until(lambda: _task_ids(app) == ["0_0", "0_1"], "both tasks run")
    until(
        lambda: {key: row.value for key, row in app.store("counts").all()} == {"k": 1},
        "the input is counted",
    )
