import logging
import time

import pytest
from confluent_kafka import KafkaError

from tidewheel.streams.kafka.client.client_log import (
    ClientLog,
    LeaderLog,
    TransactionLog,
    away,
    raises_doubt,
)

LOST = "[thrd:TxnCoordinator]: TxnCoordinator: 10.0.0.1:9092: Disconnected: connection closed by peer (after 8ms in state UP)"
LOST_BROKER = "[thrd:10.0.0.1:9092/1]: 10.0.0.1:9092/1: Disconnected: connection closed by peer (after 9ms in state UP)"


@pytest.mark.parametrize(
    ("facility", "text", "before_offsets", "after_offsets"),
    [
        ("FAIL", LOST, True, True),
        ("FAIL", LOST + " (_TRANSPORT)", True, True),
        ("FAIL", LOST_BROKER, False, True),
        ("FAIL", LOST_BROKER.replace("/1", "/bootstrap"), False, False),
        ("FAIL", "[thrd:TxnCoordinator]: TxnCoordinator: Broker handle is terminating (_DESTROY_BROKER)", False, False),
        ("REQTMOUT", "[thrd:TxnCoordinator]: TxnCoordinator/1: Timed out EndTxnRequest in flight (after 60s)", True, True),
        ("REQTMOUT", "[thrd:10.0.0.1:9092/1]: Timed out TxnOffsetCommitRequest in flight", False, True),
        ("COORD", "[thrd:main]: TxnCoordinator/1: Transaction coordinator is now down", True, True),
        ("COORD", "[thrd:main]: TxnCoordinator/1: Transaction coordinator is now up", False, False),
        ("ENDTXN", "[thrd:main]: EndTxn returned _TRANSPORT in state CommittingTransaction (may_retry=true)", True, True),
        ("ENDTXN", "[thrd:main]: EndTxn returned _TIMED_OUT in state AbortingTransaction (may_retry=true)", True, True),
        ("ENDTXN", "[thrd:main]: EndTxn returned NO_ERROR in state CommittingTransaction (may_retry=true)", False, False),
        ("ENDTXN", "[thrd:main]: EndTxn returned CONCURRENT_TRANSACTIONS in state CommittingTransaction", False, False),
        ("TXNSTATE", "[thrd:main]: Transaction state change InTransaction -> BeginCommit", False, False),
    ],
)  # fmt: skip
def test_lines_that_mean_a_request_may_arrive_late(
    facility: str, text: str, before_offsets: bool, after_offsets: bool
) -> None:
    assert raises_doubt(facility, text, offsets_sent=False) is before_offsets
    assert raises_doubt(facility, text, offsets_sent=True) is after_offsets


def test_doubt_and_failure_are_those_of_the_open_transaction() -> None:
    log = TransactionLog("t")
    _write(log, 20, "FAIL", LOST)
    log.transaction_begins()
    assert (log.doubt, log.failure) == ("", "")
    _write(log, 40, "TXNERR", "failed (MSG_SIZE_TOO_LARGE)")
    _write(log, 20, "FAIL", LOST_BROKER)
    assert (log.doubt, log.failure) == ("", "failed (MSG_SIZE_TOO_LARGE)")
    log.offsets_are_sent()
    _write(log, 20, "FAIL", LOST_BROKER)
    _write(log, 20, "FAIL", LOST)
    assert log.doubt == LOST_BROKER


@pytest.mark.parametrize("level", [logging.ERROR, logging.WARNING, logging.INFO])
def test_lines_of_a_transaction_are_no_errors(level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="tidewheel.streams.kafka.client")
    _write(TransactionLog("t"), level, "ADDOFFSETS", "Failed to add offsets: Local: Timed out")
    assert [each.levelno for each in caplog.records] == [min(level, logging.WARNING)]


