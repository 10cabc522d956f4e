import pytest
from confluent_kafka import KafkaError

from tests.fakes.cluster import columns
from tidewheel.streams.kafka.client.failures import (
    Outcome,
    delivery_error,
    failed_delivery,
    is_batch_refused,
    is_record_refused,
    is_retriable,
    outcome_of,
)


@pytest.mark.parametrize(
    ("error", "before_end", "at_end"),
    [
        (KafkaError(KafkaError._FENCED, "", fatal=True), Outcome.FENCED, Outcome.FENCED),
        (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH), Outcome.FENCED, Outcome.FENCED),
        (KafkaError(KafkaError.PRODUCER_FENCED), Outcome.FENCED, Outcome.FENCED),
        (
            KafkaError(KafkaError.INVALID_TXN_STATE, "", fatal=True),
            Outcome.UNKNOWN,
            Outcome.UNKNOWN,
        ),
        (
            KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "", txn_requires_abort=True),
            Outcome.ABORT,
            Outcome.ABORT,
        ),
        (KafkaError(KafkaError._TIMED_OUT, "", retriable=True), Outcome.ABORT, Outcome.UNKNOWN),
        (KafkaError(KafkaError._STATE), Outcome.ABORT, Outcome.UNKNOWN),
    ],
)
def test_every_error_has_one_of_three_outcomes(
    error: KafkaError, before_end: Outcome, at_end: Outcome
) -> None:
    assert outcome_of(error, ending=False) is before_end
    assert outcome_of(error, ending=True) is at_end


@pytest.mark.parametrize(
    ("code", "refused", "by_batch", "retriable"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True, True, False),
        (KafkaError.INVALID_RECORD, True, True, False),
        (KafkaError._INVALID_DIFFERENT_RECORD, True, True, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True, False, False),
        (KafkaError._UNKNOWN_PARTITION, True, False, False),
        (KafkaError._MSG_TIMED_OUT, False, False, True),
        (KafkaError.NOT_ENOUGH_REPLICAS, False, False, True),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, False, False, True),
    ],
)
def test_refusals_are_distinguished_from_retriable_errors(
    code: int, refused: bool, by_batch: bool, retriable: bool
) -> None:
    error = KafkaError(code)
    assert (is_record_refused(error), is_batch_refused(error), is_retriable(error)) == (
        refused,
        by_batch,
        retriable,
    )


def test_the_client_log_has_the_cause_that_the_call_lacks() -> None:
    state = KafkaError(KafkaError._STATE)
    assert is_record_refused(state, "current transaction must be aborted (MSG_SIZE_TOO_LARGE)")
    assert not is_record_refused(
        state, "skipped sequence numbers (OUT_OF_ORDER_SEQUENCE_NUMBER, requires epoch bump)"
    )


def test_a_failed_record_names_its_position_its_cause_and_the_next_step() -> None:
    error = delivery_error(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "out", 3)
    assert error.code == "MSG_SIZE_TOO_LARGE"
    assert "out-3" in str(error)
    assert "max.message.bytes" in str(error)
    failed = failed_delivery(
        columns("out", b"a", b"b", partitions=[4, 5]), 1, KafkaError(KafkaError._UNKNOWN_PARTITION)
    )
    assert "out-5" in str(failed.error)
    assert "partitioner" in str(failed.error)
