"""Shared loop: coroutine ranges use one loop; functions that may block run in threads."""

import asyncio
import contextvars
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tasks.key_ranges.programs import LONG, STRING, TEXT
from tests.tasks.loop.bench import Bench
from tests.tasks.loop.group_bench import GroupBench
from tidewheel import (
    ErrorResponse,
    Processor,
    PunctuationType,
    Record,
    StreamsBuilder,
    Topology,
    retrying,
)

THREADS = 4
AWAITING = "tidewheel-awaiting"

Supplier = type[Processor[str, str, str, str]]


def _with(*suppliers: Supplier) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    for supplier in suppliers:
        stream = stream.process(supplier)
    stream.to("out", **TEXT)
    return builder.build()


def _live(topology: Topology, records: int, keys: int = 20, **options: Any) -> Bench:
    bench = Bench(topology, {"in": 1, "out": 1}, commit_interval_ms=5, **options)
    bench.idle_polls = 3
    for number in range(records):
        bench.send("in", f"k{number % keys}", str(number))
    assert bench.live(threads=THREADS)
    return bench


class ReportPlace(Processor[str, str, str, str]):
    """Processor that reports its thread and loop."""

    keyed = True

    async def process(self, record: Record[str, str]) -> None:
        await asyncio.sleep(0.001)
        here = f"{threading.current_thread().name} {id(asyncio.get_running_loop())}"
        self.context.forward(record.replace(value=here))


class Plain(Processor[str, str, str, str]):
    """Forwards records; a plain function may block."""

    keyed = True

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


def _places(bench: Bench) -> set[tuple[str, ...]]:
    return {tuple((value or b"").decode().split()) for _, value in bench.outputs("out")}


def test_K5_ranges_that_only_await_share_a_loop() -> None:
    places = _places(_live(_with(ReportPlace, ReportPlace), 200))
    assert [thread for thread, _ in places] == [AWAITING]


def test_K5_with_a_plain_function_each_range_has_a_thread_and_all_share_the_loop() -> None:
    class PlainThread(Plain):
        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record.replace(value=threading.current_thread().name))

    class BothThreads(ReportPlace):
        async def process(self, record: Record[str, str]) -> None:
            await asyncio.sleep(0.001)
            loop = id(asyncio.get_running_loop())
            name = threading.current_thread().name
            self.context.forward(record.replace(value=f"{record.value} {name} {loop}"))

    places = _places(_live(_with(PlainThread, BothThreads), 200))
    assert {thread for _, thread, _ in places} == {AWAITING}
    assert len({loop for *_, loop in places}) == 1
    assert all(name.startswith("tidewheel-range-") for name, *_ in places)
    assert len({name for name, *_ in places}) > 1


def test_K5_without_key_ranges_the_worker_s_thread_waits_for_the_same_loop() -> None:
    bench = Bench(_with(ReportPlace, Plain, ReportPlace), {"in": 1, "out": 1})
    for number in range(20):
        bench.send("in", f"k{number}", "v")
    assert bench.live()
    places = _places(bench)
    assert [thread for thread, _ in places] == [AWAITING]


@pytest.mark.parametrize("suppliers", [[], [Plain]], ids=["on the loop", "from threads"])
def test_K5_calls_in_flight_are_limited_for_all_ranges_together(suppliers: list[Supplier]) -> None:
    in_flight, most = 0, 0

    class Call(ReportPlace):
        async def process(self, record: Record[str, str]) -> None:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0.005)
            in_flight -= 1
            self.context.forward(record)

    bench = _live(_with(*suppliers, Call), 60, max_calls_in_flight=2)
    assert len(bench.outputs("out")) == 60
    assert most == 2


