"""Workers, restore helpers and administrators log in by SASL_SSL with SCRAM, or say why not."""

import logging
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.conftest import StartApp
from tests.integration.programs.jobs import JOBS, STORE
from tests.integration.programs.probes import runs_from
from tests.integration.security.secured_broker import SecuredBroker, User, everything
from tidewheel import StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.client.client_log import away
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.worker.application import wiring

pytestmark = [pytest.mark.timeout(600), pytest.mark.fault("SECURITY")]

_PLAINTEXT_REFUSED: Final = "Disconnected"
#: Records from which a restore helper builds runs; the product's limit is far higher.
_RUNS_FROM = 2_000


@pytest.fixture
def user(secured: SecuredBroker) -> User:
    return secured.user(everything())


@pytest.fixture
def settings(secured: SecuredBroker, user: User, unique: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "application_id": f"app-{unique}",
        "bootstrap_servers": secured.address,
        "state_dir": str(tmp_path / "state"),
        "commit_interval_ms": 50,
        "statestore_cache_max_bytes": 0,
        **user.settings,
    }


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_every_client_logs_in(
    secured: SecuredBroker,
    user: User,
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
    assert user.password not in caplog.text


def test_a_restore_helper_logs_in(
    secured: SecuredBroker,
    user: User,
    settings: dict[str, Any],
    start_app: StartApp,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(wiring, "RunSettings", runs_from(_RUNS_FROM))
    source = f"in-{unique}"
    secured.plain.create({source: 1, f"out-{unique}": 1})
    keys = [b"key-%05d" % number for number in range(3 * _RUNS_FROM)]
    secured.plain.send(source, [(key, b"x") for key in keys])
    for _ in range(2):
        app = start_app(JOBS["count_by_key"](source, f"out-{unique}"), settings)
        secured.plain.wait_until_consumed(settings["application_id"], source)
        until(lambda app=app: len(list(app.store(STORE).all())) == len(keys), "all is counted")  # type: ignore[misc]
        assert app.close(timeout=30_000)
        assert app.error is None
        shutil.rmtree(settings["state_dir"])
    assert "restoring from changelog" in caplog.text
    assert user.password not in caplog.text


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_requests_that_the_client_lacks_log_in(secured: SecuredBroker, unique: str) -> None:
    """They have a connection, a TLS context and a SCRAM login of their own."""
    user = secured.user(everything())
    topic = f"in-{unique}"
    secured.plain.create({topic: 1})
    producer = Producer(
        {"bootstrap.servers": secured.plain.bootstrap_servers, "transactional.id": f"txn-{unique}"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(PATIENCE_S)
    admin = KafkaAdmin(
        ClientSettings(bootstrap_servers=secured.address, application_id=unique, **user.settings)
    )
    partition = TopicPartition(topic, 0)
    (transaction,) = admin.open_transactions([partition]).values()
    assert (transaction.transactional_id, transaction.unknown) == (f"txn-{unique}", "")
    producer.abort_transaction()
    admin.close()

    wrong = {**user.settings, "admin": user.client | {"sasl.password": "let-me-in"}}
    stranger = KafkaAdmin(
        ClientSettings(bootstrap_servers=secured.address, application_id=unique, **wrong),
        timeout_s=20,
    )
    with pytest.raises(StreamsError, match="uthentication"):
        stranger.open_transactions([partition])
    stranger.close()


@pytest.mark.parametrize(
    ("job", "kinds"),
    [
        pytest.param("copy", ("consumer", "producer", "admin"), id="all"),
        *(
            pytest.param(
                job, (kind,), marks=pytest.mark.nightly("TIDEWHEEL_FAULTS"), id=f"{job}-{kind}"
            )
            for job, kind in (
                ("copy", "consumer"),  # of the producer's group
                ("word_count", "consumer"),  # that reads offsets
                ("copy", "producer"),
                ("copy", "admin"),
            )
        ),
    ],
)
def test_a_wrong_password_is_a_clear_error(
    secured: SecuredBroker,
    user: User,
    settings: dict[str, Any],
    start_app: StartApp,
    unique: str,
    job: str,
    kinds: tuple[str, ...],
) -> None:
    secured.plain.create({f"in-{unique}": 1, f"out-{unique}": 1})
    settings |= dict.fromkeys(kinds, user.client | {"sasl.password": "let-me-in-please"})
    app = start_app(JOBS[job](f"in-{unique}", f"out-{unique}"), settings, wait=False)
    assert not app.wait_until_running(PATIENCE_S)
    assert isinstance(app.error, StreamsError)
    assert secured.address in str(app.error)
    assert "uthentication" in str(app.error)
    assert "sasl.*" in str(app.error)
    assert "let-me-in-please" not in str(app.error)


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_a_fence_with_a_wrong_password_is_a_clear_error(
    secured: SecuredBroker, user: User, unique: str
) -> None:
    wrong = {**user.settings, "producer": user.client | {"sasl.password": "let-me-in-please"}}
    admin = KafkaAdmin(
        ClientSettings(bootstrap_servers=secured.address, application_id=unique, **wrong),
        timeout_s=5,
    )
    with pytest.raises(StreamsError, match="uthentication failed"):
        admin.fence([f"{unique}-0"])
    admin.close()


@pytest.mark.parametrize("forgotten", ["consumer", "producer", "admin"])
def test_a_client_without_tls_reaches_nothing(
    secured: SecuredBroker,
    settings: dict[str, Any],
    start_app: StartApp,
    unique: str,
    forgotten: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So no kind of client can have forgotten its settings in the tests above."""
    caplog.set_level(logging.INFO)
    away.clear()  # it logs a broker once a minute
    secured.plain.create({f"in-{unique}": 1, f"out-{unique}": 1})
    without = {**settings, forgotten: {}, "worker_hang_timeout_ms": 10_000}
    app = start_app(JOBS["word_count"](f"in-{unique}", f"out-{unique}"), without, wait=False)
    until(
        lambda: _PLAINTEXT_REFUSED in f"{caplog.text}{app.error}",
        "the client without TLS is refused",
    )
    assert not app.wait_until_running(0)
    assert app.close(timeout=60_000)
