import logging

import pytest
from confluent_kafka import KafkaError

from tidewheel.streams.kafka.client.client_log import ClientLog, TransactionLog, raises_doubt

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


def test_a_repeated_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="tidewheel.streams.kafka.client")
    log = ClientLog("app-source")
    for attempt in range(50):
        _write(log, 20, "FAIL", f"Connect failed: attempt {attempt}")
    _write(log, 30, "CONFWARN", "a setting is odd")
    _write(log, 10, "WAKEUP", "debug noise")
    assert [record.getMessage() for record in caplog.records] == [
        "app-source: FAIL [client#1] Connect failed: attempt 0",
        "app-source: CONFWARN [client#1] a setting is odd",
    ]


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
