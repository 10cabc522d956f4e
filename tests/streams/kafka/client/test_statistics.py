"""Statistics of librdkafka's clients: stored by a poll, read by another thread."""

import logging
import time
from typing import Any

import pytest

from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.client.statistics import INTERVAL_MS, ClientStatistics
from tidewheel.streams.kafka.clients import KafkaClients

_PATIENCE_S = 60.0


def delivered(statistics: ClientStatistics, client: str, poll: Any) -> bool:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        poll()
        if client in statistics.latest():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def statistics() -> ClientStatistics:
    return ClientStatistics()


@pytest.fixture
def clients(statistics: ClientStatistics) -> KafkaClients:
    return KafkaClients(
        bootstrap_servers="127.0.0.1:9",
        application_id="app",
        consumer={"statistics.interval.ms": 50},
        producer={"statistics.interval.ms": 50},
        statistics=statistics,
    )


def test_a_source_without_partitions_delivers_its_statistics_when_polled(
    clients: KafkaClients, statistics: ClientStatistics
) -> None:
    source = clients.source()
    source.assign({})
    assert delivered(statistics, "consumer", lambda: source.poll(100, 0))
    source.close()


def test_idle_producers_deliver_their_statistics_when_served(
    clients: KafkaClients, statistics: ClientStatistics
) -> None:
    producer, sinks = clients.transactional_producer("app-0", 10_000), clients.sink_producer()
    assert delivered(statistics, "producer", producer.serve)
    assert delivered(statistics, "sink-producer", sinks.serve)
    assert statistics.latest()["producer"].msg_size_max == 128 * 1024 * 1024
    producer.close()
    sinks.close()


def test_other_clients_and_those_without_a_collector_have_none(
    clients: KafkaClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "tidewheel.streams.kafka.consumers.consumer.make_client",
        lambda _make, _kind, config, _log: seen.append(config),
    )
    clients.changelog_reader()
    clients.global_reader()
    KafkaClients(bootstrap_servers="127.0.0.1:9", application_id="app").source()
    assert not any("stats_cb" in config for config in seen)
    assert "statistics.interval.ms" not in seen[-1]


def test_the_users_interval_and_callback_stay(statistics: ClientStatistics) -> None:
    texts: list[str] = []
    settings = ClientSettings(bootstrap_servers="127.0.0.1:9", application_id="app")
    plain = statistics.added_to("consumer", settings.source())
    assert plain["statistics.interval.ms"] == INTERVAL_MS
    own = statistics.added_to("consumer", {"statistics.interval.ms": 7, "stats_cb": texts.append})
    assert own["statistics.interval.ms"] == 7
    own["stats_cb"]('{"tx":3}')
    assert texts == ['{"tx":3}']
    assert statistics.latest()["consumer"].tx == 3


@pytest.mark.parametrize("text", ["", "{", '{"tx":"many"}', "[]", '{"brokers":3}', "\ud800", "7"])
def test_unreadable_statistics_are_logged_once_and_counted(
    text: str, statistics: ClientStatistics, caplog: pytest.LogCaptureFixture
) -> None:
    store = statistics.added_to("producer", {})["stats_cb"]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store(text + " ")
            assert statistics.latest() == {}
    assert 1 <= statistics.failures <= 3
    assert len(caplog.records) == 1
    store('{"tx":1}')
    assert statistics.latest()["producer"].tx == 1