def test_K5_a_coroutine_does_not_see_context_of_earlier_ones() -> None:
    said = contextvars.ContextVar("said", default="nothing")

    class ReportContext(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            before = said.get()
            said.set(record.value)
            await asyncio.sleep(0.001)
            self.context.forward(record.replace(value=f"{before} {said.get() == record.value}"))

    bench = _live(_with(ReportContext), 40, keys=4)
    assert {value for _, value in bench.outputs("out")} == {b"nothing True"}


def _cancels(_record: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _swallows(record: Any) -> None:
    _cancels(record)
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ValueError from None


def _raises(record: Any) -> None:
    _cancels(record)
    raise ValueError


@pytest.mark.parametrize("cancel", [_cancels, _swallows, _raises])
def test_K5_a_coroutine_that_cancels_itself_cancels_no_other(
    cancel: Callable[[Any], Any],
) -> None:
    class Cancel(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            if int(record.value) % 10 == 0:
                waits_for = cancel(record)
                if waits_for is not None:
                    await waits_for
            else:
                await asyncio.sleep(0)
                self.context.forward(record)

    failed: list[int] = []

    def note(_context: object, record: Record[str, str], _error: Exception) -> ErrorResponse:
        failed.append(int(record.value))
        return ErrorResponse(action="continue")

    bench = _live(_with(Cancel), 60, keys=3, processing_exception_handler=note)
    found = sorted(int(value or b"") for _, value in bench.outputs("out"))
    assert found == [number for number in range(60) if number % 10]
    assert sorted(failed) == list(range(0, 60, 10))


def _exits(_record: Any) -> None:
    raise SystemExit(3)


async def _times_out(_record: Any) -> None:
    await retrying(_hangs, attempts=2, backoff=1, timeout=5)()


async def _hangs() -> None:
    await asyncio.Event().wait()


def _is_cancelled(_record: Any) -> Any:
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    return other


@pytest.mark.parametrize("fail", [_exits, _times_out, _is_cancelled])
def test_K5_a_coroutine_that_fails_stops_no_other_range(fail: Callable[[Any], Any]) -> None:
    class Fail(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            await asyncio.sleep(0)
            if int(record.value) % 10 == 0:
                waits_for = fail(record)
                if waits_for is not None:
                    await waits_for
            self.context.forward(record)

    bench = _live(_with(Fail), 60, processing_exception_handler="continue")
    found = sorted(int(value or b"") for _, value in bench.outputs("out"))
    assert found == [number for number in range(60) if number % 10]


def test_K5_background_tasks_of_a_range_end_with_it() -> None:
    continued, ended = threading.Event(), threading.Event()

    class Leave(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            self.background = asyncio.create_task(self._run_in_background())
            self.context.forward(record)

        async def _run_in_background(self) -> None:
            try:
                await asyncio.sleep(0.005)
                continued.set()
                await asyncio.Event().wait()
            finally:
                ended.set()

    with GroupBench(_with(Leave), {"in": 1, "out": 1}) as group:
        host = group.host("one", threads=THREADS)
        host.run_task("0_0", 1)
        group.send("a", "first")
        host.until(lambda: group.committed() == 1, "it is done")
        assert continued.wait(20)
        assert not ended.is_set()
        host.release("0_0", 1)
        assert ended.wait(20)


def test_K5_a_blocking_wall_clock_callback_stops_no_coroutine() -> None:
    blocked, released = threading.Event(), threading.Event()

    class Tick(Processor[str, str, str, str]):
        keyed = True

        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(1, PunctuationType.WALL_CLOCK_TIME, self._tick)

        def _tick(self, _now_ms: int) -> None:
            if not blocked.is_set():
                blocked.set()
                released.wait(60)

        async def process(self, record: Record[str, str]) -> None:
            await asyncio.sleep(0)
            self.context.forward(record)

    with GroupBench(_with(Tick), {"in": 1, "out": 1}) as group:
        host = group.host("one", threads=THREADS)
        host.run_task("0_0", 1)
        host.until(blocked.is_set, "one blocks")
        for number in range(40):
            group.send(f"k{number}", "value")
        # All ranges but one.
        host.until(lambda: len(group.broker.records("out")) >= 20, "the others are done")
        released.set()
        host.until(lambda: group.committed() == group.end(), "all is done")


def test_K5_schedules_of_stream_time_await_on_the_range_s_loop() -> None:
    class Tick(ReportPlace):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, PunctuationType.STREAM_TIME, self._tick)

        def _tick(self, now_ms: int) -> None:
            self.context.forward(Record("tick", "", now_ms))

    bench = Bench(_with(Tick, ReportPlace), {"in": 1, "out": 1}, commit_interval_ms=5)
    bench.idle_polls = 3
    for number in range(40):
        bench.broker.send("in", b"v", f"k{number}".encode(), timestamp=number * 10)
    assert bench.live(threads=THREADS)
    assert {key for key, _ in bench.outputs("out")} > {"tick"}
    assert [thread for thread, _ in _places(bench)] == [AWAITING]


_CALLED_BLOCKING = "block the event loop"


@pytest.fixture
def judged_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.tasks.task.range_placement._PLACE_INTERVAL_S", 0.0)
    monkeypatch.setattr("tidewheel.tasks.task.range_placement._WATCH_INTERVAL_S", 0.0)


def _warnings(supplier: Supplier, records: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    with caplog.at_level(logging.WARNING):
        _live(_with(supplier), records)
    return [message for message in caplog.messages if _CALLED_BLOCKING in message]


@pytest.mark.usefixtures("judged_always")
def test_K5_a_blocking_coroutine_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses no processor time, but is found in the same call again and again."""
    monkeypatch.setattr("tidewheel.tasks.task.parallel_task._BLOCKING_MAX_S", 0.01)

    class Block(Plain):
        async def process(self, record: Record[str, str]) -> None:  # type: ignore[override]
            time.sleep(0.02)  # noqa: ASYNC251 - the test needs a blocking call
            self.context.forward(record)

    (warning,) = _warnings(Block, 40, caplog)
    assert "Block.process (test_shared_loop.py:" in warning


@pytest.mark.usefixtures("judged_always")
def test_K5_a_coroutine_that_computes_for_long_blocks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.tasks.task.parallel_task._BLOCKING_MAX_S", 0.01)
    monkeypatch.setattr("tidewheel.tasks.task.parallel_task._SIGHTS_MIN", 10**9)

    class Compute(Plain):
        async def process(self, record: Record[str, str]) -> None:  # type: ignore[override]
            until_s = time.thread_time() + 0.01
            while time.thread_time() < until_s:
                pass
            self.context.forward(record)

    assert len(_warnings(Compute, 60, caplog)) == 1


@pytest.mark.usefixtures("judged_always")
def test_K5_a_coroutine_that_awaits_on_a_starved_machine_does_not_block(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes 0.1 s of wall-clock time, in which the thread has no processor."""
    monkeypatch.setattr("tidewheel.tasks.task.parallel_task._SIGHTS_MIN", 10**9)
    readings = count()
    starved = SimpleNamespace(monotonic=lambda: time.monotonic() + 0.1 * next(readings))
    monkeypatch.setattr("tidewheel.tasks.processing.engine.steps.time", starved)
    assert not _warnings(ReportPlace, 60, caplog)
    assert next(readings) > 100


async def _later(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _text(value: str) -> str:
    await asyncio.sleep(0)
    return value


@pytest.mark.parametrize("plain", [False, True], ids=["on the loop", "from threads"])
def test_K5_calls_of_a_mapper_overlap_up_to_the_factor_and_keep_each_key_s_order(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewheel.tasks.task.parallel_task._OVERLAPPED_RANGES_MAX", 2)
    in_flight: Counter[str] = Counter()
    most = 0
    places: set[str] = set()

    async def call(key: str, value: str) -> str:
        nonlocal most
        in_flight[key] += 1
        assert in_flight[key] == 1, "calls of one key don't overlap"
        most = max(most, in_flight.total())
        places.add(threading.current_thread().name)
        await asyncio.sleep(0.002)
        in_flight[key] -= 1
        return value

    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    if plain:
        stream = stream.filter(lambda _value: True)
    stream.map_values(call).to("out", **TEXT)
    bench = _live(builder.build(), 200, keys=40)
    assert places == {AWAITING}
    assert THREADS // 2 < most <= THREADS
    outputs = [(key, int(value or b"")) for key, value in bench.outputs("out")]
    by_key = {key: [value for other, value in outputs if other == key] for key, _ in outputs}
    assert by_key == {f"k{key}": list(range(key, 200, 40)) for key in range(40)}


def test_K5_each_function_of_a_batch_may_be_a_coroutine_function() -> None:
    async def pair(key: str, value: str) -> tuple[str, str]:
        return key, await _text(value)

    async def twice(value: str) -> list[str]:
        return [await _text(value)] * 2

    async def is_even(value: str) -> bool:
        return int(await _text(value)) % 2 == 0

    async def all_texts(values: list[str]) -> list[str]:
        return [await _text(value) for value in values]

    seen: list[str] = []

    async def see(value: str) -> None:
        seen.append(value)

    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT).map(pair).filter(is_even).peek(see).flat_map_values(twice)
    stream.map_values_batch(all_texts).to("out", **TEXT)
    bench = _live(builder.build(), 60)
    found = sorted(int(value or b"") for _, value in bench.outputs("out"))
    assert found == sorted([number for number in range(60) if number % 2 == 0] * 2)
    assert len(seen) == 30


def test_K5_a_failed_call_of_a_mapper_skips_its_record_only() -> None:
    async def call(value: str) -> str:
        await asyncio.sleep(0.001)
        if int(value) % 10 == 0:
            raise ValueError(value)
        return value

    failed: list[int] = []

    def note(_context: object, record: Record[str, str], _error: Exception) -> ErrorResponse:
        failed.append(int(record.value))
        return ErrorResponse(action="continue")

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values(call).to("out", **TEXT)
    bench = _live(builder.build(), 60, keys=7, processing_exception_handler=note)
    found = sorted(int(value or b"") for _, value in bench.outputs("out"))
    assert found == [number for number in range(60) if number % 10]
    assert sorted(failed) == list(range(0, 60, 10))


def test_K5_a_batch_program_s_coroutines_are_awaited_in_threads() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXT).map_values(_text).group_by_key().count()
    # A commit flushes the count's cache into the second mapper: no event loop may do that.
    counts.to_stream().map_values(_later).to("out", key_serde=STRING, value_serde=LONG)
    bench = _live(builder.build(), 200)
    assert len(bench.outputs("out")) == 200


def test_K5_an_endlessly_blocking_coroutine_does_not_prevent_a_stop() -> None:
    blocked, released = threading.Event(), threading.Event()

    class Block(ReportPlace):
        async def process(self, record: Record[str, str]) -> None:
            if not blocked.is_set():
                blocked.set()
                released.wait(60)
            await super().process(record)

    topology = _with(Block)
    with GroupBench(topology, {"in": 1, "out": 1}, drain_timeout_ms=100) as group:
        try:
            host = group.host("one", threads=THREADS)
            host.run_task("0_0", 1)
            group.send("a", "block")
            assert blocked.wait(20)
            released_task = host.release("0_0", 1)
            assert list(released_task.input.values()) == [0]
            group.send("b", "goes on")
            host.run_task("0_0", 2, released_task)
            host.until(lambda: group.committed() == group.end(), "all is done")
            assert [each.key for each in group.broker.records("out")] in (
                [b"a", b"b"],
                [b"b", b"a"],
            )
        finally:
            released.set()