@pytest.mark.parametrize(
    ("facility", "text"),
    [
        ("ADDPARTS", 'TxnCoordinator/1: Failed to add partition "shop-group-state" [0] to transaction: Broker: Producer attempted an operation with an old epoch'),
        ("TXNERR", "Fatal transaction error: Failed to add partitions to transaction: Local: This instance has been fenced by a newer instance (_FENCED)"),
        ("FATAL", "Fatal error: Local: This instance has been fenced by a newer instance: Failed to add partitions to transaction: Local: This instance has been fenced by a newer instance"),
    ],
)  # fmt: skip
def test_a_leader_that_another_one_fences_is_no_news(
    facility: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tidewheel.streams.kafka.client")
    log = LeaderLog("leader")
    _write(log, logging.CRITICAL, facility, text)
    assert [each.levelno for each in caplog.records] == [logging.DEBUG]
    _write(log, logging.CRITICAL, facility, "Broker: Not enough in-sync replicas")
    assert caplog.records[-1].levelno >= logging.WARNING


@pytest.mark.parametrize(
    ("begins", "shown"), [(b"HTTP", '"HTTP"'), (bytes([0x15, 3, 1, 0]), '"15030100"')]
)
def test_a_port_that_is_not_kafkas_is_unreachable(
    begins: bytes, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    away.clear()
    size = int.from_bytes(begins, "big", signed=True)
    line = f"[thrd:h:80/bootstrap]: h:80/bootstrap: Receive failed: Invalid response size {size} (0..100): increase receive.message.max.bytes"
    log = ClientLog("admin")
    _write(log, logging.ERROR, "FAIL", line)
    log.on_error(KafkaError(KafkaError._BAD_MSG, line))
    assert shown in log.unreachable
    (told,) = [each.getMessage() for each in caplog.records]
    assert "h:80" in told
    assert shown in told


def test_a_repeated_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="tidewheel.streams.kafka.client")
    log = ClientLog("app-source")
    for attempt in range(50):
        _write(log, 20, "PARTCNT", f"attempt {attempt}")
    _write(log, 30, "CONFWARN", "a setting is odd")
    _write(log, 10, "WAKEUP", "debug noise")
    _write(log, 30, "GETPID", "Failed to acquire transactional PID from broker: retrying")
    assert caplog.records[-1].levelno == logging.DEBUG
    assert [record.getMessage() for record in caplog.records[:-1]] == [
        "app-source: PARTCNT [client#1] attempt 0",
        "app-source: CONFWARN [client#1] a setting is odd",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "localhost:9099/bootstrap: Connect to ipv4#127.0.0.1:9099 failed: Connection refused (after 0ms in state CONNECT)",
            "broker localhost:9099 can't be reached: Connection refused; check that the brokers run",
        ),
        (
            "sasl_ssl://kafka.example:9093/1: Disconnected (after 8ms in state APIVERSION_QUERY)",
            "broker kafka.example:9093 can't be reached: Disconnected",
        ),
        (
            "nohost.invalid:9092/bootstrap: Failed to resolve 'nohost.invalid:9092': Name or service not known (after 1ms in state CONNECT)",
            "broker nohost.invalid:9092 can't be reached: Failed to resolve 'nohost.invalid:9092': Name or service not known; check",
        ),
        (
            "GroupCoordinator: 10.0.0.1:9092: Connection setup timed out in state CONNECT (after 30029ms in state CONNECT)",
            "broker 10.0.0.1:9092 can't be reached: Connection setup timed out in state CONNECT",
        ),
        (
            "[::1]:9092/2: Timed out 1 in-flight, 0 retry-queued, 0 out-queue, 0 partially-sent requests",
            "broker [::1]:9092 can't be reached: Timed out 1 in-flight",
        ),
    ],
)
def test_an_unreachable_broker_is_one_line_for_all_clients(
    caplog: pytest.LogCaptureFixture, text: str, line: str
) -> None:
    away.clear()
    for name in ("admin", "source", "producer"):
        log = ClientLog(name)
        _write(log, 40, "FAIL", f"[thrd:broker]: {text}")
        log.on_error(KafkaError(KafkaError._TRANSPORT, text))
        log.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    (logged,) = caplog.messages
    assert logged.startswith(line)
    assert "thrd" not in logged


def test_an_unreachable_broker_is_logged_again_after_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    away.clear()
    log = ClientLog("admin")
    for second in range(0, 150, 10):
        monkeypatch.setattr(time, "monotonic", lambda now=second: 1000.0 + now)
        log.on_error(KafkaError(KafkaError._TRANSPORT, "a:1/1: Disconnected"))
        log.on_error(KafkaError(KafkaError._TRANSPORT, "b:1/2: Disconnected"))
    assert [message.split()[1] for message in caplog.messages] == ["a:1", "b:1"] * 3


def test_debug_lines_are_logged_if_the_user_configured_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="tidewheel.streams.kafka.client")
    _write(ClientLog("a", with_debug=True), 10, "MSG", "50% of it")
    assert [record.getMessage() for record in caplog.records] == ["a: MSG [client#1] 50% of it"]


def test_a_failed_login_is_logged_with_the_settings_to_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ClientLog("a")
    log.on_error(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error"))
    log.on_error(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    assert [(record.levelname, "sasl.*" in record.getMessage()) for record in caplog.records] == [
        ("ERROR", True),
        ("WARNING", False),
    ]


def test_a_refused_login_is_the_cause_of_a_time_out_and_of_nothing_else() -> None:
    log = ClientLog("a")
    timed_out = KafkaError(KafkaError._TIMED_OUT)
    assert log.cause_of(timed_out) is timed_out
    log.on_error(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error"))
    assert log.cause_of(timed_out).code() == KafkaError._AUTHENTICATION
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert log.cause_of(refused) is refused


def _write(log: ClientLog, level: int, facility: str, text: str) -> None:
    log.log(level, "%s [%s] %s", facility, "client#1", text)


def test_the_topic_that_a_transaction_may_not_write_is_kept_until_the_next_one() -> None:
    log = TransactionLog("t")
    refusal = (
        '[thrd:main]: TxnCoordinator/1: Failed to add partition "{}" [0] to transaction: Broker: {}'
    )
    log.log(3, "%s", "ADDPARTS", refusal.format("changelog", "Operation not attempted"))
    assert log.forbidden == ""
    log.log(3, "%s", "ADDPARTS", refusal.format("orders", "Topic authorization failed"))
    assert log.forbidden == "orders"
    log.transaction_begins()
    assert log.forbidden == ""
