"""Coroutines of key ranges: their own loops, and cancellation."""

import asyncio
import selectors
import socket
import threading
from typing import Any

import pytest

from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.processing.api.coroutines import (
    PrivateLoop,
    PromptLoop,
    close_loop,
    wait_for,
)


async def loop_now() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


class Stuck:
    """Waits forever and records its end."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended: list[type[BaseException]] = []

    async def __call__(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            self.ended.append(type(error))
            raise


def in_thread(loop: PrivateLoop, call: Any) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with loop:
                wait_for(call())
        except BaseException as error:  # noqa: BLE001 - the test checks it
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_K7_a_range_has_one_loop_in_any_thread() -> None:
    one, other = PrivateLoop(), PrivateLoop()
    found: list[asyncio.AbstractEventLoop] = []

    async def track_loop() -> None:
        found.append(asyncio.get_running_loop())

    for loop in (one, other, one):
        thread, raised = in_thread(loop, track_loop)
        thread.join(10)
        assert not raised
    assert found[0] is found[2]
    assert found[0] is not found[1]
    one.close()
    other.close()


def test_a_thread_outside_a_range_has_its_own_loop() -> None:
    loop = PrivateLoop()
    with loop:
        ranges = wait_for(loop_now())
    assert wait_for(loop_now()) is not ranges
    loop.close()
    close_loop()


def test_a_wait_ends_when_its_range_is_cancelled() -> None:
    loop, stuck = PrivateLoop(), Stuck()
    thread, raised = in_thread(loop, stuck)
    assert stuck.begun.wait(10)
    loop.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert stuck.ended == [asyncio.CancelledError]
    assert [type(error) for error in raised] == [asyncio.CancelledError]
    later = Stuck()
    with loop, pytest.raises(asyncio.CancelledError):
        wait_for(later())
    assert not later.begun.is_set()
    loop.close()


def test_a_cancelled_range_does_not_affect_other_ranges() -> None:
    given_up, kept = PrivateLoop(), PrivateLoop()
    stuck, going = Stuck(), Stuck()
    threads = [in_thread(given_up, stuck), in_thread(kept, going)]
    assert stuck.begun.wait(10)
    assert going.begun.wait(10)
    given_up.cancel()
    threads[0][0].join(10)
    assert going.ended == []
    kept.cancel()
    threads[1][0].join(10)
    assert going.ended == [asyncio.CancelledError]
    given_up.close()
    kept.close()


def test_a_coroutine_that_ignores_its_cancellation_is_awaited() -> None:
    loop, begun = PrivateLoop(), threading.Event()
    results: list[str] = []

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            results.append("went on")

    thread, raised = in_thread(loop, stubborn)
    assert begun.wait(10)
    loop.cancel()
    thread.join(10)
    assert results == ["went on"]
    assert raised == []
    loop.close()


def test_a_timeout_inside_a_coroutine_is_an_error_of_the_record() -> None:
    async def slow() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    loop = PrivateLoop()
    with loop:
        with pytest.raises(TimeoutError):
            wait_for(slow())
        assert wait_for(loop_now()) is not None
    loop.close()


def test_an_unrequested_cancellation_is_an_error() -> None:
    async def awaits_cancelled_future() -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    with pytest.raises(StreamsError, match="it was not cancelled"):
        wait_for(awaits_cancelled_future())
    close_loop()


def test_background_tasks_are_cancelled_with_the_loop() -> None:
    ended: list[str] = []
    kept: list[asyncio.Task[None]] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    async def leave_behind() -> None:
        kept.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    loop = PrivateLoop()
    with loop:
        wait_for(leave_behind())
    assert ended == []
    loop.close()
    assert ended == ["background"]


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_coroutine_that_does_not_wait_keeps_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float | None] = []
    ask = selectors.DefaultSelector.select
    waits = threading.Event()

    def counted(self: Any, timeout: float | None = None) -> Any:
        asked.append(timeout)
        if timeout is None or timeout > 0:
            waits.set()
        return ask(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    loop = PrivateLoop()
    with loop:
        for _ in range(10):
            wait_for(steps(5))
        assert len(asked) <= 1
        wait_for(steps(1_000))
        assert 1 <= len(asked) <= 20
        assert not waits.is_set()
        wait_for(asyncio.to_thread(waits.wait, 60))
        assert waits.is_set()
    loop.close()


def test_sockets_are_polled_while_other_coroutines_run() -> None:
    async def answer() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            busy = asyncio.create_task(steps(1_000_000))
            theirs.send(b"here")
            try:
                return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 4), 30)
            finally:
                busy.cancel()

    loop = PrivateLoop()
    with loop:
        assert wait_for(answer()) == b"here"
    loop.close()


def test_a_coroutine_that_never_waits_ends_with_its_cancelled_range() -> None:
    loop, begun = PrivateLoop(), threading.Event()

    async def spin() -> None:
        begun.set()
        while True:
            await steps(1_000)

    thread, raised = in_thread(loop, spin)
    assert begun.wait(30)
    loop.cancel()
    thread.join(30)
    assert [type(error) for error in raised] == [asyncio.CancelledError]
    loop.close()


def test_a_custom_event_loop_class_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(asyncio.SelectorEventLoop):
        pass

    monkeypatch.setattr(asyncio, "new_event_loop", Own)
    loop = PrivateLoop()
    with loop:
        assert type(wait_for(loop_now())) is Own
    loop.close()


def test_a_loop_with_many_due_callbacks_is_behind_its_work() -> None:
    loop = PromptLoop()
    try:
        assert not loop.is_behind
        seen: list[bool] = []
        for _ in range(200):
            loop.call_soon(lambda: seen.append(loop.is_behind))
        loop.call_soon(loop.stop)
        loop.run_forever()
    finally:
        loop.close()
    assert seen[0]
    assert not seen[-1]
