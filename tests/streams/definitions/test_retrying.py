import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tidewheel import Serdes, StreamsBuilder, StreamsConfig, TopologyError, retrying
from tidewheel.streams.definitions.retrying import _Waits
from tidewheel.tasks.processing.api.coroutines import close_loop, wait_for
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()


class Flaky:
    def __init__(self, failures: int, error: type[Exception] = OSError) -> None:
        self.failures = failures
        self.error = error
        self.calls: list[Any] = []

    def __call__(self, value: str) -> str:
        self.calls.append(value)
        if self.calls.count(value) <= self.failures:
            raise self.error(f"call {self.calls.count(value)} of {value}")
        return value.upper()


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def nap(seconds: float) -> None:
        if threading.get_ident() == own:
            waits.append(seconds)
        else:  # of other tests' Spark, for example
            real(seconds)

    own, real = threading.get_ident(), time.sleep
    monkeypatch.setattr("tidewheel.streams.definitions.retrying.time.sleep", nap)
    monkeypatch.setattr("tidewheel.streams.definitions.retrying.asyncio.sleep", sleep)
    monkeypatch.setattr(
        "tidewheel.streams.definitions.retrying.random.uniform", lambda _least, most: most
    )
    return waits


def in_async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def awaited(*arguments: Any) -> Any:
        return function(*arguments)

    return awaited


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    result = function(*arguments)
    try:
        return wait_for(result) if inspect.iscoroutine(result) else result
    finally:
        close_loop()


@pytest.mark.parametrize("kind", ["plain", "async"])
class TestBoth:
    def test_a_function_is_called_until_it_succeeds(self, kind: str, waited: list[float]) -> None:
        flaky = Flaky(2)
        function = flaky if kind == "plain" else in_async(flaky)
        assert called(retrying(function, attempts=5, backoff=100), "a") == "A"
        assert flaky.calls == ["a"] * 3
        assert waited == [0.1, 0.2], "twice as long each time"

    def test_the_last_error_is_raised(self, kind: str, waited: list[float]) -> None:
        flaky = Flaky(9)
        function = flaky if kind == "plain" else in_async(flaky)
        limited = retrying(function, attempts=4, backoff=timedelta(seconds=1), max_backoff=1_500)
        with pytest.raises(OSError, match="call 4 of a"):
            called(limited, "a")
        assert waited == [1.0, 1.5, 1.5]

    def test_other_errors_are_raised_without_a_retry(self, kind: str, waited: list[float]) -> None:
        flaky = Flaky(9, KeyError)
        function = flaky if kind == "plain" else in_async(flaky)
        with pytest.raises(KeyError):
            called(retrying(function, attempts=4, on=(OSError, TimeoutError)), "a")
        assert flaky.calls == ["a"]
        assert waited == []

    def test_the_processing_handler_gets_the_last_error(
        self, kind: str, waited: list[float]
    ) -> None:
        flaky = Flaky(2)
        function = flaky if kind == "plain" else in_async(flaky)
        builder = StreamsBuilder()
        stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
        answers = stream.map_values(retrying(function, attempts=2))
        answers.to("few", key_serde=STRING, value_serde=STRING)
        config = StreamsConfig(
            application_id="app",
            bootstrap_servers="unused:9092",
            processing_exception_handler="continue",
        )
        with TopologyTestDriver(builder.build(config), config) as driver:
            driver.create_input_topic("in", key_serde=STRING, value_serde=STRING).pipe_batch(
                [("k", "a", 1), ("k", "a", 2)]
            )
            output = driver.create_output_topic("few", key_serde=STRING, value_serde=STRING)
            assert [(each.value, each.timestamp) for each in output.read_records()] == [("A", 2)]
        assert len(waited) == 1, "before the second call of the first record"


def test_waits_differ_but_not_much() -> None:
    waits = [next(iter(_Waits(2, 8.0, 10.0))) for _ in range(200)]
    assert all(wait is not None and 4.0 <= wait <= 8.0 for wait in waits)
    assert len(set(waits)) > 1


def test_retrying_is_a_decorator_too() -> None:
    @retrying(attempts=2)
    async def ask(key: str, value: str) -> str:
        return key + value

    assert ask.__name__ == "ask"
    assert list(inspect.signature(ask).parameters) == ["key", "value"]
    assert inspect.iscoroutinefunction(ask)
    assert called(ask, "a", "b") == "ab"


def test_a_call_longer_than_its_timeout_is_cancelled_and_repeated(waited: list[float]) -> None:
    cancelled: list[int] = []

    async def stuck(value: str) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(len(cancelled))
            raise
        return value

    with pytest.raises(TimeoutError, match="5 ms"):
        called(retrying(stuck, attempts=3, timeout=5), "a")
    assert cancelled == [0, 1, 2]
    assert len(waited) == 2


def test_a_time_out_has_the_text_of_the_last_other_error(waited: list[float]) -> None:
    answers = iter(["first", "second", "stuck", "stuck"])

    async def fails(value: str) -> None:
        answer = next(answers)
        if answer == "stuck":
            await asyncio.Event().wait()
        raise OSError(answer)

    with pytest.raises(TimeoutError) as raised:
        called(retrying(fails, attempts=4, timeout=5), "a")
    assert "OSError: second" in str(raised.value)
    assert len(waited) == 3


def test_a_time_out_of_the_function_keeps_its_own_text() -> None:
    async def fails(value: str) -> None:
        raise TimeoutError("the service was slow")

    with pytest.raises(TimeoutError, match=r"^the service was slow$"):
        called(retrying(fails, attempts=1, timeout=60_000), "a")


@pytest.mark.parametrize("awaits", [True, False])
def test_the_last_error_has_a_note_of_an_earlier_one(waited: list[float], awaits: bool) -> None:
    answers = iter([OSError("unreachable"), ValueError("refused")])

    def fails(value: str) -> None:
        raise next(answers)

    with pytest.raises(ValueError, match=r"^refused") as raised:
        called(retrying(in_async(fails) if awaits else fails, attempts=2), "a")
    assert "OSError: unreachable" in raised.value.__notes__[0]


def test_a_coroutine_that_is_cancelled_is_not_called_again() -> None:
    calls: list[str] = []

    async def gives_up(value: str) -> None:
        calls.append(value)
        raise asyncio.CancelledError

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await retrying(gives_up, attempts=5)("a")

    asyncio.run(run())
    assert calls == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": True}, "attempts=True"),
        ({"backoff": -1}, "backoff"),
        ({"timeout": 5}, "can't be stopped"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        retrying(str.upper, **arguments)
