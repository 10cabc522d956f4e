"""Programs of the suite `handoff`, and its queries of groups."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigResource, ResourceType

from benchmarks.environment.broker import SHORT_SESSIONS
from benchmarks.environment.peer_process import RunFailedError
from benchmarks.handoff.members import HANDOFF_SYSTEMS, configure_group

KILL = {
    "num_standby_replicas": "1",
    "session_timeout_ms": "1500",
    "heartbeat_interval_ms": "250",
}


class FakeAdmin:
    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[ConfigResource] = []
        self._error = error

    def incremental_alter_configs(
        self, resources: Sequence[ConfigResource]
    ) -> dict[ConfigResource, Future[None]]:
        self.asked += resources
        answer = Future[None]()
        if self._error is None:
            answer.set_result(None)
        else:
            answer.set_exception(self._error)
        return dict.fromkeys(resources, answer)


def test_a_row_has_its_systems_arguments() -> None:
    assert HANDOFF_SYSTEMS["tidewheel"].given(KILL) == {**KILL, "settling_ms": "0"}
    assert HANDOFF_SYSTEMS["kafka-streams-classic"].given(KILL) == {
        "protocol": "classic",
        "num_standby_replicas": "1",
        "session_timeout_ms": "6000",
        "heartbeat_interval_ms": "1500",
    }
    assert HANDOFF_SYSTEMS["kafka-streams"].given(KILL) == {**KILL, "protocol": "streams"}


def test_the_broker_gets_the_settings_that_streams_members_cannot_set() -> None:
    assert HANDOFF_SYSTEMS["kafka-streams"].group_config(KILL) == {
        "streams.session.timeout.ms": "1500",
        "streams.heartbeat.interval.ms": "250",
        "streams.num.standby.replicas": "1",
    }
    assert "streams.num.standby.replicas" not in HANDOFF_SYSTEMS["kafka-streams"].group_config({})
    for name in ("tidewheel", "kafka-streams-classic"):
        assert HANDOFF_SYSTEMS[name].group_config(KILL) == {}


def test_the_broker_that_is_started_allows_the_sessions_of_the_groups() -> None:
    config = HANDOFF_SYSTEMS["kafka-streams"].group_config({})
    for name in ("session.timeout.ms", "heartbeat.interval.ms"):
        assert SHORT_SESSIONS[f"group.streams.min.{name}"] <= int(config[f"streams.{name}"])


def test_a_group_is_configured() -> None:
    admin = FakeAdmin()
    configure_group(cast("AdminClient", admin), "g", {"streams.session.timeout.ms": "1500"})
    (asked,) = admin.asked
    assert (asked.restype, asked.name) == (ResourceType.GROUP, "g")
    assert [
        (setting.name, setting.value, setting.incremental_operation)
        for setting in asked.incremental_configs
    ] == [("streams.session.timeout.ms", "1500", AlterConfigOpType.SET)]


def test_a_broker_that_refuses_a_group_ends_the_run() -> None:
    admin = FakeAdmin(KafkaException(KafkaError(KafkaError.INVALID_CONFIG)))
    with pytest.raises(RunFailedError, match=r"streams\.session\.timeout\.ms"):
        configure_group(cast("AdminClient", admin), "g", {"streams.session.timeout.ms": "1"})
