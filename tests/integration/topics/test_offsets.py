"""Starts on committed offsets that are foreign, deleted, or out of range."""

import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.processes import WorkerProcess
from tests.integration.programs.jobs import JOBS
from tidewheel import KafkaStreams, StreamsBuilder, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.processing.engine.output import ANY_PARTITION

RECORDS = [(b"key-%d" % (index % 10), b"x") for index in range(60)]


@pytest.fixture
def topics(cluster: Cluster, unique: str) -> tuple[str, str]:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 2})
    return f"in-{unique}", f"out-{unique}"


def _counts(numbers: range) -> dict[bytes, list[bytes]]:
    """Return the output of the ten keys, each with these counts."""
    return {b"key-%d" % key: [struct.pack(">q", each) for each in numbers] for key in range(10)}


def _refused(app: KafkaStreams) -> str:
    assert app.wait(timeout_s=PATIENCE_S)
    assert isinstance(app.error, StreamsError), app.error
    return str(app.error)


def _commit_as_a_stranger(cluster: Cluster, group: str, moved: dict[TopicPartition, int]) -> None:
    stranger = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    stranger.commit(
        offsets=[KafkaPartition(*each, offset) for each, offset in moved.items()],
        asynchronous=False,
    )
    stranger.close()


class _Offsets:
    """Workers under exactly_once, and offsets that other programs set while none of them runs."""

    def __init__(
        self,
        cluster: Cluster,
        start_worker: StartWorker,
        config: dict[str, Any],
        topics: tuple[str, str],
        *,
        fixed: bool,
    ) -> None:
        self._cluster, self._start_worker, self._config = cluster, start_worker, config
        self.source, self.sink = topics
        self.group: str = config["application_id"]
        self._fixed = fixed
        self._starts = 0
        self.left: dict[TopicPartition, int] = {}

    def start(self, **settings: Any) -> WorkerProcess:
        self._starts += 1
        worker = self._start_worker(f"worker-{self._starts}")
        config = self._config | settings
        worker.go("count_by_key", self.source, self.sink, config, fixed=self._fixed)
        return worker

    def run(self, **settings: Any) -> WorkerProcess:
        """Return a worker that has processed everything."""
        worker = self.start(**settings)
        worker.wait_until_running()
        self._cluster.wait_until_consumed(self.group, self.source)
        return worker

    def end(self, worker: WorkerProcess, *, killed: bool = False) -> None:
        if killed:
            worker.kill()
        else:
            assert worker.stop() == ExitCode.OK, worker.log[-4000:]
        self.left = self._cluster.committed(self.group)

    def is_refused(self, *reasons: str) -> None:
        """Check that a start is refused for one of these reasons, and names the ways out."""
        worker = self.start()
        assert worker.wait() == ExitCode.START_REFUSED, worker.log[-4000:]
        error = worker.log.rpartition(" ended by StartRefusedError: ")[2]
        assert any(reason in error for reason in reasons), error
        assert "accept_offsets" in error
        assert "tidewheel reset" in error
        assert self._cluster.values_by_key(self.sink) == _counts(range(1, 7))

    def refuses(self, change: Callable[[int], int], *, of_a_consumer: bool = False) -> None:
        """Check that starts on changed offsets are refused; a consumer or a tool commits them."""
        moved = {partition: change(offset) for partition, offset in self.left.items()}
        if of_a_consumer:
            _commit_as_a_stranger(self._cluster, self.group, moved)
        else:
            self._cluster.admin.alter_committed(self.group, moved)
        self.is_refused(*(f"offset {offset}" for offset in moved.values()))


