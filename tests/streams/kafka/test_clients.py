import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidewheel.streams.errors import ConfigError
from tidewheel.streams.kafka.clients import KafkaClients

CANARY = "hunter2-canary"


def test_a_forbidden_property_is_refused_before_any_client_is_made() -> None:
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        KafkaClients(
            bootstrap_servers="127.0.0.1:9",
            application_id="app",
            consumer={"isolation.level": "read_uncommitted"},
        )


@pytest.mark.parametrize("properties", [{"fetch.waits": 1}, {"socket.timeout.ms": CANARY}])
def test_a_property_refused_by_librdkafka_is_a_config_error_without_the_value(
    properties: dict[str, object],
) -> None:
    clients = KafkaClients(
        bootstrap_servers="127.0.0.1:9",
        application_id="app",
        consumer=properties,
        producer=properties,
        admin=properties,
    )
    made: list[Callable[[], object]] = [
        clients.source,
        clients.changelog_reader,
        clients.sink_producer,
        clients.admin,
        lambda: clients.transactional_producer("id", 1_000),
    ]
    for make in made:
        with pytest.raises(ConfigError) as failure:
            make()
        assert next(iter(properties)) in str(failure.value)
        assert CANARY not in str(failure.value)
        assert failure.value.__cause__ is None


def client_of(kind: str, properties: dict[str, Any]) -> object:
    clients = KafkaClients(bootstrap_servers="127.0.0.1:9", application_id="app", **properties)
    makers: dict[str, Callable[[], object]] = {
        "consumer": clients.source,
        "producer": clients.sink_producer,
        "admin": clients.admin,
    }
    return makers[kind]()


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unusable_ca_file_is_named(tmp_path: Path, content: str | None) -> None:
    authority = tmp_path / "ca.pem"
    if content is not None:
        authority.write_text(content)
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
    for kind in ("consumer", "producer", "admin"):
        given: dict[str, Any] = {kind: properties}
        with pytest.raises(ConfigError) as failure:
            client_of(kind, given)
        assert f"{kind}['ssl.ca.location']" in str(failure.value)
        assert (str(authority) in str(failure.value)) == (content is None)


def test_likely_mistakes_are_logged_as_warnings_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="tidewheel.streams.kafka")
    KafkaClients(
        bootstrap_servers="127.0.0.1:9",
        application_id="app",
        producer={
            "security.protocol": "SASL_SSL",
            "sasl.password": CANARY,
            "enable.ssl.certificate.verification": False,
        },
    )
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "certificate" in warned[0]
    assert "not for admin, consumer" in warned[1]
    assert CANARY not in caplog.text
