"""Error policy: each answer at each stage, dead letters as Kafka Streams writes them."""

import logging
from typing import Any

import pytest

from tidewheel import RecordFailedError, SchemaRegistryError
from tidewheel.tasks.processing.api.handlers import (
    DeadLetter,
    ErrorContext,
    ErrorResponse,
    ErrorStage,
)
from tidewheel.tasks.processing.api.record import Record
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers, ErrorPolicy, describe
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

STAGES: list[ErrorStage] = ["deserialization", "processing", "production"]
RAW = (b"\xffraw key", b"\xffraw value")


def context_of(stage: ErrorStage, **changes: Any) -> ErrorContext:
    return ErrorContext(
        **{
            "stage": stage,
            "node": "the-node",
            "task_id": "0_2",
            "topic": "in",
            "partition": 2,
            "offset": 77,
            "timestamp": 5_000,
            "headers": (("trace", b"1"), ("trace", None)),
            "raw_key": RAW[0],
            "raw_value": RAW[1],
            **changes,
        }
    )


class Outcome:
    def __init__(
        self, stage: ErrorStage, setting: Any, *, dead_letter_topic: str | None = None
    ) -> None:
        self.stage = stage
        self.emitted: list[OutputColumns] = []
        handlers = ErrorHandlers(**{stage: setting}, dead_letter_topic=dead_letter_topic)
        self.policy = ErrorPolicy(handlers, self.emitted.append)

    def fail(self, error: Exception | None = None, **changes: Any) -> str:
        try:
            _raise(error or ValueError("bad amount"))
        except Exception as raised:  # noqa: BLE001 - as the engine does
            given = {
                name: changes.pop(name)
                for name in ("internal", "retriable", "dead_letter")
                if name in changes
            }
            context = context_of(self.stage, **changes)
            return self.policy.apply(
                context, Record("key", "value", 5_000), raised, raw=RAW, **given
            )
        raise AssertionError


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("stage", STAGES)
def test_by_default_a_failed_record_stops_the_worker(stage: ErrorStage) -> None:
    with pytest.raises(
        RecordFailedError,
        match=rf"{stage} at the-node \(task 0_2\), in-2 offset 77: ValueError: bad amount.*{stage}_exception_handler",
    ) as caught:
        Outcome(stage, "fail").fail()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 2, 77)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("stage", STAGES)
def test_continue_skips_the_record_and_logs_it(
    stage: ErrorStage, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = Outcome(stage, "continue")
    with caplog.at_level(logging.WARNING):
        assert outcome.fail() == "continue"
    assert (outcome.policy.counts.skipped, outcome.emitted) == (1, [])
    (line,) = caplog.messages
    assert "in-2 offset 77" in line
    assert "raw value" not in line


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("setting", ["fail", "continue"])
def test_dead_letters_have_the_raw_bytes_and_kafka_streams_headers(
    stage: ErrorStage, setting: Any
) -> None:
    """The input's headers come first."""
    outcome = Outcome(stage, setting, dead_letter_topic="dead")
    if setting == "fail":
        with pytest.raises(RecordFailedError):
            outcome.fail()
    else:
        outcome.fail()
    (letter,) = outcome.emitted
    assert (letter.topic, letter.partitions, letter.dead_letter) == ("dead", ANY_PARTITION, True)
    assert (letter.keys, letter.values, letter.timestamps) == ([RAW[0]], [RAW[1]], [5_000])
    assert letter.headers is not None
    headers = letter.headers[0]
    assert headers[:2] == (("trace", b"1"), ("trace", None))
    assert [name for name, _ in headers[2:]] == [
        "__streams.errors.exception",
        "__streams.errors.message",
        "__streams.errors.stacktrace",
        "__streams.errors.topic",
        "__streams.errors.partition",
        "__streams.errors.offset",
    ]
    values = dict(headers)
    assert values["__streams.errors.exception"] == b"ValueError"
    assert values["__streams.errors.message"] == b"bad amount"
    assert b"ValueError: bad amount" in (values["__streams.errors.stacktrace"] or b"")
    assert b"test_error_policy" in (values["__streams.errors.stacktrace"] or b"")
    assert values["__streams.errors.topic"] == b"in"
    assert (values["__streams.errors.partition"], values["__streams.errors.offset"]) == (
        b"2",
        b"77",
    )


def test_a_record_without_an_input_has_null_headers_for_its_place() -> None:
    outcome = Outcome("processing", "continue", dead_letter_topic="dead")
    outcome.fail(topic=None, partition=None, offset=None, headers=(), raw_key=None, raw_value=None)
    (letter,) = outcome.emitted
    assert letter.headers is not None
    assert [value for _, value in letter.headers[0][-3:]] == [None, None, None]
    assert letter.source_offsets is None
    with pytest.raises(RecordFailedError, match="a punctuation or a cache flush") as caught:
        Outcome("processing", "fail").fail(topic=None, partition=None, offset=None)
    assert caught.value.topic is None


@pytest.mark.parametrize("stage", STAGES)
def test_a_handler_function_gets_context_record_and_error(stage: ErrorStage) -> None:
    seen: list[Any] = []

    def handler(context: ErrorContext, record: Record[Any, Any], error: Exception) -> ErrorResponse:
        seen.append((context, record, error))
        letters = tuple(
            DeadLetter(topic=topic, key=b"k", value=b"v", timestamp=9) for topic in ("x", "y")
        )
        return ErrorResponse(action="continue", dead_letter_records=letters)

    outcome = Outcome(stage, handler, dead_letter_topic="not used")
    error = ValueError("bad")
    assert outcome.fail(error) == "continue"
    assert seen == [(context_of(stage), Record("key", "value", 5_000), error)]
    assert [(letter.topic, letter.keys, letter.timestamps) for letter in outcome.emitted] == [
        ("x", [b"k"], [9]),
        ("y", [b"k"], [9]),
    ]
    assert outcome.policy.counts.dead_letters == 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_handler_function_that_returns_fail_stops_the_worker(stage: ErrorStage) -> None:
    letter = DeadLetter(topic="x", key=None, value=None)
    outcome = Outcome(stage, lambda *_: ErrorResponse(action="fail", dead_letter_records=(letter,)))
    with pytest.raises(RecordFailedError):
        outcome.fail()
    assert len(outcome.emitted) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_handler_function_that_raises_counts_as_fail(stage: ErrorStage) -> None:
    def handler(*_: object) -> ErrorResponse:
        raise KeyError("no such setting")

    with pytest.raises(
        RecordFailedError,
        match=rf"in-2 offset 77: ValueError: bad amount.*{stage}_exception_handler failed.*KeyError",
    ) as caught:
        Outcome(stage, handler).fail()
    assert caught.value.offset == 77
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("answer", [None, "continue", True])
def test_a_handler_function_without_an_error_response_counts_as_fail(answer: Any) -> None:
    with pytest.raises(RecordFailedError, match=r"returned (NoneType|str|bool).*ErrorResponse"):
        Outcome("processing", lambda *_: answer).fail()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            {"action": "skip"},
            r"""action='skip': answer "fail", "continue", or "retry" \(for outputs only\)""",
        ),
        (
            {"dead_letter_records": [5]},
            r"dead_letter_records\[0\] of int: each must be a DeadLetter",
        ),
        ({"dead_letter_records": 5}, r"dead_letter_records of int: give a tuple of DeadLetter"),
        (
            {"dead_letter_records": DeadLetter(topic="x", key=None, value=None)},
            r"dead_letter_records of DeadLetter: give a tuple",
        ),
        (
            {"dead_letter_records": (DeadLetter(topic="x", key=None, value="text"),)},  # type: ignore[arg-type]
            r"dead_letter_records\[0\] has a value of str: give bytes, or None",
        ),
        (
            {"dead_letter_records": (DeadLetter(topic="", key=None, value=None),)},
            r"dead_letter_records\[0\] has topic='': name the topic",
        ),
        (
            {
                "dead_letter_records": (
                    DeadLetter(
                        topic="x",
                        key=None,
                        value=None,
                        headers=(("n", 3),),  # type: ignore[arg-type]
                    ),
                )
            },
            r"dead_letter_records\[0\] is wrong: header 0 \('n'\) has a value of type int",
        ),
    ],
)
def test_an_invalid_error_response_is_reported(
    stage: ErrorStage, answer: dict[str, Any], told: str
) -> None:
    def unclear_handler(*_: object) -> ErrorResponse:
        return ErrorResponse(**{"action": "continue", **answer})

    outcome = Outcome(stage, unclear_handler)
    with pytest.raises(
        RecordFailedError,
        match=rf"in-2 offset 77: ValueError: bad amount.*; and the {stage}_exception_handler \(.*test_error_policy.*"
        rf"unclear_handler\) returned an ErrorResponse .*{told}",
    ):
        outcome.fail()
    assert outcome.emitted == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("retriable", [True, False])