@pytest.mark.fault("49")
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "group"])
def test_offsets_of_another_program_are_refused_until_accepted(
    cluster: Cluster,
    start_worker: StartWorker,
    config: dict[str, Any],
    topics: tuple[str, str],
    fixed: bool,
    killed: bool,
) -> None:
    offsets = _Offsets(cluster, start_worker, config, topics, fixed=fixed)
    cluster.send(offsets.source, RECORDS)
    offsets.end(offsets.run(), killed=killed)
    left = offsets.left
    assert min(left.values()) > 1
    cluster.send(offsets.source, RECORDS)

    offsets.refuses(lambda offset: offset + 5, of_a_consumer=True)
    offsets.refuses(lambda offset: offset - 1, of_a_consumer=True)
    offsets.refuses(lambda offset: offset + 5)
    offsets.refuses(lambda _: 0)
    cluster.admin.delete_group(offsets.group)
    offsets.is_refused("nothing is")

    cluster.admin.alter_committed(offsets.group, {each: at + 1 for each, at in left.items()})
    offsets.end(offsets.run(accept_offsets=True))
    offsets.end(offsets.run())
    output = cluster.values_by_key(offsets.sink)
    assert sum(map(len, output.values())) == 2 * len(RECORDS) - len(left)
    expected = _counts(range(1, 13))
    continued = {key: expected[key][: len(values)] for key, values in output.items()}
    assert output == continued, "each count continues from the state"


@pytest.mark.fault("49")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "group"])
def test_moved_and_deleted_offsets_are_refused_under_at_least_once(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    topics: tuple[str, str],
    fixed: bool,
) -> None:
    source, sink = topics
    config |= {"processing_guarantee": "at_least_once"}
    options = RunOptions(fixed=fixed)
    name = config["application_id"]
    cluster.send(source, RECORDS)
    app = start_app(JOBS["count_by_key"](source, sink), config, options=options)
    cluster.wait_until_consumed(name, source)
    assert app.close(timeout=30_000)
    left = cluster.committed(name)
    cluster.send(source, RECORDS)

    cluster.admin.alter_committed(name, {each: at + 5 for each, at in left.items()})
    refused = start_app(JOBS["count_by_key"](source, sink), config, options=options, wait=False)
    assert "was not committed by application" in _refused(refused)

    cluster.admin.delete_group(name)
    refused = start_app(JOBS["count_by_key"](source, sink), config, options=options, wait=False)
    assert "nothing is committed" in _refused(refused) or "but nothing is" in str(refused.error)
    assert cluster.values_by_key(sink) == _counts(range(1, 7))

    accepted = {each: at + 1 for each, at in left.items()}
    cluster.admin.alter_committed(name, accepted)
    for settings in (config | {"accept_offsets": True}, config):
        app = start_app(JOBS["count_by_key"](source, sink), settings, options=options)
        cluster.wait_until_consumed(name, source)
        assert app.close(timeout=30_000)
    outputs = sum(map(len, cluster.values_by_key(sink).values()))
    assert outputs == 2 * len(RECORDS) - len(accepted)


@pytest.mark.fault("57")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "group"])
def test_new_partitions_and_topics_are_read_from_their_beginning(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, fixed: bool
) -> None:
    sink, first, options = f"out-{unique}", f"in-{unique}-a", RunOptions(fixed=fixed)
    cluster.create({first: 1, sink: 1})
    config |= {
        "auto_offset_reset": "latest",
        "consumer": {"topic.metadata.refresh.interval.ms": "300"},
    }
    builder = StreamsBuilder()
    text: dict[str, Any] = {"key_serde": str, "value_serde": str}
    builder.stream(re.compile(f"in-{unique}-.*"), **text).to(sink, **text)

    def arrived(*keys: str) -> None:
        expected = {key.encode(): [b"x"] for key in keys}
        until(lambda: cluster.values_by_key(sink) == expected, f"{keys} in {sink}")

    def send(topic: str, key: str, partition: int = ANY_PARTITION) -> None:
        cluster.send(topic, [(key.encode(), b"x")], partition=partition)

    send(first, "before")
    app = start_app(builder, config, options=options)
    until(lambda: cluster.committed(config["application_id"]), "the first commit")
    cluster.create({f"in-{unique}-b": 2})
    send(f"in-{unique}-b", "topic")
    cluster.add_partitions(first, 2)
    send(first, "partition", 1)
    arrived("topic", "partition")
    assert app.close(timeout=30_000)
    cluster.create({f"in-{unique}-c": 1})
    send(f"in-{unique}-c", "topic while stopped")
    cluster.add_partitions(first, 3)
    send(first, "partition while stopped", 2)
    app = start_app(builder, config, options=options)
    arrived("topic", "partition", "topic while stopped", "partition while stopped")
    committed = cluster.committed(config["application_id"])
    assert {TopicPartition(first, number) for number in range(3)} <= committed.keys()
