"""The first word with a cluster, where there is none: it is said early, and a worker that is told to stop does."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.errors import StreamsError
from streams.exit_codes import ExitCode, exit_code_of
from streams.kafka import admin as admin_module
from streams.kafka.admin import KafkaAdmin
from streams.kafka.settings import ClientSettings
from tasks.ports import NewTopic, UnansweredError

NOBODY = "127.0.0.1:1"


@pytest.fixture
def admin() -> Iterator[KafkaAdmin]:
    """An admin client of a cluster that is not there, with a second's patience."""
    settings = ClientSettings(bootstrap_servers=NOBODY, application_id="lonely")
    made = KafkaAdmin(settings, timeout_s=1.0)
    yield made
    made.close()


@pytest.mark.slow
def test_a_broker_that_is_away_is_named_long_before_it_is_given_up(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the address and the reason; then an error that says what to check."""
    monkeypatch.setattr(admin_module, "_QUIET_S", 0.0)
    with pytest.raises(
        StreamsError, match=f"can't reach a broker at {NOBODY} .*; check that the"
    ) as caught:
        admin.reach(threading.Event())
    assert exit_code_of(caught.value) is ExitCode.KAFKA_UNREACHABLE
    (said,) = [line for line in caplog.messages if line.endswith("; trying on")]
    assert "failed: Connection refused)" in said
    assert "after " not in said


@pytest.mark.parametrize("told", [{}, {"offsets.retention.minutes": None}])
def test_brokers_that_do_not_tell_their_retention_are_an_error_that_says_so(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch, told: dict[str, None]
) -> None:
    """As services do that run Kafka for others: they leave settings out, or their values."""
    cluster = SimpleNamespace(controller=SimpleNamespace(id=1))
    settings = {name: SimpleNamespace(value=value) for name, value in told.items()}
    monkeypatch.setattr(admin, "_ask", lambda *_: cluster)
    monkeypatch.setattr(admin, "_each", lambda *_: defaultdict(lambda: settings))
    with pytest.raises(StreamsError, match=r"offsets\.retention\.minutes of a broker: it does not"):
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


def test_who_is_to_stop_does_not_wait_for_a_broker(admin: KafkaAdmin) -> None:
    """Also not if it is told before it has asked."""
    stopped = threading.Event()
    stopped.set()
    assert not admin.reach(stopped)


@pytest.mark.slow
def test_waiting_for_a_broker_ends_when_it_is_told_to(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the question that is under way; nothing is raised and nothing is given up."""
    monkeypatch.setattr(admin, "_timeout_s", 60.0)
    stopped = threading.Event()
    client = admin._client
    asked: list[float] = []

    class _Told:
        """Is told to stop while it asks for the second time."""

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


def test_a_client_that_is_closed_while_it_is_asked_says_so(admin: KafkaAdmin) -> None:
    """The question is one thread's, and the end of a program another's."""

    def asked_while_it_closes(left_s: float) -> None:
        admin.close()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left_s} s"))

    with pytest.raises(StreamsError, match="list topics: given up, because the client was closed"):
        admin._ask("list topics", asked_while_it_closes)
