"""Error policy: calls the exception handlers of failed records and writes dead letters.

Stages, answers and dead-letter headers are Kafka Streams' (KIP-161, KIP-1033, KIP-1034).
"""

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from tidewheel.state_stores.errors import StoredRowError
from tidewheel.state_stores.layout.headers import as_headers
from tidewheel.state_stores.user_code import (
    ExcInfo,
    class_name,
    located,
    message_of,
    place_of,
    user_trace,
)
from tidewheel.tasks.errors import LateRecordError, RecordFailedError, SchemaRegistryError
from tidewheel.tasks.processing.api.handlers import (
    FAILURES,
    DeadLetter,
    ErrorAction,
    ErrorContext,
    ErrorHandler,
    ErrorHandlerSetting,
    ErrorResponse,
    ErrorStage,
)
from tidewheel.tasks.processing.api.record import Headers, Record
from tidewheel.tasks.processing.engine.drops import DropLog
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords

_log = logging.getLogger(__name__)

#: Different places whose frames are logged when their records are skipped.
_TRACED_MAX = 100
#: Prefix of dead letters' headers, as in Kafka Streams' `ExceptionHandlerUtils`.
_PREFIX = "__streams.errors."


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorHandlers:
    """An application's handlers and dead-letter topic.

    `processing_global`: the processing handler also serves global stores. `late_records`: late
    records become dead letters without a handler's decision.
    """

    deserialization: ErrorHandlerSetting = "fail"
    processing: ErrorHandlerSetting = "fail"
    production: ErrorHandlerSetting = "fail"
    processing_global: bool = True
    dead_letter_topic: str | None = None
    late_records: bool = False


class ErrorCounts:
    """Skipped records and dead letters of one worker; its key ranges count in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.skipped = 0
        self.dead_letters = 0

    def add(self, *, skipped: int = 0, dead_letters: int = 0) -> None:
        with self._lock:
            self.skipped += skipped
            self.dead_letters += dead_letters


class ErrorPolicy:
    def __init__(
        self,
        handlers: ErrorHandlers,
        emit: Callable[[OutputColumns], None],
        drops: DropLog | None = None,
        counts: ErrorCounts | None = None,
        *,
        locations: Mapping[str, str] | None = None,
    ) -> None:
        """Create the policy.

        Args:
            locations: User's line that defined each node: "shop.py:12".
        """
        self.drops = DropLog() if drops is None else drops
        self.counts = ErrorCounts() if counts is None else counts
        self._handlers = handlers
        self._emit = emit
        self._locations = locations or {}
        #: Places whose frames were logged; later skips there log their message alone.
        self._traced: set[str] = set()
        #: By task id, skipped outputs that failed in the worker's collector or producer: the tasks'
        #: own counters lack them.
        self.skipped_outputs: Counter[str] = Counter()

    def needs_input(self, *, dead_letter: bool) -> bool:
        """Return True if the handler or a dead letter needs a failed output's raw input record."""
        handlers = self._handlers
        writes = handlers.dead_letter_topic is not None and not dead_letter
        return writes or callable(handlers.production)

    @property
    def keeps_late_records(self) -> bool:
        return self._handlers.late_records and self._handlers.dead_letter_topic is not None

    def late(self, context: ErrorContext, why: str) -> None:
        topic = self._handlers.dead_letter_topic
        assert topic is not None, "asked only if late records are kept"
        raw = (context.raw_key, context.raw_value)
        self._emit(_columns(dead_letter(topic, context, LateRecordError(why), raw), context))
        self.counts.add(dead_letters=1)

    def without_dead_letters(self) -> "ErrorPolicy":
        return ErrorPolicy(
            self._handlers, lambda _columns: None, self.drops, locations=self._locations
        )

    def emitting(self, emit: Callable[[OutputColumns], None]) -> "ErrorPolicy":
        """Return the same policy with another writer of dead letters, for a key range."""
        return ErrorPolicy(self._handlers, emit, self.drops, self.counts, locations=self._locations)

    def apply(
        self,
        context: ErrorContext,
        record: Record[Any, Any],
        error: Exception,
        *,
        raw: tuple[bytes | None, bytes | None],
        internal: bool = False,
        retriable: bool = False,
        dead_letter: bool = False,
    ) -> str:
        """Return "continue" (skipped) or "retry", or raise `RecordFailedError`.

        `raw` is the dead letter's key and value. An `internal` record is never skipped: it is part
        of the application's state.
        """
        if isinstance(error, SystemExit):
            error = exited(error)
        if isinstance(error, SchemaRegistryError | StoredRowError):
            raise error  # not the record's fault: skipping it would lose it
        setting = (
            self._handlers.production
            if context.stage == "production"
            else self._setting(context.stage)
        )
        response = self._response(setting, context, record, error, raw)
        for letter in () if dead_letter else response.dead_letter_records:
            self._emit(_columns(letter, context))
            self.counts.add(dead_letters=1)
        if response.action == "retry" and retriable:
            return "retry"
        if response.action == "continue" and not internal:
            self.counts.add(skipped=1)
            verb = "a dead letter is lost: it failed" if dead_letter else "skipped"
            _log.warning(
                "%s",
                self._described(context, error, verb),
                extra=_fields(context),
                exc_info=self._first_trace(error),
            )
            return "continue"
        step = _next_step(context, response.action, internal=internal)
        raise _failure(context, self._described(context, error, "failed") + step) from error

    def unhandled(self, context: ErrorContext, error: Exception, why: str) -> RecordFailedError:
        """Return the error of a record for which no handler is called; `why` ends its message."""
        return _failure(context, f"{self._described(context, error, 'failed')}. {why}")

    def _described(self, context: ErrorContext, error: Exception, verb: str) -> str:
        return describe(context, error, verb, self._locations.get(context.node, ""))

    def _first_trace(self, error: Exception) -> ExcInfo | None:
        """Return the frames of user code, once for each place."""
        place = place_of(error)
        if not place or place in self._traced or len(self._traced) >= _TRACED_MAX:
            return None
        self._traced.add(place)
        return user_trace(error)

    def _setting(self, stage: ErrorStage) -> ErrorHandlerSetting:
        return (
            self._handlers.deserialization
            if stage == "deserialization"
            else self._handlers.processing
        )

    def _response(
        self,
        setting: ErrorHandlerSetting,
        context: ErrorContext,
        record: Record[Any, Any],
        error: Exception,
        raw: tuple[bytes | None, bytes | None],
    ) -> ErrorResponse:
        if callable(setting):
            failed = self._described(context, error, "failed")
            return _call_handler(setting, context, record, error, failed)
        topic = self._handlers.dead_letter_topic
        letters = () if topic is None else (dead_letter(topic, context, error, raw),)
        return ErrorResponse(action=setting, dead_letter_records=letters)


