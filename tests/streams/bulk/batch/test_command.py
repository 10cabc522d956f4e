"""`run_batch` rejects wrong frames before Spark starts."""

import re
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tidewheel import ConfigError, Processor, StreamsBuilder, StreamsConfig, Topology, TopologyError
from tidewheel.streams.bulk.batch.command import _config, _work_url, run_batch

_FRAME: Any = SimpleNamespace(sparkSession=None)
_CANARY = "canary-of-a-batch-run"


def _topology() -> Topology:
    builder = StreamsBuilder()
    users = builder.global_table("users", key_serde=str, value_serde=str, store="users")
    clicks = builder.stream("clicks", key_serde=str, value_serde=str)
    clicks.join(users, lambda click, user: f"{click}{user}", key_selector=lambda key, _: key).to(
        "out", value_serde=str
    )
    builder.stream("out", key_serde=str, value_serde=str).to("last")
    return builder.build()


def _reading(pattern: str) -> Topology:
    topology = Topology().add_source("read", re.compile(pattern), key_serde=str, value_serde=str)
    return topology.add_processor("work", Processor, ["read"])


@pytest.mark.parametrize(
    ("topology", "frames", "problem"),
    [
        (_topology(), {"clicks": _FRAME}, "reads users, but there is no frame"),
        (_topology(), {}, "reads clicks, users,"),
        (_topology(), {"clicks": _FRAME, "users": _FRAME, "shops": _FRAME}, "shops is not a source"),
        (_topology(), {"clicks": _FRAME, "users": _FRAME, "out": _FRAME}, "itself writes out"),
        (_topology(), {"clicks": _FRAME, "users": [1]}, "frame of users is of type list"),
        (_reading("in-.*"), {}, "in-"),
    ],
)  # fmt: skip
def test_wrong_frames_are_named(topology: Any, frames: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run_batch(topology, frames)


def test_a_builder_is_no_topology() -> None:
    builder: Any = StreamsBuilder()
    with pytest.raises(TopologyError, match="build"):
        run_batch(builder, {})


@pytest.mark.parametrize("partitions", [0, 1.5, True, None])
def test_partitions_are_counted_from_one(partitions: Any) -> None:
    with pytest.raises(ConfigError, match="partitions"):
        run_batch(_topology(), {"clicks": _FRAME, "users": _FRAME}, partitions=partitions)


def test_executors_of_a_cluster_need_a_common_folder() -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    with ExitStack() as stack, pytest.raises(ConfigError, match="work="):
        _work_url(stack, session, None)


def test_secrets_of_clients_stay_here() -> None:
    secret = {"sasl.password": _CANARY}
    config = StreamsConfig(
        application_id="app", kafka=secret, consumer=secret, producer=secret, admin=secret,
        http_token=_CANARY, dead_letter_queue_topic="dead",
    )  # fmt: skip
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    sent = _config(config)
    dump: Any = cloudpickle.dumps
    assert _CANARY.encode() in dump(config)
    assert _CANARY.encode() not in dump(sent)
    assert sent.dead_letter_queue_topic == "dead"
