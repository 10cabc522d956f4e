"""`kafka={...}`: properties of all clients, which those of one kind override."""

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tidewheel import ConfigError, StreamsConfig
from tidewheel.streams.config.app_configs import app_configs
from tidewheel.streams.config.client_properties import (
    _OF_CONSUMERS,
    _OF_PRODUCERS,
    CLIENT_KINDS,
)
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.processes.restore_helper.helper_messages import Begin
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.streams.worker.application.wiring import make_clients, shared_options
from tidewheel.streams.worker.restore_helpers import restore_helpers

_OF_CONSUMER = {"fetch.min.bytes": 5}
_OF_PRODUCER = {"linger.ms": 5}
SHARED = {"security.protocol": "SSL", "ssl.key.password": "canary", "client.rack": "a"}


def config_of(**options: Any) -> StreamsConfig:
    return StreamsConfig(application_id="shop", **options)


@pytest.fixture
def config() -> StreamsConfig:
    return config_of(
        kafka=SHARED,
        consumer={"client.rack": "b", "fetch.min.bytes": 7},
        producer={"linger.ms": 3},
    )


EXPECTED = {
    "consumer": {**SHARED, "client.rack": "b", "fetch.min.bytes": 7},
    "producer": {**SHARED, "linger.ms": 3},
    "admin": SHARED,
}


def test_every_kind_of_client_gets_the_shared_properties(
    config: StreamsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers, commands and Spark, the watchdog, and restore helpers make clients of their own."""
    clients = make_clients(config).settings
    operator = settings_of(config)
    watchdog = shared_options(config, Hello)
    for kind in CLIENT_KINDS:
        assert config.client_properties(kind) == EXPECTED[kind]
        assert getattr(clients, kind) == EXPECTED[kind]
        assert getattr(operator, kind) == EXPECTED[kind]
        assert watchdog[kind] == EXPECTED[kind]
    begun: list[Begin] = []
    monkeypatch.setattr(
        "tidewheel.streams.worker.restore_helpers.RestoreHelperPool",
        lambda begin, **_options: begun.append(begin(1)),
    )
    restore_helpers(config, RunOptions())
    assert begun[0].consumer == EXPECTED["consumer"]


def test_a_client_gets_no_property_that_only_other_kinds_have(tmp_path: Path) -> None:
    config = config_of(kafka={**_OF_CONSUMER, **_OF_PRODUCER, "client.rack": "a"})
    expected = {
        "consumer": {**_OF_CONSUMER, "client.rack": "a"},
        "producer": {**_OF_PRODUCER, "client.rack": "a"},
        "admin": {"client.rack": "a"},
    }
    assert {kind: config.client_properties(kind) for kind in CLIENT_KINDS} == expected


def test_librdkafka_ignores_properties_of_the_other_kind() -> None:
    """Check the lists of properties by librdkafka's own warning."""
    for make, ignored in (
        (lambda p, log: Consumer({"group.id": "g", **p}, logger=log), _OF_PRODUCERS),
        (lambda p, log: Producer(p, logger=log), _OF_CONSUMERS),
    ):
        for name in ignored:
            lines = _Lines()
            for value in ("1", "none", "broker", "fifo", "true", "1000"):
                with contextlib.suppress(KafkaException):
                    make({name: value}, lines).poll(0)
            assert any("will be ignored by this" in line for line in lines.texts), name


class _Lines:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def log(self, _level: int, template: str, *parts: Any) -> None:
        self.texts.append(template % parts)


def test_nested_tables_are_names_with_dots_from_every_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = '[TABLE]\nsasl.password = "env:P"\n"client.rack" = "a"\nsasl.oauthbearer.scope = "s"\n'
    expected = {"sasl.password": "env:P", "client.rack": "a", "sasl.oauthbearer.scope": "s"}
    for table in ("kafka", "consumer", "producer", "admin"):
        content: dict[str, Any] = tomllib.loads(text.replace("TABLE", table))
        config = StreamsConfig(application_id="shop", **content)
        assert getattr(config, table) == expected
        assert config.source_of(f"{table}.sasl.password") == "keyword"
        monkeypatch.setenv(f"TIDEWHEEL_{table.upper()}", json.dumps(content[table]))
        assert getattr(config_of(), table) == expected
    with pytest.raises(ConfigError, match="given twice"):
        config_of(kafka={"sasl": {"username": "a"}, "sasl.username": "b"})
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"a": deep or 1}
    with pytest.raises(ConfigError, match="nested"):
        config_of(kafka=deep)