def test_retry_counts_only_for_retriable_errors(stage: ErrorStage, retriable: bool) -> None:
    outcome = Outcome(stage, lambda *_: ErrorResponse(action="retry"))
    if retriable:
        assert outcome.fail(retriable=True) == "retry"
        assert outcome.policy.counts.skipped == 0
    else:
        with pytest.raises(RecordFailedError, match="retry"):
            outcome.fail()


@pytest.mark.parametrize("setting", ["continue", lambda *_: ErrorResponse(action="continue")])
def test_records_of_the_application_itself_are_never_skipped(setting: Any) -> None:
    with pytest.raises(RecordFailedError, match="the application's own state and is never skipped"):
        Outcome("production", setting).fail(internal=True)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("half a pair: \ud83d"), UnspeakableError()])
def test_errors_with_unusual_texts_are_reported(error: Exception) -> None:
    assert describe(context_of("processing"), error, "failed").encode()
    outcome = Outcome("processing", "continue", dead_letter_topic="dead")
    assert outcome.fail(error) == "continue"
    (letter,) = outcome.emitted
    assert letter.headers is not None
    assert dict(letter.headers[0])["__streams.errors.message"] in (
        b"half a pair: \\ud83d",
        b"(its text can't be made)",
    )
    with pytest.raises(RecordFailedError, match="offset 77"):
        Outcome("processing", "fail").fail(error)


def test_errors_of_modules_are_named_with_their_module() -> None:
    """Like Java's class names."""
    outcome = Outcome("processing", "continue", dead_letter_topic="dead")
    outcome.fail(UnspeakableError())
    headers = outcome.emitted[0].headers
    assert headers is not None
    assert (dict(headers[0])["__streams.errors.exception"] or b"").endswith(
        b"test_error_policy.UnspeakableError"
    )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "setting", ["fail", "continue", lambda *_: ErrorResponse(action="continue")]
)
def test_errors_of_an_unreachable_registry_bypass_the_handlers(
    stage: ErrorStage, setting: Any
) -> None:
    outcome = Outcome(stage, setting, dead_letter_topic="dead")
    error = SchemaRegistryError("schema registry http://r can't be reached")

    with pytest.raises(SchemaRegistryError, match="http://r"):
        outcome.fail(error)
    assert outcome.emitted == []
    assert outcome.policy.counts.skipped == 0
