"""First contact without a cluster: early message, immediate stop."""

import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.exit_codes import ExitCode, exit_code_of
from tidewheel.streams.kafka.admin import admin as admin_module
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.client_log import away
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.tasks.kafka.ports import NewTopic, UnansweredError

NOBODY = "127.0.0.1:1"


@pytest.fixture
def admin() -> Iterator[KafkaAdmin]:
    settings = ClientSettings(bootstrap_servers=NOBODY, application_id="lonely")
    made = KafkaAdmin(settings, timeout_s=1.0)
    yield made
    made.close()


@pytest.mark.slow
def test_an_unreachable_broker_is_named_long_before_the_timeout(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_module, "_QUIET_S", 0.0)
    away.clear()
    with pytest.raises(
        StreamsError, match=f"can't reach a broker at {NOBODY} .*; check that the"
    ) as caught:
        admin.reach(threading.Event())
    assert exit_code_of(caught.value) is ExitCode.KAFKA_UNREACHABLE
    (said,) = [line for line in caplog.messages if "can't be reached" in line]
    assert said.startswith(f"broker {NOBODY} can't be reached: Connection refused; check that")


@pytest.mark.slow
def test_without_a_limit_it_waits_for_a_broker_until_it_is_stopped(admin: KafkaAdmin) -> None:
    stopped = threading.Event()
    stop = threading.Timer(1.0, stopped.set)
    stop.start()
    assert not admin.reach(stopped, timeout_s=math.inf)
    stop.join()


@pytest.mark.parametrize("told", [{}, {"offsets.retention.minutes": None}])
def test_brokers_without_a_retention_setting_are_an_error_with_the_cause(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch, told: dict[str, None]
) -> None:
    cluster = SimpleNamespace(controller=SimpleNamespace(id=1))
    settings = {name: SimpleNamespace(value=value) for name, value in told.items()}
    monkeypatch.setattr(admin, "_ask", lambda *_: cluster)
    monkeypatch.setattr(admin, "_each", lambda *_, **__: defaultdict(lambda: settings))
    with pytest.raises(
        StreamsError, match=r"offsets\.retention\.minutes of a broker: the broker hides"
    ):
        admin.offsets_retention_ms()


@pytest.mark.slow
def test_created_topics_that_get_no_leader_in_time_are_an_unanswered_call(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may ask again: the topics exist, and their brokers are away."""
    leaderless = SimpleNamespace(partitions=[SimpleNamespace(leader=None)])
    monkeypatch.setattr(admin, "_each", lambda *_, **__: {"orders": leaderless})
    with pytest.raises(UnansweredError, match="orders"):
        admin.create_topics([NewTopic(name="orders", partitions=1)])


def test_a_stopped_caller_does_not_wait_for_a_broker(admin: KafkaAdmin) -> None:
    stopped = threading.Event()
    stopped.set()
    assert not admin.reach(stopped)


@pytest.mark.slow
def test_waiting_for_a_broker_ends_when_the_caller_stops(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_timeout_s", 60.0)
    stopped = threading.Event()
    client = admin._client
    asked: list[float] = []

    class _Told:
        def list_topics(self, *, timeout: float) -> None:
            asked.append(timeout)
            if len(asked) == 2:
                stopped.set()
            client.list_topics(timeout=timeout)

        def poll(self, timeout: float) -> None:
            client.poll(timeout)

    monkeypatch.setattr(admin, "_client", _Told())
    assert not admin.reach(stopped)
    assert len(asked) == 2
    assert max(asked) <= 1.0


def test_a_client_closed_during_a_request_raises_an_error_that_names_the_close(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_client", SimpleNamespace(poll=lambda _: None))
    monkeypatch.setattr(admin, "_is_away", False)

    def asked_while_it_closes(left_s: float) -> None:
        admin.close()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left_s} s"))

    with pytest.raises(StreamsError, match="list topics: given up, because the client was closed"):
        admin._ask("list topics", asked_while_it_closes)


def test_groups_are_listed_again_while_a_coordinator_loads(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    answers = [
        SimpleNamespace(errors=[loading], valid=[]),
        SimpleNamespace(errors=[], valid=[SimpleNamespace(group_id="shop")]),
    ]

    class _Client:
        def list_consumer_groups(self, *, request_timeout: float) -> Future[SimpleNamespace]:
            answered: Future[SimpleNamespace] = Future()
            answered.set_result(answers.pop(0))
            return answered

        def list_topics(self, *, timeout: float) -> None: ...
        def poll(self, timeout: float) -> None: ...

    monkeypatch.setattr(admin, "_client", _Client())
    monkeypatch.setattr(admin, "_timeout_s", 60.0)
    assert admin.groups("sh") == ("shop",)


def test_client_ids_of_other_programs_steer_no_terminal(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = SimpleNamespace(client_id="a\x1b[2J\nb", host="/h\x07")
    groups = {"g": SimpleNamespace(members=[forged])}
    monkeypatch.setattr(admin, "_each", lambda *_, **__: groups)
    assert admin.fixed_workers("shop") == {"a [2J b": "h "}
    assert admin.group_members("shop") == ("'a [2J b' on h ",)
