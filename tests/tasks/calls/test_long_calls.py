"""Current call of user code, read from another thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tasks.restore.global_bench import TOPIC, Life, Process
from tidewheel import (
    ErrorContext,
    ErrorResponse,
    JoinWindows,
    Processor,
    PunctuationType,
    Record,
    Serde,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
)
from tidewheel.state_stores.ports import SerdePort
from tidewheel.tasks.calls.call_watch import CallWatch, Limits
from tidewheel.tasks.calls.long_calls import UserCall, call_of
from tidewheel.testing import TopologyTestDriver

STUCK = "stuck"


class Gate:
    """Blocks callers with the stuck value until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def wait(self, value: object) -> Any:
        if value in (STUCK, STUCK.encode()):
            self.entered.set()
            assert self.opened.wait(60)
        return value

    async def wait_async(self, value: object) -> Any:
        if value == STUCK:
            self.entered.set()
            while not self.opened.is_set():  # noqa: ASYNC110 - the event is another thread's
                await asyncio.sleep(0.01)
        return value


@contextmanager
def _stuck(
    gate: Gate, work: Callable[[], object], wanted: Callable[[UserCall], bool] = lambda _: True
) -> Iterator[UserCall]:
    """Run an action in a thread until it is stuck; return its call."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive() and not gate.entered.wait(0.05):
        pass
    assert not errors
    try:
        deadline_s = time.monotonic() + 60
        call = None
        while call is None or not wanted(call):  # the thread blocks right after this
            assert time.monotonic() < deadline_s, call
            time.sleep(0.01)
            call = call_of(thread.ident or 0)
        yield call
    finally:
        gate.opened.set()
        thread.join(60)
        assert not thread.is_alive()


def _run(build: Callable[[StreamsBuilder], object], values: list[str], **settings: Any) -> None:
    builder = StreamsBuilder()
    build(builder)
    with TopologyTestDriver(
        builder.build(), StreamsConfig(application_id="a", **settings)
    ) as driver:
        source = driver.create_input_topic(
            "in", key_serde=Serdes.string(), value_serde=Serdes.string()
        )
        source.pipe_batch([("k", value, 1_000) for value in values])
        driver.advance_wall_clock_time(1_000)


def _in(builder: StreamsBuilder, gate: Gate | None = None) -> Any:
    serde: SerdePort = Serdes.string()
    if gate is not None:
        serde = Serde(lambda _, value: value.encode(), lambda _, data: gate.wait(data).decode())
    return builder.stream("in", key_serde=Serdes.string(), value_serde=serde)


class _Blocks(Processor[str, str, str, str]):
    def __init__(self, gate: Gate, where: str) -> None:
        self._gate, self._where = gate, where

    def init(self, context: Any) -> None:
        super().init(context)
        if self._where == "init":
            self._gate.wait(STUCK)
        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self._punctuated)

    def process(self, record: Record[str, str]) -> None:
        if self._where == "process":
            self._gate.wait(record.value)

    def _punctuated(self, _now_ms: int) -> None:
        if self._where == "punctuation":
            self._gate.wait(STUCK)

    def close(self) -> None:
        if self._where == "close":
            self._gate.wait(STUCK)


def _extract(gate: Gate) -> Callable[[Any, int], int]:
    def extract(record: Any, _highest: int) -> int:
        gate.wait(record.value)
        return int(record.timestamp)

    return extract


def _windowed(builder: StreamsBuilder, gate: Gate) -> None:
    grouped = _in(builder).group_by_key().windowed_by(TimeWindows(1_000))
    grouped.aggregate(str, lambda _key, value, _old: gate.wait(value), value_serde=str)


def _joined(builder: StreamsBuilder, gate: Gate) -> None:
    stream = _in(builder)
    other = stream.map_values(lambda value: value)
    stream.join(
        other,
        lambda left, _right: gate.wait(left),
        within=JoinWindows(1_000),
        other_value_serde=str,
        value_serde=str,
        key_serde=str,
    )


SHAPES: dict[str, Callable[[StreamsBuilder, Gate], object]] = {
    "map": lambda builder, gate: _in(builder).map_values(gate.wait),
    "async": lambda builder, gate: _in(builder).map_values(gate.wait_async),
    "filter": lambda builder, gate: _in(builder).filter(gate.wait),
    "flat_map": lambda builder, gate: _in(builder).flat_map_values(lambda value: [gate.wait(value)]),
    "batches": lambda builder, gate: _in(builder).map_values_batch(
        lambda values: list(map(gate.wait, values))
    ),
    "aggregate": lambda builder, gate: (
        _in(builder).group_by_key().aggregate(str, lambda _k, value, _old: gate.wait(value), value_serde=str)
    ),
    "window": _windowed,
    "join": _joined,
    "serde": _in,
    "extractor": lambda builder, gate: builder.stream(
        "in", key_serde=Serdes.string(), value_serde=Serdes.string(), timestamp_extractor=_extract(gate)
    ).foreach(print),
    "topic name": lambda builder, gate: _in(builder).to(
        lambda _key, value, _context: gate.wait(value), key_serde=str, value_serde=str
    ),
    "partitioner": lambda builder, gate: _in(builder).to(
        "out",
        key_serde=str,
        value_serde=str,
        partitioner=lambda _topic, _key, value, _count: bool(gate.wait(value)) * 0,
    ),
    "process": lambda builder, gate: _in(builder).process(lambda: _Blocks(gate, "process")),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_is_found_with_its_record(shape: str) -> None:
    gate = Gate()

    def build(builder: StreamsBuilder) -> None:
        SHAPES[shape](builder, gate)

    with _stuck(gate, lambda: _run(build, ["a", "b", STUCK, "c"])) as call:
        assert call.record == ("in", 0, 2), call
        assert "test_long_calls.py:" in call.function
        assert "in-0 offset 2" in call.text
        assert call.node.startswith("KSTREAM-")
        assert call.task == "0_0"


def _handler(gate: Gate) -> Callable[..., ErrorResponse]:
    def handle(_context: ErrorContext, _record: Any, _error: Exception) -> ErrorResponse:
        gate.wait(STUCK)
        return ErrorResponse(action="continue")

    return handle


def _refused(_topic: str, _data: Any) -> Any:
    raise ValueError("refused")


@pytest.mark.parametrize("where", ["deserialization", "processing", "production"])
def test_a_call_of_an_exception_handler_is_found(where: str) -> None:
    gate = Gate()
    string = Serdes.string()

    def reading(_topic: str, data: bytes) -> str:
        return str(_refused("", data)) if data == STUCK.encode() else data.decode()

    def writing(_topic: str, value: str) -> bytes:
        return bytes(_refused("", value)) if value == STUCK else value.encode()

    def fails(value: str) -> str:
        return str(_refused("", value)) if value == STUCK else value

    def build(builder: StreamsBuilder) -> None:
        serde: SerdePort = Serde(writing, reading) if where == "deserialization" else string
        stream = builder.stream("in", key_serde=string, value_serde=serde)
        if where == "processing":
            stream = stream.map_values(fails)
        of_sink: SerdePort = Serde(writing, reading) if where == "production" else string
        stream.to("out", value_serde=of_sink)

    settings = {f"{where}_exception_handler": _handler(gate)}
    with _stuck(gate, lambda: _run(build, ["a", "b", STUCK, "c"], **settings)) as call:
        assert "_handler.<locals>.handle (" in call.function
        assert "test_long_calls.py:" in call.function
        assert call.task == "0_0"
        assert call.record == ("in", 0, 2), call


def test_a_call_of_a_global_stores_processor_is_found_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()

    class Fill(Processor[str, str, Any, Any]):
        def process(self, record: Record[str, str]) -> None:
            gate.wait(record.value)

    def fill(builder: StreamsBuilder) -> None:
        store = Stores.key_value("store", key_serde=str, value_serde=str, logging=False)
        builder.add_global_store(store, TOPIC, Fill, key_serde=str, value_serde=str)

    process = Process(fill)
    process.limits = Limits(0.2, 60.0)
    process.send("a", "x")
    process.send("b", STUCK)
    life = Life(process)
    try:
        life.updater.start()
        assert gate.entered.wait(60)
        deadline_s = time.monotonic() + 60
        while life.updater.watch is None or life.updater.watch.call is None or not caplog.records:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert "Fill.process (" in life.updater.watch.call.text
        assert TOPIC in life.updater.watch.call.text
        warning = next(
            each.getMessage() for each in caplog.records if "has run for" in each.getMessage()
        )
        assert "Fill.process (" in warning
        assert "global stores are not updated meanwhile" in warning
    finally:
        gate.opened.set()
        life.updater.close()


@pytest.mark.parametrize("where", ["init", "punctuation", "close"])
def test_a_call_without_a_record_is_found(where: str) -> None:
    gate = Gate()

    def build(builder: StreamsBuilder) -> None:
        _in(builder).process(lambda: _Blocks(gate, where))

    with _stuck(gate, lambda: _run(build, ["a"])) as call:
        assert call.record is None
        assert call.function.startswith("_Blocks.")
        assert call.task == "0_0"


def test_a_function_written_in_c_is_found() -> None:
    gate = Gate()
    lock = threading.Lock()
    lock.acquire()

    def build(builder: StreamsBuilder) -> None:
        _in(builder).map_values(len).map_values(lock.acquire)

    def work() -> None:
        gate.entered.set()
        _run(build, ["a"])

    with _stuck(gate, work, lambda call: "map_values" in call.text) as call:
        lock.release()
        assert call.record == ("in", 0, 0)
        assert "test_long_calls.py:" in call.function


def test_waits_inside_the_library_are_no_calls() -> None:
    watch = CallWatch(lambda: 0, range_threads=list, receiver=None, limits=Limits(10.0, None))
    watch.start()
    try:
        assert call_of(watch._thread.ident or 0) is None
    finally:
        watch.close()
    assert call_of(watch._thread.ident or 0) is None
