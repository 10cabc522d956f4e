"""Kafka's error codes by meaning, the broker's and the client's own."""
# ruff: noqa: SLF001 - librdkafka's client errors begin with an underscore

from typing import Final

from confluent_kafka import KafkaError

PARTITION_EOF: Final = KafkaError._PARTITION_EOF
ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN
TIMED_OUT: Final = KafkaError._TIMED_OUT
MSG_TIMED_OUT: Final = KafkaError._MSG_TIMED_OUT
FATAL: Final = KafkaError._FATAL
#: A transaction lost a record before sending: missing partition, or time-out.
INCONSISTENT: Final = KafkaError._INCONSISTENT
INVALID_DIFFERENT_RECORD: Final = KafkaError._INVALID_DIFFERENT_RECORD

AWAY: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
    }
)

#: Transient: a broker away, a leader election, a loading coordinator.
TRANSIENT: Final = frozenset({
    KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE,
    KafkaError._WAIT_COORD, KafkaError._DESTROY_BROKER, KafkaError.REBOOTSTRAP_REQUIRED, KafkaError._NODE_UPDATE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION, KafkaError.BROKER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_ID, KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError.FETCH_SESSION_ID_NOT_FOUND, KafkaError.INVALID_FETCH_SESSION_EPOCH,
    KafkaError.THROTTLING_QUOTA_EXCEEDED, KafkaError.NOT_CONTROLLER, KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
})  # fmt: skip

FENCED: Final = frozenset({
    KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,
})  # fmt: skip

#: A refused batch: good records fail together with the bad one.
BATCH_REFUSED: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD,
    KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_TIMESTAMP,
    KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.POLICY_VIOLATION, KafkaError._INVALID_ARG,
})  # fmt: skip

TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})

#: Refused because of the target: every record of the topic would fail.
TOPIC_REFUSED: Final = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION, KafkaError.TOPIC_EXCEPTION, KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
})  # fmt: skip

#: A record was not answered, or failed with its transaction or producer: a retry may succeed.
UNANSWERED: Final = frozenset({
    KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT,
    KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError._FATAL, KafkaError._GAPLESS_GUARANTEE, KafkaError._STATE,
})  # fmt: skip

NO_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
NO_PARTITION: Final = frozenset({*NO_TOPIC, KafkaError._UNKNOWN_PARTITION})
#: Errors of list_offsets: the topic is missing, or a leader is being elected.
NO_LEADER: Final = frozenset({*NO_TOPIC, KafkaError._NOENT})
NO_GROUP: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError._UNKNOWN_GROUP})
NO_OFFSET: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})

#: The leader that the client has cached for the partition is outdated.
STALE_LEADER: Final = frozenset({
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION,
})  # fmt: skip

LOGIN_FAILED: Final = frozenset({
    KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL,
})  # fmt: skip
READ_FORBIDDEN: Final = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
})  # fmt: skip


def is_transient(error: KafkaError) -> bool:
    return error.retriable() or error.code() in TRANSIENT
