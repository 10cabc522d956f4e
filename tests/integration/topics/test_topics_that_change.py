"""Topics that appear or grow during a run: new tasks, and new inputs of tasks (N8, N12)."""

import re
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import (
    KafkaStreams,
    KafkaStreamsState,
    KeyValueStore,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    RunOptions,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.rebalance.inspect.describe import GroupPhase
from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.group_access import access_to
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic

#: Polls metadata three times a second, and assigns tasks to newcomers immediately.
QUICK = {"settling_ms": 0, "consumer": {"topic.metadata.refresh.interval.ms": "300"}}

PLACES = [
    pytest.param(RunOptions(), id="group"),
    pytest.param(RunOptions(fixed=True), id="fixed"),
]


def _task_ids(app: KafkaStreams) -> list[str]:
    return [task.task_id for task in app.tasks() if task.state == "RUNNING"]


@pytest.mark.parametrize("place", PLACES)
def test_N12_a_topic_that_matches_later_is_read_too(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, place: RunOptions
) -> None:
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


@pytest.mark.fault("37")
@pytest.mark.parametrize("place", PLACES)
def test_N8_added_partitions_become_tasks(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, place: RunOptions
) -> None:
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 4, sink: 1})
    builder = StreamsBuilder()
    builder.stream(source, key_serde=str, value_serde=str).to(sink, key_serde=str, value_serde=str)
    tasks = [f"0_{number}" for number in range(8)]
    app = start_app(builder, config | QUICK, options=place)
    until(lambda: _task_ids(app) == tasks[:4], "the first partitions are read")
    cluster.add_partitions(source, 8)
    until(lambda: _task_ids(app) == tasks, "each partition has a task")
    for partition in range(8):
        cluster.send(source, [(b"k%d" % partition, b"v")], partition=partition)
    cluster.wait_until_consumed(config["application_id"], source)
    keys = sorted(record.key for record in cluster.read(sink))
    assert keys == [b"k%d" % partition for partition in range(8)], "each is read once"


class _Tracing(Processor[str, str, str, str]):
    """Counts by key, and writes the task and the count of each record."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self._context = context
        self._store: KeyValueStore[str, int] = context.get_state_store("counts")

    def process(self, record: Record[str, str]) -> None:
        count = (self._store.get(record.key) or 0) + 1
        self._store.put(record.key, count)
        self._context.forward(record.replace(value=f"{self._context.task_id} {count}"))


def _traced(source: str, sink: str, *, repartitioned: bool) -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("counts", key_serde=str, value_serde=Serdes.int64()))
    stream = builder.stream(source, key_serde=str, value_serde=str)
    if repartitioned:
        stream = stream.repartition(name="again", key_serde=str, value_serde=str)
    stream.process(_Tracing, stores=["counts"]).to(sink, key_serde=str, value_serde=str)
    return builder


def _assert_one_task_per_key(cluster: Cluster, sink: str) -> None:
    for key, values in cluster.values_by_key(sink).items():
        rows = [(value or b"").decode().split() for value in values]
        assert len({task for task, _ in rows}) == 1, f"{key!r}: {rows}"
        assert [int(number) for _, number in rows] == list(range(1, len(rows) + 1)), key


@pytest.mark.fault("37")
@pytest.mark.parametrize("repartitioned", [False, True], ids=["direct", "repartitioned"])
@pytest.mark.parametrize("place", PLACES)
def test_N8_partitions_that_do_not_fit_the_state_end_the_application(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    place: RunOptions,
    repartitioned: bool,
) -> None:
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 4, sink: 1})
    keys = [(b"key-%d" % number, b"x") for number in range(40)]
    built = partial(_traced, source, sink, repartitioned=repartitioned)
    app = start_app(built(), config | QUICK, options=place)
    cluster.send(source, keys)
    until(lambda: len(cluster.read(sink)) == len(keys), "the first records are counted")

    cluster.add_partitions(source, 8)
    cluster.send(source, keys)  # half of the keys are in other partitions now
    assert {record.partition for record in cluster.read(source)} > set(range(4))
    until(lambda: app.state is KafkaStreamsState.ERROR, "the application ends")
    internal = "again-repartition" if repartitioned else "counts-changelog"
    needs = f"{config['application_id']}-{internal} has 4 partitions but the application needs 8"
    assert needs in str(app.error)
    assert app.close(timeout=30_000)

    again = start_app(built(), config | QUICK, options=place, wait=False)
    until(lambda: again.state is KafkaStreamsState.ERROR, "the next start is refused, too")
    assert needs in str(again.error)
    _assert_one_task_per_key(cluster, sink)


def test_N12_a_pattern_may_match_nothing_at_first(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
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


PATTERN = """
import re

from tidewheel import StreamsBuilder

