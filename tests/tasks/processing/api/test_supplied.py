"""Faulty user objects: rejected when given, or by an error with the reason."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from tidewheel import (
    FixedKeyProcessor,
    KStream,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    RecordFailedError,
    Stores,
    StreamsBuilder,
    StreamsError,
    Topology,
    TopologyError,
    ValueTransformerWithKey,
)
from tidewheel.testing import TopologyTestDriver

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


class Plain(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class AsyncInit(Plain):
    async def init(self, context: Any) -> None:  # type: ignore[override]
        self.context = context


class AsyncClose(Plain):
    async def close(self) -> None:  # type: ignore[override]
        pass


class YieldingInit(Plain):
    def init(self, context: Any) -> Any:
        yield context


class OldHabit(Processor[str, str, str, str]):
    def process(self, key: str, value: str) -> None:  # type: ignore[override]
        pass


class Mistyped(Processor[str, str, str, str]):
    def proces(self, record: Record[str, str]) -> None:
        pass


class FixedAsyncInit(FixedKeyProcessor[str, str, str]):
    async def init(self, context: Any) -> None:  # type: ignore[override]
        pass

    def process(self, record: Any) -> None:
        pass


class FixedOldHabit(FixedKeyProcessor[str, str, str]):
    def process(self, key: str, value: str) -> None:  # type: ignore[override]
        pass


class Rows(ValueTransformerWithKey[str, str, str]):
    def transform(self, key: str, value: str | None) -> str | None:
        return value


class AsyncTransform(ValueTransformerWithKey[str, str, str]):
    async def transform(self, key: str, value: str | None) -> str | None:  # type: ignore[override]
        return value


class AsyncRowsInit(Rows):
    async def init(self, context: Any) -> None:  # type: ignore[override]
        pass


class OneArgument(ValueTransformerWithKey[str, str, str]):
    def transform(self, value: str | None) -> str | None:  # type: ignore[override]
        return value


def stream_of(builder: StreamsBuilder) -> KStream[str, str]:
    return builder.stream("in", **TEXT)


def pass_to_process(supplier: Any) -> None:
    stream_of(StreamsBuilder()).process(supplier)


def pass_to_process_values(supplier: Any) -> None:
    stream_of(StreamsBuilder()).process_values(supplier)


def pass_to_transform_values(supplier: Any) -> None:
    StreamsBuilder().table("in", **TEXT).transform_values(supplier)


def pass_to_add_processor(supplier: Any) -> None:
    Topology().add_source("read", "in", **TEXT).add_processor("p", supplier, ["read"])


def pass_to_global_store(supplier: Any) -> None:
    builder = Stores.key_value("kept", logging=False, **TEXT)
    StreamsBuilder().add_global_store(builder, "in", supplier)


@pytest.mark.parametrize("as_function", [False, True])
@pytest.mark.parametrize(
    ("give", "made", "message"),
    [
        (pass_to_process, AsyncInit, "AsyncInit.init is an async function; give a plain one"),
        (pass_to_process, AsyncClose, "AsyncClose.close is an async function; give a plain one"),
        (pass_to_process, YieldingInit, "YieldingInit.init is a generator, which would never run"),
        (pass_to_process, OldHabit, r"OldHabit.process can't be called as process\(record\)"),
        (
            pass_to_process,
            Mistyped,
            r"Mistyped has no process of its own; override process\(record\)",
        ),
        (pass_to_add_processor, AsyncInit, "AsyncInit.init is an async function"),
        (pass_to_global_store, AsyncInit, "AsyncInit.init is an async function"),
        (pass_to_global_store, OldHabit, "OldHabit.process can't be called"),
        (pass_to_process_values, FixedAsyncInit, "FixedAsyncInit.init is an async function"),
        (pass_to_process_values, FixedOldHabit, "FixedOldHabit.process can't be called"),
        (
            pass_to_transform_values,
            AsyncTransform,
            "AsyncTransform.transform is an async function; give a plain one",
        ),
        (pass_to_transform_values, AsyncRowsInit, "AsyncRowsInit.init is an async function"),
        (
            pass_to_transform_values,
            OneArgument,
            r"OneArgument.transform can't be called as transform\(key, value\)",
        ),
    ],
)
def test_methods_that_never_run_are_refused_at_the_call_with_the_supplier(
    give: Callable[[Any], None], made: Callable[[], Any], message: str, *, as_function: bool
) -> None:
    supplier = partial(made) if as_function else made
    with pytest.raises(TopologyError, match=rf"\(.*test_supplied\.py:\d+\): {message}"):
        give(supplier)


def test_the_signature_of_a_wrapper_counts() -> None:
    told: list[Any] = []

    def of_key_and_value(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def process(self: Any, record: Record[str, str]) -> None:
            function(self, record.key, record.value)

        return process

    class Wrapped(Processor[str, str, str, str]):
        @of_key_and_value
        def process(self, key: str, value: str) -> None:
            told.append((key, value))

    class Static(Processor[str, str, str, str]):
        @staticmethod
        def process(record: Record[str, str]) -> None:
            told.append(record.value)

    run(Wrapped)
    run(Static)
    assert told == [("k", "v"), "v"]


def run(supplier: Callable[[], Processor[str, str, str, str]], **record: Any) -> list[Any]:
    builder = StreamsBuilder()
    stream_of(builder).process(supplier, name="mine").to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", **TEXT).pipe_input("k", "v", **{"timestamp": 5, **record})
        return driver.create_output_topic("out", **TEXT).read_records()


def doing(work: Callable[[Any, Any], Any]) -> type[Processor[str, str, str, str]]:
    class Doing(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> Any:
            return work(self.context, record)

    return Doing


def test_forwarding_while_nodes_are_initialised_is_refused() -> None:
    class Eager(Plain):
        def init(self, context: ProcessorContext[str, str]) -> None:
            super().init(context)
            context.forward(Record("k", "v", 1))

    with pytest.raises(
        StreamsError,
        match=r"mine: forward\(\) before the topology is initialised; use process\(\) or a punctuator",
    ):
        run(Eager)


def plain_callable(_context: Any, _record: Any) -> Any:
    return partial(int)


@pytest.mark.parametrize("result", ["text", 0, False, [], plain_callable])
def test_process_must_return_none(result: Any) -> None:
    class Waits(Processor[str, str, str, str]):
        async def process(self, record: Record[str, str]) -> Any:
            return result

    for supplier in (doing(lambda _context, _record: result), Waits):
        with pytest.raises(
            RecordFailedError,
            match=rf"failed in processing at mine .*{supplier.__name__} returned .* use context\.forward\(record\)",
        ):
            run(supplier)


def test_a_coroutine_that_a_plain_process_returns_is_run() -> None:
    async def later(context: Any, record: Record[str, str]) -> None:
        context.forward(record.replace(value="later"))

    assert [record.value for record in run(doing(later))] == ["later"]


@pytest.mark.parametrize("thing", ["v", ("k", "v"), None, {"key": "k"}])
def test_only_records_are_forwarded(thing: Any) -> None:
    with pytest.raises(
        RecordFailedError,
        match=rf"mine: forward takes a Record\(key, value, timestamp\), .*{type(thing).__name__}",
    ):
        run(doing(lambda context, _record: context.forward(thing)))


def test_headers_in_a_list_are_accepted_and_in_a_dictionary_refused() -> None:
    def forwarded(headers: Any) -> list[Any]:
        return run(doing(lambda context, record: context.forward(record.replace(headers=headers))))

    (record,) = forwarded([("trace", b"1"), ("none", None)])
    assert record.headers == (("trace", b"1"), ("none", None))
    with pytest.raises(
        RecordFailedError, match=r"mine forwarded a record whose headers are of type dict"
    ):
        forwarded({"trace": b"1"})


def tick_without_argument() -> None: ...


def yields(now_ms: int) -> Any:
    yield now_ms


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (tick_without_argument, "tick_without_argument, which can't be called with one timestamp"),
        (lambda now_ms, more: None, "<lambda>, which can't be called with one timestamp"),
        (yields, "a generator"),
    ],
)
def test_a_callback_accepts_one_timestamp(callback: Any, message: str) -> None:
    class Scheduling(Plain):
        def init(self, context: ProcessorContext[str, str]) -> None:
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, callback)

    with pytest.raises(
        TypeError,
        match=f"mine: a schedule's callback must be a plain function .* it is .*{message}",
    ):
        run(Scheduling)
