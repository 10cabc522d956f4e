"""Every client of an application uses SASL_SSL with SCRAM; the plain listener is the test's."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.programs.jobs import JOBS, STORE
from tests.integration.security.secured_broker import create_certificate, free_ports
from tidewheel import StreamsError
from tidewheel.streams.broker import KafkaBroker

_PASSWORD = "open-sesame-7391"  # noqa: S105 - of a broker that lives as long as this test
_USER = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    plain: Cluster
    address: str
    client: dict[str, Any]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    store, pem = create_certificate(tmp_path_factory.mktemp("certificate"), _PASSWORD)
    plain, secure, controller = free_ports(3)
    doors = {"BROKER": plain, "SECURE": secure, "CONTROLLER": controller}
    broker = KafkaBroker(
        properties={
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in doors.items()),
            "listener.security.protocol.map": "BROKER:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.secure.scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.location": str(store),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": _PASSWORD,
            "ssl.key.password": _PASSWORD,
        }
    )
    with broker:
        cluster = Cluster(f"127.0.0.1:{plain}")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        user = UserScramCredentialUpsertion(
            _USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), _PASSWORD.encode()
        )
        for answer in admin.alter_user_scram_credentials([user]).values():
            answer.result(PATIENCE_S)
        yield Secured(
            plain=cluster,
            address=f"127.0.0.1:{secure}",
            client={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": _USER,
                "sasl.password": _PASSWORD,
                "ssl.ca.location": str(pem),
            },
        )
        cluster.close()


@pytest.fixture
def settings(secured: Secured, unique: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "application_id": f"app-{unique}",
        "bootstrap_servers": secured.address,
        "state_dir": str(tmp_path / "state"),
        "commit_interval_ms": 50,
        "statestore_cache_max_bytes": 0,
        "consumer": secured.client,
        "producer": secured.client,
        "admin": secured.client,
    }


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_every_client_logs_in(
    secured: Secured,
    settings: dict[str, Any],
    start_app: StartApp,
    unique: str,
    guarantee: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    source, sink = f"in-{unique}", f"out-{unique}"
    secured.plain.create({source: 2, sink: 2})
    expected: dict[str, int] = {}
    for life in range(2):
        settings |= {"processing_guarantee": guarantee, "group_instance_id": f"life-{life}"}
        secured.plain.send(source, [(b"k", b"to be or not to be")] * 10)
        for word in b"to be or not to be".decode().split():
            expected[word] = expected.get(word, 0) + 10
        app = start_app(JOBS["word_count"](source, sink), settings)
        secured.plain.wait_until_consumed(settings["application_id"], source)
        # Not by the end of the repartition topic: its transaction markers may follow those of
        # offsets.
        until(
            lambda app=app: {key: row.value for key, row in app.store(STORE).all()} == expected,  # type: ignore[misc]
            "all is counted",
        )
        assert app.close(timeout=30_000)
        assert app.error is None
        shutil.rmtree(settings["state_dir"])  # the second life restores, and fences the first
    assert _PASSWORD not in caplog.text


def test_a_wrong_password_is_a_clear_error(
    secured: Secured, settings: dict[str, Any], start_app: StartApp, unique: str
) -> None:
    secured.plain.create({f"in-{unique}": 1, f"out-{unique}": 1})
    wrong = secured.client | {"sasl.password": "let-me-in-please"}
    settings |= {"consumer": wrong, "producer": wrong, "admin": wrong}
    app = start_app(JOBS["copy"](f"in-{unique}", f"out-{unique}"), settings, wait=False)
    assert not app.wait_until_running(PATIENCE_S)
    assert isinstance(app.error, StreamsError)
    assert secured.address in str(app.error)
    assert "uthentication" in str(app.error)
    assert "let-me-in-please" not in str(app.error)