def test_its_secrets_are_hidden(config: StreamsConfig) -> None:
    shown = {row.option: row.value for row in config.describe()}
    assert (shown["kafka.ssl.key.password"], shown["kafka.client.rack"]) == ("***", "a")
    texts = (repr(config), str(config.model_dump()), str(shown), repr(app_configs(config)))
    assert "canary" not in "".join(texts)
    assert app_configs(config)["kafka.ssl.key.password"] == "canary"


def test_one_kinds_property_wins_from_any_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        'application_id = "shop"\n[kafka]\nsasl.username = "all"\nclient.rack = "file"\n'
        '[admin]\nsasl.username = "operator"\n'
    )
    monkeypatch.setenv("TIDEWHEEL_KAFKA__SASL_PASSWORD", "env:SECRET")
    config = StreamsConfig.from_toml(file, kafka={"client.rack": "keyword"})
    assert config.client_properties("admin") == {
        "sasl.username": "operator",
        "client.rack": "keyword",
        "sasl.password": "env:SECRET",
    }
    assert config.client_properties("consumer")["sasl.username"] == "all"
    assert config.source_of("kafka.client.rack") == "keyword"
    changed = config.replace(kafka={"client.rack": "new"})
    assert changed.client_properties("consumer") == {"client.rack": "new"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("acks", 1, "transactions need acks=all"),
        ("isolation.level", "read_uncommitted", "every consumer reads committed records"),
        ("bootstrap.servers", "a:1", "set bootstrap_servers"),
        ("sasl.jaas.config", "x", "Kafka's Java clients"),
        ("security_protocol", "SSL", "'security.protocol'"),
    ],
)
def test_it_refuses_what_any_kind_of_client_refuses(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        config_of(kafka={key: value})
    assert f"kafka['{key}']" in str(refused.value)


def test_doubtful_settings_are_found_in_it() -> None:
    (caution, *_) = config_of(kafka={"enable.ssl.certificate.verification": False}).cautions()
    assert "anyone on the network path" in caution
    mixed = config_of(kafka={"security.protocol": "SSL"}, admin={"security.protocol": "PLAINTEXT"})
    assert any("security.protocol differs" in text for text in mixed.cautions())
    assert config_of(kafka={"security.protocol": "SSL"}).cautions() == []


def test_kubernetes_variables_of_a_service_named_tidewheel_kafka_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEWHEEL_KAFKA_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PORT", "tcp://10.0.0.1:9092")
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PORT_9092_TCP_ADDR", "10.0.0.1")
    assert config_of().kafka == {}


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({"kafka": {"sasl.password": "env:SHOP_UNSET"}}, "kafka['sasl.password']"),
        (
            {"kafka": {"sasl.password": "x"}, "admin": {"sasl.password": "env:SHOP_UNSET"}},
            "admin['sasl.password']",
        ),
        ({"kafka": {"ssl.ca.location": "/nowhere/ca.pem"}}, "kafka['ssl.ca.location']"),
        ({"consumer": {"ssl.ca.location": "/nowhere/ca.pem"}}, "consumer['ssl.ca.location']"),
    ],
)
def test_an_error_names_the_table_that_has_the_property(
    properties: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_UNSET", raising=False)
    config = config_of(**properties)
    for make in (settings_of, lambda config: make_clients(config).settings):
        with pytest.raises(ConfigError) as caught:
            make(config).administration()
        assert str(caught.value).startswith(f"{place}: ")
