"""Outputs between processing and commit: staging, sizes, refused records."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeReader
from tests.tasks.task.outputs import collector_of, columns_of
from tidewheel import RecordFailedError, StreamsError
from tidewheel.tasks.commit.output_collector import RECORD_OVERHEAD_BYTES, drop, record_bytes
from tidewheel.tasks.kafka.ports import FailedDelivery
from tidewheel.tasks.processing.api.handlers import DeadLetter, ErrorContext, ErrorResponse
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers
from tidewheel.tasks.processing.engine.output import OutputColumns

PAYLOAD = st.none() | st.binary(max_size=30)


class Sinks:
    def __init__(self) -> None:
        self.sent: list[OutputColumns] = []
        self.closes: list[float] = []

    def produce(self, columns: OutputColumns) -> None:
        self.sent.append(columns)

    def serve(self) -> None: ...

    def flush(self) -> list[FailedDelivery]:
        return []

    def close(self, wait_s: float = 0.0) -> None:
        self.closes.append(wait_s)


def test_exactly_once_stages_everything() -> None:
    collector = collector_of()
    first, second = columns_of("out", b"1", b"2"), columns_of("app-r", b"3")
    collector.add(first, internal=False)
    collector.add(second, internal=True)
    assert collector.staged_bytes > 3
    assert collector.pop_staged() == [first, second]
    assert (collector.pop_staged(), collector.staged_bytes) == ([], 0)
    assert collector.produced == 3


def test_at_least_once_sends_sinks_immediately_and_stages_internal_records() -> None:
    sinks = Sinks()
    collector = collector_of(sinks=sinks)
    outside, inside = columns_of("out", b"1"), columns_of("app-r", b"2")
    collector.add(outside, internal=False)
    collector.add(inside, internal=True)
    assert sinks.sent == [outside]
    assert collector.pop_staged() == [inside]


@given(
    st.lists(
        st.tuples(PAYLOAD, PAYLOAD, st.lists(st.tuples(st.text(max_size=5), PAYLOAD), max_size=2)),
        min_size=1,
    )
)
def test_staged_bytes_count_every_payload(records: list[Any]) -> None:
    collector = collector_of()
    columns = columns_of(
        "out",
        *(value for _, value, _ in records),
        keys=[key for key, _, _ in records],
        headers=[tuple(headers) for _, _, headers in records],
    )
    collector.add(columns, internal=False)
    payload = sum(len(key or b"") + len(value or b"") for key, value, _ in records)
    assert collector.staged_bytes >= payload + sum(
        len(name.encode()) + len(data or b"") for _, _, headers in records for name, data in headers
    )


def sized(size: int) -> bytes:
    return bytes(size - RECORD_OVERHEAD_BYTES - 2)


def test_a_record_at_the_limit_passes() -> None:
    collector = collector_of(limits={"out": 500})
    collector.add(columns_of("out", sized(500)), internal=False)
    assert collector.produced == 1


@pytest.mark.parametrize("headers", [None, [(), (("h", b"v"),), ()]])
def test_a_record_too_large_is_left_out_if_the_handler_continues(headers: Any) -> None:
    handlers = ErrorHandlers(production="continue", dead_letter_topic="dead")
    collector = collector_of(handlers, limits={"out": 500})
    columns = columns_of("out", b"1", sized(501), b"3", partitions=[0, 1, 2], headers=headers)
    collector.add(columns, internal=False)
    dead, kept = collector.pop_staged()
    assert kept is columns
    assert (kept.values, kept.keys, kept.partitions) == ([b"1", b"3"], [b"k0", b"k2"], [0, 2])
    assert kept.source_offsets == [100, 102]
    assert kept.headers == (None if headers is None else [(), ()])
    assert (dead.topic, dead.keys, dead.values) == ("dead", [b"k1"], [sized(501)])
    assert dict(dead.headers[0])["__streams.errors.offset"] == b"101"  # type: ignore[index]


def test_a_record_too_large_stops_the_worker_by_default() -> None:
    collector = collector_of(limits={"out": 500})
    with pytest.raises(
        RecordFailedError, match=r"in-0 offset 101.*501 bytes.*500.*max.message.bytes"
    ) as caught:
        collector.add(columns_of("out", b"1", sized(501)), internal=False)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 0, 101)


def test_headers_count_for_the_size() -> None:
    collector = collector_of(limits={"out": 500})
    with pytest.raises(RecordFailedError):
        collector.add(columns_of("out", b"1", headers=[(("h", bytes(500)),)]), internal=False)


def test_skipped_outputs_are_counted_for_their_task() -> None:
    collector = collector_of(ErrorHandlers(production="continue"), limits={"out": 500})
    collector.add(columns_of("out", b"1", sized(501), sized(502)), internal=False)
    assert collector.policy is not None
    assert collector.policy.skipped_outputs == {columns_of("out").task_id: 2}


@pytest.mark.parametrize("action", ["continue", "retry"])
def test_records_of_the_application_itself_are_never_skipped(action: Any) -> None:
    handlers = ErrorHandlers(production=lambda *_: ErrorResponse(action=action))
    collector = collector_of(handlers, limits={"app-r": 500})
    with pytest.raises(RecordFailedError):
        collector.add(columns_of("app-r", sized(501)), internal=True)


def test_a_record_too_large_is_not_lost_by_asking_to_retry() -> None:
    """Sending it again would not help, so "retry" counts as "fail", as in Kafka Streams."""
    collector = collector_of(
        ErrorHandlers(production=lambda *_: ErrorResponse(action="retry")), limits={"out": 500}
    )
    with pytest.raises(RecordFailedError, match="retry"):
        collector.add(columns_of("out", sized(501)), internal=False)


@pytest.mark.parametrize("as_function", [False, True])
def test_a_dead_letter_too_large_makes_no_further_dead_letter(as_function: bool) -> None:
    asked: list[str] = []

    def handler(context: ErrorContext, record: Any, error: Exception) -> ErrorResponse:
        asked.append(context.node)
        letter = DeadLetter(topic="dead", key=record.key, value=record.value)
        return ErrorResponse(action="continue", dead_letter_records=(letter,))

    setting: Any = handler if as_function else "continue"
    handlers = ErrorHandlers(production=setting, dead_letter_topic="dead")
    collector = collector_of(handlers, limits={"out": 500, "dead": 500})
    collector.add(columns_of("out", b"1", sized(501)), internal=False)
    assert [columns.topic for columns in collector.pop_staged()] == ["out"]
    assert collector.policy is not None
    assert collector.policy.counts.skipped == 2
    assert len(asked) == (2 if as_function else 0)


def test_the_handler_gets_the_input_behind_an_output() -> None:
    seen: list[Any] = []

    def handler(context: ErrorContext, record: Any, error: Exception) -> ErrorResponse:
        seen.append((context, record, error))
        return ErrorResponse(action="continue")

    collector = collector_of(ErrorHandlers(production=handler))
    columns = columns_of("out", b"1", b"2", headers=[(), (("h", b"v"),)])
    error = OSError("disk")
    assert collector.refuse(columns, 1, error) == "continue"
    ((context, record, given_error),) = seen
    assert (context.stage, context.node, context.task_id) == ("production", "sink-out", "0_0")
    assert (context.topic, context.partition, context.offset) == ("in", 0, 101)
    assert (record.key, record.value, record.headers) == (b"k1", b"2", (("h", b"v"),))
    assert given_error is error


class Inputs:
    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.broker.create_topic("in")
        first = columns_of(
            "in",
            *(b"input %d" % index for index in range(110)),
            headers=[(("trace", b"%d" % index),) for index in range(110)],
        )
        for index in range(110):
            self.broker.append_columns(first, index, None)
        self.readers: list[FakeReader] = []

    def __call__(self) -> FakeReader:
        self.readers.append(FakeReader(self.broker))
        return self.readers[-1]


@pytest.mark.parametrize("at_least_once", [False, True])
def test_a_dead_letter_has_the_input_behind_an_output(at_least_once: bool) -> None:
    inputs, sinks = Inputs(), Sinks()
    collector = collector_of(
        ErrorHandlers(production="continue", dead_letter_topic="dead"),
        sinks=sinks if at_least_once else None,
        limits={"out": 5_000, "dead": 5_000},
        make_input_reader=inputs,
    )
    collector.add(columns_of("out", b"1", sized(5_001), sized(5_001)), internal=False)

    first, second, kept = sinks.sent if at_least_once else collector.pop_staged()
    assert kept.values == [b"1"]
    assert (first.topic, first.keys, first.values) == ("dead", [b"k101"], [b"input 101"])
    assert (second.topic, second.keys, second.values) == ("dead", [b"k102"], [b"input 102"])
    assert first.headers is not None
    assert first.headers[0][0] == ("trace", b"101")
    assert dict(first.headers[0])["__streams.errors.offset"] == b"101"
    (reader,) = inputs.readers
    with collector:
        pass
    assert reader.closed


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (RecordFailedError("no", topic="in", partition=0, offset=1), True),
        (StreamsError("no"), False),
    ],
)
def test_a_failed_record_s_dead_letter_is_waited_for(error: StreamsError, waits: bool) -> None:
    sinks = Sinks()
    with pytest.raises(type(error)), collector_of(ErrorHandlers(), sinks=sinks):
        raise error
    assert [wait_s > 0 for wait_s in sinks.closes] == [waits]


def test_an_output_without_an_input_becomes_the_dead_letter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inputs = Inputs()
    collector = collector_of(
        ErrorHandlers(production="continue", dead_letter_topic="dead"),
        limits={"out": 5_000, "dead": 8_000},
        make_input_reader=inputs,
    )
    columns = columns_of("out", sized(5_001), sized(9_000), source_topic=None, source_offsets=None)
    collector.add(columns, internal=False)
    (letter,) = collector.pop_staged()
    assert (letter.keys, letter.values) == ([b"k0"], [sized(5_001)])
    assert inputs.readers == []
    (lost,) = (text for text in caplog.messages if "dead letter is lost" in text)
    assert "the topic accepts 8000" in lost


@pytest.mark.parametrize("setting", ["fail", "continue"])
def test_inputs_are_reread_only_for_dead_letters_and_functions(setting: Any) -> None:
    inputs = Inputs()
    handlers = ErrorHandlers(production=setting)
    collector = collector_of(handlers, limits={"out": 500}, make_input_reader=inputs)
    if setting == "fail":
        with pytest.raises(RecordFailedError):
            collector.add(columns_of("out", sized(501)), internal=False)
    else:
        collector.add(columns_of("out", sized(501)), internal=False)
    assert inputs.readers == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_handler_function_gets_the_raw_input(is_there: bool) -> None:
    seen: list[Any] = []

    def handler(context: ErrorContext, record: Any, _: Exception) -> ErrorResponse:
        seen.append((context.raw_key, context.raw_value, context.headers, record.value))
        return ErrorResponse(action="continue")

    inputs = Inputs()
    if not is_there:
        inputs.broker.delete_topic("in")
    collector = collector_of(ErrorHandlers(production=handler), make_input_reader=inputs)
    collector.refuse(columns_of("out", b"1"), 0, OSError("disk"))
    expected = (b"k100", b"input 100", (("trace", b"100"),)) if is_there else (None, None, ())
    assert seen == [(*expected, b"1")]


@given(st.lists(st.integers(0, 9), unique=True), st.booleans())
def test_dropping_keeps_columns_together(indices: list[int], listed: bool) -> None:
    columns = columns_of(
        "out",
        *(b"%d" % i for i in range(10)),
        partitions=list(range(10)) if listed else 7,
        headers=[(("h", b"%d" % i),) for i in range(10)],
    )
    drop(columns, indices)
    left = [i for i in range(10) if i not in indices]
    assert columns.values == [b"%d" % i for i in left]
    assert columns.keys == [b"k%d" % i for i in left]
    assert columns.source_offsets == [100 + i for i in left]
    assert columns.headers == [(("h", b"%d" % i),) for i in left]
    assert columns.partitions == (left if listed else 7)
    assert len(columns) == len(left)


def test_an_estimate_is_never_below_the_payload() -> None:
    columns = columns_of("out", b"value", headers=[(("é", b"12"), ("n", None))])
    assert record_bytes(columns, 0) >= len(b"k0") + len(b"value") + len("é".encode()) + 2 + 1
