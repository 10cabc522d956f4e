"""Reports of a coroutine that blocks the shared loop: place, record and duration."""

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.group_bench import GroupBench, Host
from tidewheel import Processor, Record, StreamsBuilder
from tidewheel.rebalance.protocol.task_status import BlockingCoroutine
from tidewheel.tasks.key_ranges.loop_watch import LoopWatch
from tidewheel.tasks.task.range_status import blocking

THREADS = 4
BLOCKS, WAITS = "blocks", "waits"

#: Coroutine of the blocking record.
Way = Callable[[threading.Event], Coroutine[Any, Any, None]]


async def _sleeps(released: threading.Event) -> None:
    released.wait(60)


async def _spins(released: threading.Event) -> None:
    until_s = time.monotonic() + 60
    while not released.is_set() and time.monotonic() < until_s:
        pass


async def _in_a_task(released: threading.Event) -> None:
    await asyncio.gather(asyncio.sleep(0.01), asyncio.create_task(_sleeps(released)))


#: Readers reject heartbeats with such a name.
_NAME = "_sleeps\x1b[2J\u202e" + "x" * 2_000
_named_oddly: Way = FunctionType(_sleeps.__code__.replace(co_qualname=_NAME), globals())

WAYS: dict[str, tuple[Way, str]] = {
    "sleeps": (_sleeps, "_sleeps"),
    "spins": (_spins, "_spins"),
    "in a task": (_in_a_task, "_sleeps"),
}


