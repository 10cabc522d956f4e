"""Meaning of producers' errors, as pure tables."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError

from tidewheel.state_stores.layout.stored_values import described_key
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.client.codes import (
    BATCH_REFUSED,
    FENCED,
    INCONSISTENT,
    NO_PARTITION,
    NO_TOPIC,
    TOPIC_REFUSED,
    UNANSWERED,
    is_transient,
)
from tidewheel.tasks.kafka.internal_topics import configure_command
from tidewheel.tasks.kafka.ports import FailedDelivery
from tidewheel.tasks.processing.engine.output import OutputColumns


class Outcome(StrEnum):
    FENCED = "fenced"
    #: No record was committed; the client can abort and begin another transaction.
    ABORT = "abort"
    #: A commit may have succeeded, or the client has failed: a new producer is needed.
    UNKNOWN = "unknown"


#: Settings of a topic that accepts any timestamp.
_EVERY_TIMESTAMP: Final = (
    "message.timestamp.after.max.ms=9223372036854775807,"
    "message.timestamp.before.max.ms=9223372036854775807"
)
_INVALID: Final = frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP})

_REFUSED_NAMES: Final = {
    f"({KafkaError(code).name()}": code for code in sorted(BATCH_REFUSED | TOPIC_REFUSED)
}


class DeliveryError(StreamsError):
    """A record was not written; `code` is Kafka's name, such as MSG_SIZE_TOO_LARGE."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


def outcome_of(error: KafkaError, *, ending: bool) -> Outcome:
    """Return the state of the open transaction after a call's final `error`.

    `ending`: the commit request may have been sent.
    """
    if error.code() in FENCED:
        return Outcome.FENCED
    if error.fatal():
        return Outcome.UNKNOWN
    if error.txn_requires_abort():
        return Outcome.ABORT
    return Outcome.UNKNOWN if ending else Outcome.ABORT


def is_record_refused(error: KafkaError, log_text: str = "") -> bool:
    """Return True if the same records would fail again.

    `log_text`: the client's log line with the cause, which the error "erroneous state" lacks. For
    INCONSISTENT ("see individual delivery reports"), `RefusedSearch` then finds the records.
    """
    if error.code() in BATCH_REFUSED | TOPIC_REFUSED or error.code() == INCONSISTENT:
        return True
    return refusal_in(log_text) is not None


def refusal_in(log_text: str) -> KafkaError | None:
    """Return the refusal that the client's log gives for a failed transaction.

    >>> refusal_in("Current transaction failed: ... must be aborted (INVALID_RECORD)").name()
    'INVALID_RECORD'
    """
    codes = [code for name, code in _REFUSED_NAMES.items() if name in log_text]
    return KafkaError(codes[0], log_text) if codes else None


def is_batch_refused(error: KafkaError) -> bool:
    return error.code() in BATCH_REFUSED


def is_retriable(error: KafkaError) -> bool:
    return is_transient(error) or error.code() in UNANSWERED


def delivery_error(
    error: KafkaError, topic: str, partition: int | None, step: str = "", record: str = ""
) -> DeliveryError:
    """Return the exception that a production handler gets for one record.

    `step` replaces the default next step; `record` describes the record without its data.
    """
    where = topic if partition is None or partition < 0 else f"{topic}-{partition}"
    return DeliveryError(
        f"output {where}: a record{record} was not written: {error.name()}: {error.str()}; {step or _next_step(error, topic)}",
        code=error.name(),
    )


def failed_delivery(columns: OutputColumns, index: int, error: KafkaError) -> FailedDelivery:
    partitions = columns.partitions
    partition = partitions if isinstance(partitions, int) else partitions[index]
    return FailedDelivery(
        columns=columns,
        index=index,
        error=delivery_error(
            error,
            columns.topic,
            partition,
            _step_of(columns, index, error),
            f" ({described_key(columns.keys[index])})",
        ),
        retriable=is_retriable(error),
    )


def _step_of(columns: OutputColumns, index: int, error: KafkaError) -> str:
    """Return the next step for a record that the broker calls invalid without a reason."""
    if error.code() not in _INVALID:
        return ""
    key, timestamp = columns.keys[index], columns.timestamps[index]
    causes: list[str] = []
    if key is None and error.code() == KafkaError.INVALID_RECORD:
        causes.append(
            "it has no key, which a topic with cleanup.policy=compact does not take: give it a key"
        )
    causes.append(
        f"its timestamp {timestamp} ({_time(timestamp)}) may be beyond the topic's message.timestamp.before.max.ms or "
        f"message.timestamp.after.max.ms: raise them ({configure_command(columns.topic, _EVERY_TIMESTAMP)})"
    )
    return ", or ".join(causes)


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"


def _next_step(error: KafkaError, topic: str) -> str:
    match error.code():
        case KafkaError.MSG_SIZE_TOO_LARGE | KafkaError.RECORD_LIST_TOO_LARGE:
            return f"make the record smaller, or raise the topic's limit ({configure_command(topic, 'max.message.bytes=BYTES')})"
        case KafkaError.TOPIC_AUTHORIZATION_FAILED | KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            return "grant this principal WRITE on the topic"
        case code if code in NO_TOPIC:
            return "create the topic"
        case code if code in NO_PARTITION:
            return "let the partitioner return a partition that exists"
        case _:
            return "the cluster gave no further reason"
