"""A slow cluster is waited for, and the wait is reported; a missing one is an error soon."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client import waits
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.client.waits import reported_wait


class Clock:
    """Time of the admin client: each request takes as long as it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def admin(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaAdmin]:
    settings = ClientSettings(bootstrap_servers="127.0.0.1:1", application_id="slow")
    made = KafkaAdmin(settings, timeout_s=300.0)

    class _Client:
        def list_topics(self, *, timeout: float) -> None: ...
        def poll(self, timeout: float) -> None: ...

    monkeypatch.setattr(made, "_client", _Client())
    yield made
    made.close()


def timed_out() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_a_slow_cluster_has_the_whole_time_in_requests_of_thirty_seconds(
    admin: KafkaAdmin, clock: Clock
) -> None:
    asked: list[float] = []

    def answer_at_last(left_s: float) -> str:
        asked.append(left_s)
        clock.sleep(left_s)
        if clock.now_s < 200:
            raise timed_out()
        return "topics"

    assert admin._ask("list topics", answer_at_last) == "topics"
    assert set(asked) == {30.0}
    assert 200 <= clock.now_s < 300


def test_a_call_that_gets_no_answer_ends_at_its_deadline(admin: KafkaAdmin, clock: Clock) -> None:
    def never(left_s: float) -> None:
        clock.sleep(left_s)
        raise timed_out()

    with pytest.raises(StreamsError, match="list topics"):
        admin._ask("list topics", never)
    assert 295 < clock.now_s < 305


def test_a_cluster_that_refuses_connections_is_no_slow_one(admin: KafkaAdmin, clock: Clock) -> None:
    def refused(left_s: float) -> None:
        admin._log.on_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
        clock.sleep(min(left_s, 2.0))
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with pytest.raises(StreamsError, match="list topics"):
        admin._ask("list topics", refused)
    assert 30 <= clock.now_s < 40
    assert admin._ask("list topics", lambda _: "back") == "back"
    assert admin._log.unreachable == ""


def test_a_lost_broker_is_awaited_with_a_metadata_request(
    admin: KafkaAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    lines: list[str] = []

    class _Client:
        def poll(self, timeout: float) -> None:
            if lines:
                admin._log.unreachable = lines.pop()

        def list_topics(self, *, timeout: float) -> None:
            calls.append("metadata")

    monkeypatch.setattr(admin, "_client", _Client())
    admin._ask("list topics", lambda _: calls.append("first"))
    admin._ask("list topics", lambda _: calls.append("second"))
    lines.append("Connection refused")
    admin._ask("list topics", lambda _: calls.append("third"))

    assert calls == ["metadata", "first", "second", "metadata", "third"]
    assert admin._log.unreachable == ""


@pytest.mark.parametrize(("unreachable", "limit_s"), [("", 300.0), ("Connection refused", 10.0)])
def test_the_first_answer_is_awaited_longer_from_a_broker_that_is_there(
    admin: KafkaAdmin,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    unreachable: str,
    limit_s: float,
) -> None:
    class _Client:
        def list_topics(self, *, timeout: float) -> None:
            clock.sleep(timeout)
            admin._log.unreachable = unreachable
            raise timed_out()

        def poll(self, timeout: float) -> None: ...

    monkeypatch.setattr(admin, "_client", _Client())
    with pytest.raises(StreamsError, match="can't reach a broker"):
        admin.reach(threading.Event(), unreachable_s=10.0)
    assert limit_s <= clock.now_s < limit_s * 3


def test_a_long_wait_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_FIRST_S", (0.01, 0.01))
    monkeypatch.setattr(waits, "_LATER_S", 0.01)
    reports: list[tuple[str, float]] = []
    enough = threading.Event()

    def on_wait(what: str, waited_s: float) -> None:
        reports.append((what, waited_s))
        if len(reports) == 4:
            enough.set()

    with reported_wait("list topics", on_wait):
        assert enough.wait(60)
    count = len(reports)
    assert {what for what, _ in reports} == {"list topics"}
    assert [waited_s for _, waited_s in reports] == sorted(waited_s for _, waited_s in reports)
    assert not [thread for thread in threading.enumerate() if thread.name == "tidewheel-waits"]
    assert len(reports) == count


def test_a_short_wait_is_not_reported() -> None:
    reports: list[str] = []
    with reported_wait("list topics", lambda what, _: reports.append(what)):
        pass
    assert reports == []