def _call_handler(
    handler: ErrorHandler,
    context: ErrorContext,
    record: Record[Any, Any],
    error: Exception,
    failed: str,
) -> ErrorResponse:
    try:
        response = handler(context, record, error)
    except FAILURES as handler_error:
        raise _failure(
            context,
            f"{failed}; and the {context.stage}_exception_handler failed on it: "
            f"{located(handler_error)}",
        ) from handler_error
    if not isinstance(response, ErrorResponse):  # pyright: ignore[reportUnnecessaryIsInstance] - users may be untyped
        raise _failure(
            context,
            f"{failed}; and the {context.stage}_exception_handler returned {type(response).__name__}: make it return "
            'ErrorResponse(action="fail" or "continue")',
        ) from error
    fault = _fault_of(response)
    if fault:
        raise _failure(
            context,
            f"{failed}; and the {context.stage}_exception_handler ({_named(handler)}) returned an ErrorResponse {fault}",
        ) from error
    return response


def _fault_of(response: ErrorResponse) -> str:
    if response.action not in get_args(ErrorAction):
        return f'with action={response.action!r}: answer "fail", "continue", or "retry" (for outputs only)'
    letters = cast("object", response.dead_letter_records)
    if not isinstance(letters, tuple | list):
        return f"with dead_letter_records of {type(letters).__name__}: give a tuple of DeadLetter"
    for number, letter in enumerate(cast("Sequence[object]", letters)):
        fault = _fault_of_letter(letter, f"dead_letter_records[{number}]")
        if fault:
            return fault
    return ""


def _fault_of_letter(letter: object, place: str) -> str:
    if not isinstance(letter, DeadLetter):
        return (
            f"with {place} of {type(letter).__name__}: "
            "each must be a DeadLetter(topic=..., key=..., value=...)"
        )
    topic = cast("object", letter.topic)
    if not isinstance(topic, str) or not topic:
        return f"whose {place} has topic={topic!r}: name the topic"
    parts: dict[str, object] = {"key": letter.key, "value": letter.value}
    for name, data in parts.items():
        if not isinstance(data, bytes | None):
            return f"whose {place} has a {name} of {type(data).__name__}: give bytes, or None"
    try:
        as_headers(letter.headers)
    except TypeError as error:
        return f"whose {place} is wrong: {error}"
    return ""


def _named(handler: ErrorHandler) -> str:
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{getattr(handler, '__module__', '')}.{name}"


def exited(error: SystemExit) -> Exception:
    """Return the exception that handlers get in place of a user's `SystemExit`.

    >>> exited(SystemExit(3))
    RuntimeError('it raised SystemExit(3), which ends no worker; raise an exception of your own')
    """
    failure = RuntimeError(
        f"it raised {error!r}, which ends no worker; raise an exception of your own"
    )
    failure.__cause__ = error
    return failure


def _failure(context: ErrorContext, message: str) -> RecordFailedError:
    return RecordFailedError(
        message, topic=context.topic, partition=context.partition, offset=context.offset
    )


