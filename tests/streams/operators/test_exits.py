"""`SystemExit` in user code fails its record only."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.streams.operators.run import JSON, Row, driver_of, run
from tidewheel import (
    ErrorContext,
    ErrorResponse,
    KStream,
    Processor,
    Record,
    RecordFailedError,
    Serde,
    StreamsBuilder,
    StreamsConfig,
)
from tidewheel.testing import TopologyTestDriver

ROWS: list[Row] = [("a", 1, 1), ("b", 0, 2), ("c", 3, 3)]


def _checked(value: int) -> int:
    return value or sys.exit(0)


async def _awaited(value: int) -> int:
    return _checked(value)


class _Checks(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        _checked(record.value)
        self.context.forward(record)


class _Waits(Processor[Any, Any, Any, Any]):
    async def process(self, record: Record[Any, Any]) -> None:
        await _awaited(record.value)
        self.context.forward(record)


def _counted(stream: KStream[Any, Any]) -> Any:
    counts = stream.group_by_key(key_serde=JSON, value_serde=JSON).aggregate(
        lambda: 0, lambda _key, value, _total: _checked(value), value_serde=JSON
    )
    return counts.to_stream()


USES: dict[str, Callable[[KStream[Any, Any]], Any]] = {
    "function": lambda stream: stream.map_values(_checked),
    "predicate": lambda stream: stream.filter(lambda _key, value: _checked(value) > 0),
    "processor": lambda stream: stream.process(_Checks),
    "coroutine": lambda stream: stream.process(_Waits),
    "aggregator": _counted,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_only_the_record_on_which_a_function_exits_is_skipped(
    use: Callable[[KStream[Any, Any]], Any],
) -> None:
    told: list[tuple[int | None, str, BaseException | None]] = []

    def skip(context: ErrorContext, _record: Record[Any, Any], error: Exception) -> ErrorResponse:
        told.append((context.offset, str(error), error.__cause__))
        return ErrorResponse(action="continue")

    assert run(use, ROWS, processing_exception_handler=skip) == [ROWS[0], ROWS[2]]
    ((offset, said, cause),) = told
    assert offset == 1
    assert said == "it raised SystemExit(0), which ends no worker; raise an exception of your own"
    assert isinstance(cause, SystemExit)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_exit_that_is_not_skipped_is_named_by_its_place(
    use: Callable[[KStream[Any, Any]], Any],
) -> None:
    with driver_of(use) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        place = r"failed in processing at \S+ \(task 0_0\), in-0 offset 1: RuntimeError: it raised SystemExit\(0\)"
        with pytest.raises(RecordFailedError, match=place) as failed:
            source.pipe_batch(ROWS)
    assert (failed.value.topic, failed.value.partition, failed.value.offset) == ("in", 0, 1)


def test_ctrl_c_in_a_function_fails_no_record() -> None:
    def interrupted(_value: object) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lambda stream: stream.map_values(interrupted), ROWS)


def test_a_serde_that_exits_is_passed_to_the_deserialization_handler() -> None:
    serde = Serde[str](
        lambda _topic, value: value.encode(), lambda _topic, data: str(_checked(int(data)))
    )
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=serde).to("out", key_serde=str)
    config = StreamsConfig(
        application_id="exits",
        bootstrap_servers="unused:9092",
        deserialization_exception_handler="continue",
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=str)
        source.pipe_batch([("a", "1", 1), ("b", "0", 2), ("c", "3", 3)])
        out = driver.create_output_topic("out", key_serde=str, value_serde=str)
        assert out.read_key_values() == [("a", "1"), ("c", "3")]


def test_a_handler_that_exits_counts_as_fail() -> None:
    def handler(*_told: object) -> NoReturn:
        sys.exit(3)

    with pytest.raises(RecordFailedError, match=r"handler failed on it: SystemExit: 3"):
        run(USES["function"], ROWS, processing_exception_handler=handler)
