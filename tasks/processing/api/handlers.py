"""Exception handlers of deserialisation, processing and production.

Rules and names are Kafka Streams' (DeserializationExceptionHandler, ProcessingExceptionHandler of
KIP-1033, ProductionExceptionHandler, dead letters of KIP-1034).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from tidewheel.tasks.processing.api.record import Headers, Record

#: Errors of user code around a record. Includes `SystemExit`: a library's exit must not end a
#: worker without naming the record.
FAILURES: Final = cast("tuple[type[Exception], ...]", (Exception, SystemExit))

#: "retry" is for production only.
ErrorAction = Literal["fail", "continue", "retry"]

ErrorStage = Literal["deserialization", "processing", "production"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """The place of a failure, and the raw input record.

    `topic`, `partition`, `offset`, `raw_key`, `raw_value` and `headers` are those of the **input** record
    (None or empty without one); `timestamp` is that of the failing record. If the broker refuses an output, its input
    record is read again from the topic; if that fails, `raw_key` and `raw_value` are None and `headers` those of the output.

    >>> def skip_old_ones(context: ErrorContext, record: Record, error: Exception) -> ErrorResponse:
    ...     return ErrorResponse(action="continue" if context.timestamp < 1_000 else "fail")
    """

    stage: ErrorStage
    node: str
    task_id: str
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: int
    headers: Headers
    raw_key: bytes | None
    raw_value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record for a dead-letter topic: raw bytes and headers.

    >>> DeadLetter(topic="orders-dead", key=b"k", value=b"{oops").headers
    ()
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """A handler's answer: the action, and records for dead-letter topics.

    >>> ErrorResponse(action="continue").dead_letter_records
    ()
    """

    action: ErrorAction
    dead_letter_records: tuple[DeadLetter, ...] = ()


#: A handler is called with (context, record, exception); a setting may name an action instead.
ErrorHandler = Callable[[ErrorContext, Record[Any, Any], Exception], ErrorResponse]
ErrorHandlerSetting = Literal["fail", "continue"] | ErrorHandler