def input_failure(
    records: SourceRecords, row: int, *, node: str, task_id: str
) -> tuple[ErrorContext, Record[Any, Any]]:
    """Return the handler's arguments for an undecodable record, as raw bytes."""
    raw = (records.raw_keys[row], records.raw_values[row])
    headers = () if records.headers is None else records.headers[row]
    context = ErrorContext(
        stage="deserialization",
        node=node,
        task_id=task_id,
        topic=records.topic,
        partition=records.partition,
        offset=records.offsets[row],
        timestamp=records.timestamps[row],
        headers=headers,
        raw_key=raw[0],
        raw_value=raw[1],
    )
    return context, Record(*raw, records.timestamps[row], headers)


def node_failure(
    batch: RecordBatch, index: int, *, node: str, task_id: str, stage: ErrorStage = "processing"
) -> tuple[ErrorContext, Record[Any, Any]]:
    metadata = batch.metadata_of(index)
    source, row = batch.source, batch.rows[index]
    context = ErrorContext(
        stage=stage,
        node=node,
        task_id=task_id,
        topic=None if metadata is None else metadata.topic,
        partition=None if metadata is None else metadata.partition,
        offset=None if metadata is None else metadata.offset,
        timestamp=batch.timestamps[index],
        headers=() if source is None or source.headers is None else source.headers[row],
        raw_key=None if source is None else source.raw_keys[row],
        raw_value=None if source is None else source.raw_values[row],
    )
    return context, Record(
        batch.keys[index], batch.values[index], batch.timestamps[index], batch.headers_of(index)
    )


def dead_letter(
    topic: str, context: ErrorContext, error: Exception, raw: tuple[bytes | None, bytes | None]
) -> DeadLetter:
    stack = "".join(traceback.format_exception(error))
    added: Headers = (
        (_PREFIX + "exception", class_name(error).encode()),
        (_PREFIX + "message", message_of(error).encode()),
        (_PREFIX + "stacktrace", _encoded(stack)),
        (_PREFIX + "topic", None if context.topic is None else context.topic.encode()),
        (
            _PREFIX + "partition",
            None if context.partition is None else str(context.partition).encode(),
        ),
        (_PREFIX + "offset", None if context.offset is None else str(context.offset).encode()),
    )
    return DeadLetter(
        topic=topic,
        key=raw[0],
        value=raw[1],
        headers=context.headers + added,
        timestamp=context.timestamp,
    )


def describe(context: ErrorContext, error: Exception, verb: str, defined: str = "") -> str:
    """Return one sentence on a failed record, without its payload.

    It names the user's line that raised, else the line that `defined` the node.
    """
    place = (
        "a record without an input (a punctuation or a cache flush)"
        if context.topic is None
        else f"{context.topic}-{context.partition} offset {context.offset}"
    )
    node = f"task {context.task_id}"
    if defined and not place_of(error):
        node += f", defined at {defined}"
    return f"{verb} in {context.stage} at {context.node} ({node}), {place}: {located(error)}"


def _encoded(text: str) -> bytes:
    # Error texts may quote lone surrogates, which UTF-8 can't encode.
    return text.encode(errors="backslashreplace")


def _next_step(context: ErrorContext, action: ErrorAction, *, internal: bool) -> str:
    stage = context.stage
    if internal:
        return (
            ". The record belongs to the application's own state and is never skipped; fix the cause of the error, or raise "
            "the topic's limits if it is too large"
        )
    if action == "retry":
        return f'. The {stage}_exception_handler answered "retry", which is for outputs that a time-out kept back'
    return (
        f"{_command_to_read(context)}. To skip such records: --set {stage}_exception_handler=continue "
        "(and --set dead_letter_queue_topic=TOPIC to keep them)"
    )


def _command_to_read(context: ErrorContext) -> str:
    """Return the command that prints the input record, as it is where no serde reads it."""
    if context.topic is None:
        return ""
    raw = " --key bytes --value bytes" if context.stage == "deserialization" else ""
    return (
        f". To read the record: tidewheel consume {context.topic} --partition {context.partition} "
        f"--offset {context.offset}{raw}"
    )


def _fields(context: ErrorContext) -> dict[str, Any]:
    return {
        "topic": context.topic,
        "partition": context.partition,
        "offset": context.offset,
        "node": context.node,
    }


def _columns(letter: DeadLetter, context: ErrorContext) -> OutputColumns:
    return OutputColumns(
        topic=letter.topic,
        partitions=ANY_PARTITION,
        keys=[letter.key],
        values=[letter.value],
        timestamps=[letter.timestamp],
        headers=[letter.headers],
        node=context.node,
        task_id=context.task_id,
        source_topic=context.topic,
        source_partition=context.partition,
        source_offsets=None if context.offset is None else [context.offset],
        dead_letter=True,
    )