@contextmanager
def _blocked(way: Way) -> Generator[tuple[GroupBench, Host, threading.Event]]:
    entered, released, waiting = threading.Event(), threading.Event(), threading.Event()

    class Pass(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            self.context.forward(record)

    class Call(Processor[str, str, str, str]):
        keyed = True

        async def process(self, record: Record[str, str]) -> None:
            if record.key == WAITS:
                waiting.set()
                await asyncio.sleep(0.2)  # over while the loop is blocked
            if record.key == BLOCKS:
                entered.set()
                await way(released)
            self.context.forward(record)

    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT).process(Pass, name="pass").process(Call, name="call")
    stream.to("out", **TEXT)
    with GroupBench(builder.build(), {"in": 1, "out": 1}, drain_timeout_ms=100) as group:
        try:
            host = group.host("one", threads=THREADS)
            host.run_task("0_0", 1)
            group.send("a", "first")
            host.until(lambda: group.committed() == 1, "it runs")
            group.send(WAITS, "v")
            assert waiting.wait(20)
            group.send(BLOCKS, "v")
            assert entered.wait(20)
            yield group, host, released
        finally:
            released.set()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_K6_the_coroutine_that_blocks_the_loop_is_named(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks, function = WAYS[way]
    with caplog.at_level(logging.WARNING), _blocked(blocks) as (group, host, released):
        told: BlockingCoroutine = host.until(lambda: host.status("0_0").blocking, "it is named")
        assert told.function.startswith(f"{function} (test_blocked_loops.py:")
        assert told.ms >= 1_000
        assert told.node == "call"
        assert (told.topic, told.partition, told.offset) == ("in", 0, 2)
        assert told.key_hash == zlib.crc32(BLOCKS.encode())
        assert told.first_hash <= told.key_hash < told.first_hash + (1 << 30)
        later = host.until(
            lambda: (found := host.status("0_0").blocking) and found.ms > told.ms and found,
            "it goes on",
        )
        assert (later.function.split(":")[0], later.offset) == (told.function.split(":")[0], 2)
        said = host.until(
            lambda: [each for each in caplog.messages if "has blocked the event loop" in each],
            "the log says so",
        )
        assert all(part in said[0] for part in (function, "call", "in-0 offset 2"))
        released.set()
        host.until(lambda: group.committed() == group.end(), "all is done")
        host.until(lambda: host.status("0_0").blocking is None, "nobody is named any more")
    told_of = [each for each in caplog.messages if "block" in each and "event loop" in each]
    assert len(told_of) == 1


@pytest.mark.slow
def test_any_name_of_the_blocking_coroutine_fits_into_a_heartbeat() -> None:
    with _blocked(_named_oddly) as (_, host, _released):
        told: BlockingCoroutine = host.until(lambda: host.status("0_0").blocking, "it is named")
    assert told.function.startswith("_sleeps [2J x")
    assert msgspec.convert(msgspec.to_builtins(told), BlockingCoroutine) == told


# -- the watch ---------------------------------------------------------------------------------------------------------


@contextmanager
def _watched(
    worked_s: Callable[[], float] = lambda: 0.0,
) -> Generator[tuple[asyncio.AbstractEventLoop, LoopWatch]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    watch = LoopWatch(loop, thread, worked_s)
    thread.start()
    try:
        yield loop, watch
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


class _Steps:
    """Coroutine of two steps; each lasts until its release."""

    def __init__(self) -> None:
        self.at = [threading.Event(), threading.Event()]
        self.go = [threading.Event(), threading.Event()]

    async def run(self) -> None:
        for at, go in zip(self.at, self.go, strict=True):
            at.set()
            go.wait(20)
            await asyncio.sleep(0)


def test_a_waiting_loop_has_no_current_step() -> None:
    with _watched() as (_, watch):
        watch.check(1.0)
        assert watch.step() is None


def test_a_step_starts_when_it_is_first_seen() -> None:
    with _watched() as (loop, watch):
        steps = _Steps()
        asyncio.run_coroutine_threadsafe(steps.run(), loop)
        assert steps.at[0].wait(20)
        watch.check(1.0)
        watch.check(2.0)
        step = watch.step()
        assert step is not None
        assert step.since_s == 1.0
        assert watch.place(step).startswith("_Steps.run (test_blocked_loops.py:")
        for each in steps.go:
            each.set()


def test_a_step_that_few_checks_have_seen_is_not_blamed() -> None:
    """A machine that stopped for a while made it long."""
    with _watched() as (loop, watch):
        steps = _Steps()
        done = asyncio.run_coroutine_threadsafe(steps.run(), loop)
        assert steps.at[0].wait(20)
        task: Any = SimpleNamespace(ranges=[_RangeInCall(watch)])
        watch.check(time.monotonic() - 60)
        assert blocking(task) is None
        for _ in range(3):
            watch.check(time.monotonic())
        coroutine = blocking(task)
        assert coroutine is not None
        assert coroutine.function.startswith("_Steps.run (test_blocked_loops.py:")
        for gate in steps.go:
            gate.set()
        done.result(20)


class _RangeInCall:
    """Key range whose call is the current one of a watched loop."""

    unit_since_s = None
    processing = None
    setting = SimpleNamespace(first_hash=0)

    def __init__(self, watch: LoopWatch) -> None:
        self.waiting = SimpleNamespace(shared=SimpleNamespace(turns=SimpleNamespace(watch=watch)))

    def owns(self, _task: object) -> bool:
        return True


def test_a_thread_that_waits_in_a_call_of_the_user_can_block() -> None:
    with _watched() as (loop, watch):
        steps = _Steps()
        done = asyncio.run_coroutine_threadsafe(steps.run(), loop)
        assert steps.at[0].wait(20)
        watch.check(1.0)
        step = watch.step()
        assert step is not None
        until_s = time.monotonic() + 20
        while (sight := watch.sight(step)) != watch.sight(step) and time.monotonic() < until_s:
            pass  # the thread is on its way into the wait
        assert sight is not None
        assert sight.can_block
        for gate in steps.go:
            gate.set()
        done.result(20)


def test_the_share_of_the_processor_follows_the_work_of_the_steps() -> None:
    worked_s = 0.0

    async def compute() -> None:
        nonlocal worked_s
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        worked_s += 0.05

    async def check() -> None:
        watch.check(time.monotonic())
        await asyncio.sleep(0)  # the marker's turn

    with _watched(lambda: worked_s) as (loop, watch):
        for coroutine in (check, compute, check):
            asyncio.run_coroutine_threadsafe(coroutine(), loop).result(20)
        assert watch.cpu_share > 0.8
        worked_s += 10
        asyncio.run_coroutine_threadsafe(check(), loop).result(20)
        assert watch.cpu_share < 0.1


def test_the_next_step_of_the_same_task_is_another_one() -> None:
    with _watched() as (loop, watch):
        steps = _Steps()
        done = asyncio.run_coroutine_threadsafe(steps.run(), loop)
        assert steps.at[0].wait(20)
        watch.check(1.0)
        first = watch.step()
        assert first is not None
        steps.go[0].set()
        assert steps.at[1].wait(20)
        assert watch.step() is None
        assert watch.place(first) == ""
        watch.check(2.0)
        second = watch.step()
        assert second is not None
        assert second.since_s == 2.0
        steps.go[1].set()
        done.result(20)
        assert watch.step() is None


def test_many_short_steps_do_not_count_as_blocking() -> None:
    with _watched() as (loop, watch):
        begun_s: dict[Any, float] = {}
        looked_s: dict[float, float] = {}
        at: list[Any] = [None]

        async def short() -> None:
            at[0] = asyncio.current_task()
            begun_s[at[0]] = time.monotonic()
            time.sleep(0.005)  # noqa: ASYNC251 - the test needs a blocking call

        async def all_of_them() -> None:
            await asyncio.gather(*(short() for _ in range(100)))

        done = asyncio.run_coroutine_threadsafe(all_of_them(), loop)
        seen = 0
        while not done.done():
            now_s = time.monotonic()
            watch.check(now_s)
            looked_s[now_s] = time.monotonic()
            before, step, after = at[0], watch.step(), at[0]
            if before is after and step is not None and step.task in begun_s:
                seen += 1
                assert step.task is before
                assert looked_s[step.since_s] >= begun_s[step.task]
        assert seen