builder = StreamsBuilder()
builder.stream(re.compile("{word}-.*"), key_serde=str, value_serde=str).group_by_key().count(store="counts")
topology = builder.build()
"""


def _lose_control_topics(cluster: Cluster, app_id: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in client.delete_topics([state_topic(app_id), inbox_topic(app_id)]).values():
        future.result()


@pytest.mark.fault("36")
def test_H24_a_group_that_lost_its_topics_before_its_first_commit_is_recovered(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, tmp_path: Path
) -> None:
    app_id, word = config["application_id"], f"orders{unique}"
    builder = StreamsBuilder()
    source = builder.stream(re.compile(f"{word}-.*"), key_serde=str, value_serde=str)
    source.group_by_key().count(store=Materialized("counts"))
    app = start_app(builder, config | QUICK, options=RunOptions())
    _lose_control_topics(cluster, app_id)
    file = tmp_path / f"program_{secrets.token_hex(4)}.py"  # Python loads a module once per name
    file.write_text(PATTERN.format(word=word), encoding="utf-8")
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    target = (f"{file}:topology", "--application-id", app_id)
    recover = ["group", "recover", *target, "--execute", *servers]
    # A leader that has not noticed the loss yet fences the command, which asks to be run again.
    until(lambda: main(recover) == ExitCode.OK, "the group is recovered")
    cluster.create({f"{word}-a": 1})
    cluster.send(f"{word}-a", [(b"k", b"1")])
    cluster.wait_until_consumed(app_id, f"{word}-a")
    until(
        lambda: {key: row.value for key, row in app.store("counts").all()} == {"k": 1},
        "the input is counted",
    )


def test_H24_a_worker_of_a_held_group_closes_immediately(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    source = f"in-{unique}"
    cluster.create({source: 1})
    builder = StreamsBuilder()
    builder.stream(source, key_serde=str, value_serde=str).group_by_key().count(store="counts")
    app = start_app(builder, config | QUICK, options=RunOptions())
    cluster.send(source, [(b"k", b"1")])
    cluster.wait_until_consumed(config["application_id"], source)
    _lose_control_topics(cluster, config["application_id"])
    began_s = time.monotonic()
    assert app.drain(30_000)
    assert time.monotonic() - began_s < 25
    assert app.error is None


def _of_all(word: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    topics = re.compile(f"{word}-.*")
    builder.stream(topics, key_serde=str, value_serde=str).to(sink, key_serde=str, value_serde=str)
    return builder


def _delete(cluster: Cluster, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in client.delete_topics([topic]).values():
        future.result()


@pytest.mark.parametrize("place", PLACES)
def test_N12_tasks_of_a_deleted_pattern_topic_are_removed(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, place: RunOptions
) -> None:
    word, sink = f"orders{unique}", f"out-{unique}"
    cluster.create({f"{word}-a": 1, f"{word}-b": 3, sink: 1})
    app = start_app(_of_all(word, sink), config | QUICK, options=place)
    until(lambda: _task_ids(app) == ["0_0", "0_1", "0_2"], "each partition has a task")
    cluster.send(f"{word}-a", [(b"k", b"1")])
    for partition in range(3):
        cluster.send(f"{word}-b", [(b"k", b"2")], partition=partition)
    cluster.wait_until_consumed(config["application_id"], f"{word}-a", f"{word}-b")

    _delete(cluster, f"{word}-b")
    until(lambda: _task_ids(app) == ["0_0"], "one topic is left")
    cluster.send(f"{word}-a", [(b"k", b"3")])
    until(lambda: len(cluster.read(sink)) == 5, "the topic that is left is read on")

    cluster.create({f"{word}-b": 2})
    until(lambda: _task_ids(app) == ["0_0", "0_1"], "the new topic has its tasks")
    for partition in range(2):
        cluster.send(f"{word}-b", [(b"k", b"4")], partition=partition)
    until(lambda: len(cluster.read(sink)) == 7, "all of it is read")
    assert app.state is KafkaStreamsState.RUNNING


def test_N12_a_pattern_topic_deleted_before_the_start_has_no_tasks(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    word, sink = f"orders{unique}", f"out-{unique}"
    cluster.create({f"{word}-a": 1, f"{word}-b": 3, sink: 1})
    app = start_app(_of_all(word, sink), config | QUICK, options=RunOptions())
    until(lambda: _task_ids(app) == ["0_0", "0_1", "0_2"], "each partition has a task")
    for partition in range(3):
        cluster.send(f"{word}-b", [(b"k", b"1")], partition=partition)
    cluster.wait_until_consumed(config["application_id"], f"{word}-b")
    assert app.close(), "it lets go of its tasks"

    _delete(cluster, f"{word}-b")
    cluster.send(f"{word}-a", [(b"k", b"2")])
    app = start_app(_of_all(word, sink), config | QUICK, options=RunOptions())
    until(lambda: len(cluster.read(sink)) == 4, "the topic that is left is read on")
    assert _task_ids(app) == ["0_0"]
    with access_to(StreamsConfig(**config)) as group:
        status = group.read_status()
    assert status.phase == GroupPhase.RUNNING
    assert [(task.task, task.phase) for task in status.tasks] == [("0_0", "RUNNING")]
    assert not status.alarms

    cluster.create({f"{word}-b": 3})
    until(lambda: _task_ids(app) == ["0_0", "0_1", "0_2"], "the new topic has its tasks")
    for partition in range(3):
        cluster.send(f"{word}-b", [(b"k", b"3")], partition=partition)
    until(lambda: len(cluster.read(sink)) == 7, "all of it is read")
    assert app.state is KafkaStreamsState.RUNNING
