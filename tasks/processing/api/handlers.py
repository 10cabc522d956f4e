"""The three exception handlers: what happens to a record that can't be read, processed or produced.

Rules and names are Kafka Streams' (DeserializationExceptionHandler, ProcessingExceptionHandler of KIP-1033,
ProductionExceptionHandler, dead letters of KIP-1034).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from tidewheel.tasks.processing.api.record import Headers, Record

#: What a user's code may raise on a record, for an `except` around it. `SystemExit` too: the exit of a library must not end a
#: worker without a word of the record. Typed as what handlers are given: `ErrorPolicy.apply` makes a `RuntimeError` of it.
FAILURES: Final = cast("tuple[type[Exception], ...]", (Exception, SystemExit))

#: What to do with the failing record. "retry" is for production only.
ErrorAction = Literal["fail", "continue", "retry"]

#: Where a record failed.
ErrorStage = Literal["deserialization", "processing", "production"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """Where a record failed, and the raw input record behind it.

    `topic`, `partition`, `offset`, `raw_key`, `raw_value` and `headers` are those of the **input** record
    (None or empty for a record that has none); `timestamp` is that of the failing record. The input record behind an output
    that the broker refused is read again from its topic; where that can't be done any more, `raw_key` and `raw_value` are
    None and `headers` those of the output.

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
    """A handler's answer: what to do, and records to write to dead-letter topics beside it.

    >>> ErrorResponse(action="continue").dead_letter_records
    ()
    """

    action: ErrorAction
    dead_letter_records: tuple[DeadLetter, ...] = ()


#: A handler is a name or a function of (context, record, exception).
ErrorHandler = Callable[[ErrorContext, Record[Any, Any], Exception], ErrorResponse]
ErrorHandlerSetting = Literal["fail", "continue"] | ErrorHandler
