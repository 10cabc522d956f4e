from typing import Any

import pytest

from tidewheel.streams.errors import ConfigError
from tidewheel.streams.kafka.client.settings import (
    ClientKind,
    ClientSettings,
    check_overrides,
    construction_error,
    redact,
)

CANARY = "hunter2-canary"


def settings(**changes: Any) -> ClientSettings:
    given: dict[str, Any] = {
        "bootstrap_servers": "broker:9092",
        "application_id": "app",
        **changes,
    }
    return ClientSettings(**given)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("consumer", "isolation.level", "read_uncommitted"),
        ("consumer", "group.id", "app"),
        ("consumer", "enable.auto.commit", True),
        ("consumer", "auto.commit.enable", "true"),
        ("consumer", "auto.offset.reset", "earliest"),
        ("consumer", "enable.partition.eof", False),
        ("consumer", "bootstrap.servers", "other:9092"),
        ("producer", "transactional.id", "mine"),
        ("producer", "enable.idempotence", False),
        ("producer", "acks", 1),
        ("producer", "partitioner", "consistent_random"),
        ("producer", "on_delivery", print),
        ("producer", "message.max.bytes", 10),
        ("admin", "metadata.broker.list", "other:9092"),
        ("admin", "logger", None),
    ],
)
def test_properties_that_correctness_depends_on_are_refused(
    kind: ClientKind, name: str, value: object
) -> None:
    with pytest.raises(ConfigError) as failure:
        check_overrides(kind, {name: value})
    assert f"{kind}['{name}']" in str(failure.value)
    assert ";" in str(failure.value) or ": set " in str(failure.value)
    with pytest.raises(ConfigError):
        settings(**{kind: {name: value}})


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("consumer", {"isolation.level": "read_committed", "enable.auto.commit": False}),
        ("consumer", {"enable.partition.eof": "True", "fetch.wait.max.ms": 5}),
        ("producer", {"acks": "all", "enable.idempotence": True, "compression.type": "lz4"}),
        ("admin", {"security.protocol": "SASL_SSL"}),
    ],
)
def test_properties_without_an_effect_on_results_are_accepted(
    kind: ClientKind, properties: dict[str, object]
) -> None:
    check_overrides(kind, properties)


def test_every_consumer_reads_committed_records_from_given_positions() -> None:
    made = settings(consumer={"fetch.wait.max.ms": 7, "client.rack": "r1"})
    for config in (made.source(), made.input_again(), made.changelog()):
        assert config["isolation.level"] == "read_committed"
        assert config["enable.auto.commit"] is False
        assert config["auto.offset.reset"] == "error"
        assert config["group.id"] == "app"
        assert (config["fetch.wait.max.ms"], config["client.rack"]) == (7, "r1")
    assert made.source()["queued.max.messages.kbytes"] == 32 * 1024
    assert made.input_again()["queued.max.messages.kbytes"] == 2 * 1024
    assert made.changelog()["queued.max.messages.kbytes"] == 16 * 1024


def test_every_producer_partitions_as_java_does_and_waits_for_all_replicas() -> None:
    made = settings(producer={"compression.type": "zstd", "sasl.username": "me"})
    configs = [made.transactional("id", 60_000), made.sink(), made.fencing("id")]
    for config in configs:
        assert (config["partitioner"], config["acks"]) == ("murmur2_random", "all")
        assert (config["compression.type"], config["sasl.username"]) == ("zstd", "me")
        assert config["bootstrap.servers"] == "broker:9092"
    assert configs[0]["transaction.timeout.ms"] == 60_000
    assert configs[1]["delivery.report.only.error"] is True


def test_the_client_log_that_shows_unknown_outcomes_cannot_be_turned_off() -> None:
    config = settings(producer={"debug": "msg,eos", "log_level": 3}).transactional("id", 1_000)
    assert (config["debug"], config["log_level"]) == ("eos,msg", 7)


def test_clients_are_named_after_their_use() -> None:
    made = settings(client_id="host-1")
    names = [
        made.source(),
        made.changelog(),
        made.sink(),
        made.administration(),
        made.transactional("t", 1),
        made.input_again(),
    ]
    assert [config["client.id"] for config in names] == [
        "host-1-source", "host-1-changelog", "host-1-sink", "host-1-admin", "host-1-transactional",
        "host-1-input-again",
    ]  # fmt: skip


def test_secrets_are_resolved_late_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", CANARY)
    given = {"sasl.password": "env:KAFKA_PASSWORD", "sasl.username": CANARY, "linger.ms": 5}
    made = settings(producer=given)
    assert made.sink()["sasl.password"] == CANARY
    assert CANARY not in repr(made)
    assert redact(given) == {
        "sasl.password": "env:KAFKA_PASSWORD",
        "sasl.username": "***",
        "linger.ms": 5,
    }


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            f'Invalid value "{CANARY}" for configuration property "sasl.mechanisms"',
            "producer['sasl.mechanisms']",
        ),
        ('No such configuration property: "fetch.waits"', "no such property"),
        (
            f'Configuration property "acks" value {CANARY} is outside allowed range',
            "producer['acks']",
        ),
        (
            f"Failed to create producer: ssl.key.pem failed: not in PEM format?: {CANARY}",
            "ssl.key.pem",
        ),
        (
            "Failed to create producer: sasl.username and sasl.password must be set",
            "set sasl.username and sasl.password",
        ),
        (
            "`ssl.keystore.password` is mandatory when `ssl.keystore.location` is set",
            "producer['ssl.keystore.location'] needs ssl.keystore.password",
        ),
        ("Failed to create producer: Unsupported SASL mechanism: X", "producer['sasl.mechanism']"),
        ("No provider for SASL mechanism GSSAPI: recompile librdkafka", "SCRAM-SHA-512"),
        (f"something else entirely {CANARY}", "these settings"),
    ],
)
def test_the_error_of_a_refused_setting_names_it_without_its_value(
    reason: str, expected: str
) -> None:
    text = str(construction_error("producer", reason))
    assert expected in text
    assert CANARY not in text
