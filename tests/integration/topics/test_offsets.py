"""Starts on committed offsets that are foreign, deleted, or out of range."""

import re
import struct
from typing import Any

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.programs.jobs import JOBS
from tidewheel import KafkaStreams, StreamsBuilder, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.worker.application.run_options import RunOptions

RECORDS = [(b"key-%d" % (index % 10), b"x") for index in range(60)]


@pytest.fixture
def topics(cluster: Cluster, unique: str) -> tuple[str, str]:
    cluster.create({f"in-{unique}": 2, f"out-{unique}": 2})
    return f"in-{unique}", f"out-{unique}"


def _refused(app: KafkaStreams) -> str:
    assert app.wait(timeout_s=PATIENCE_S)
    assert isinstance(app.error, StreamsError), app.error
    return str(app.error)


@pytest.mark.fault("49")
@pytest.mark.parametrize(
    ("fixed", "guarantee"),
    [(True, "exactly_once"), (False, "at_least_once")],
    ids=["fixed", "group"],
)
def test_moved_and_deleted_offsets_are_refused(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    topics: tuple[str, str],
    fixed: bool,
    guarantee: str,
) -> None:
    source, sink = topics
    config |= {"processing_guarantee": guarantee}
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
    assert cluster.values_by_key(sink) == {
        b"key-%d" % key: [struct.pack(">q", count) for count in range(1, 7)] for key in range(10)
    }

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

    cluster.send(first, [(b"before", b"x")])
    app = start_app(builder, config, options=options)
    until(lambda: cluster.committed(config["application_id"]), "the first commit")
    cluster.create({f"in-{unique}-b": 2})
    cluster.send(f"in-{unique}-b", [(b"new topic", b"x")])
    arrived("new topic")
    assert app.close(timeout=30_000)
    cluster.create({f"in-{unique}-c": 1})
    cluster.send(f"in-{unique}-c", [(b"while stopped", b"x")])
    app = start_app(builder, config, options=options)
    arrived("new topic", "while stopped")
    assert TopicPartition(first, 0) in cluster.committed(config["application_id"])
