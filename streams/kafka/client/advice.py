"""Next steps after an error of the cluster, for messages."""

from typing import Final

from confluent_kafka import KafkaError

from tidewheel.streams.console_log import UNREACHABLE_ADVICE
from tidewheel.streams.kafka.client.codes import LOGIN_FAILED, is_transient

AWAY_ADVICE: Final = UNREACHABLE_ADVICE
LOGIN_ADVICE: Final = (
    "check security.protocol, sasl.* and ssl.* in kafka (or consumer, producer, admin)"
)

_NEXT_STEPS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant this principal READ or WRITE on the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this principal READ on the group; DESCRIBE is enough to read",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "grant this principal WRITE on transactional ids that begin with the application id and a hyphen"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant this principal IDEMPOTENT_WRITE on the cluster",
    KafkaError.INVALID_REPLICATION_FACTOR: (
        "lower replication_factor to the number of brokers, or start more"
    ),
    KafkaError.POLICY_VIOLATION: "the cluster's rules for topics forbid it; create the topic by hand",
    KafkaError.INVALID_CONFIG: "the cluster does not know this topic setting; correct it",
    KafkaError.UNSTABLE_OFFSET_COMMIT: (
        "a transaction with offsets of this group is open; fence its producer or wait for its time-out. One that stays "
        "open for good lost its end when a partition had no leader: kafka-transactions.sh find-hanging names it, abort ends it"
    ),
    KafkaError.NON_EMPTY_GROUP: "stop the consumers that subscribe with this group id",
    KafkaError.UNKNOWN_MEMBER_ID: "stop the consumers that subscribe with this group id",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "lower worker_hang_timeout_ms or raise the broker's transaction.max.timeout.ms"
    ),
    KafkaError.OFFSET_OUT_OF_RANGE: "ask for an offset that is not past the end",
}


_FORBIDDEN: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster; asked of broker",
}


def missing_right(error: KafkaError, operation: str, name: str) -> str:
    """Return a next step, "" without a refusal.

    >>> missing_right(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "READ", "orders")
    'grant this principal READ on topic orders'
    """
    if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return next_step(error)
    kind = _FORBIDDEN.get(error.code())
    return "" if kind is None else f"grant this principal {operation} on {kind} {name}"


def next_step(error: KafkaError) -> str:
    step = _NEXT_STEPS.get(error.code())
    if error.code() in LOGIN_FAILED:
        step = LOGIN_ADVICE
    elif step is None and is_transient(error):
        step = AWAY_ADVICE
    return step or "the cluster gave no further reason"
