"""Call window: calls overlap up to the number of places; those of one key never do."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.processing.api.call_window import CallPlaces, CallWindow, is_window


@given(
    keys=st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=30),
    width=st.integers(1, 6),
    waits=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
def test_calls_of_a_key_keep_their_order_and_never_overlap(
    keys: list[bytes | None], width: int, waits: list[int]
) -> None:
    in_flight: Counter[bytes | None] = Counter()
    begun: list[int] = []

    async def call(index: int) -> int:
        begun.append(index)
        in_flight[keys[index]] += 1
        assert keys[index] is None or in_flight[keys[index]] == 1
        assert in_flight.total() <= width
        for _ in range(waits[index]):
            await asyncio.sleep(0)
        in_flight[keys[index]] -= 1
        return index

    outcomes = asyncio.run(CallWindow(call, keys, CallPlaces(width)).run())
    assert outcomes == [(index, None) for index in range(len(keys))]
    for key in (b"a", b"b", b"c"):
        of_key = [index for index in begun if keys[index] == key]
        assert of_key == sorted(of_key)


def test_as_many_calls_overlap_as_there_are_places() -> None:
    async def run() -> int:
        most, in_flight = 0, 0
        met = asyncio.Event()

        async def call(_index: int) -> None:
            nonlocal most, in_flight
            in_flight += 1
            most = max(most, in_flight)
            if in_flight == 3:
                met.set()
            await met.wait()
            in_flight -= 1

        await CallWindow(call, [b"%d" % number for number in range(9)], CallPlaces(3)).run()
        return most

    assert asyncio.run(run()) == 3


def test_an_error_is_the_outcome_of_its_own_record() -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def fails() -> None:
        raise ValueError("refused")

    async def succeeds() -> str:
        return "good"

    def begin(index: int) -> Coroutine[Any, Any, Any]:
        if index == 3:
            raise KeyError("not even begun")
        return (fails, cancels_itself, succeeds)[index]()

    outcomes = asyncio.run(CallWindow(begin, [b"k", b"k", b"k", b"k"], CallPlaces(2)).run())
    errors = [type(error) for _, error in outcomes]
    assert errors == [ValueError, StreamsError, type(None), KeyError]
    assert outcomes[2][0] == "good"


def test_a_cancelled_window_cancels_its_calls_and_starts_no_more() -> None:
    begun: list[int] = []
    cancelled: list[int] = []
    both = asyncio.Event()

    async def call(index: int) -> None:
        begun.append(index)
        if len(begun) == 2:
            both.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(index)

    async def run() -> None:
        window = CallWindow(call, [None] * 5, CallPlaces(2))
        running = asyncio.create_task(window.run())
        await both.wait()
        assert window.oldest == 0
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    assert begun == cancelled == [0, 1]


def test_windows_share_places_and_take_turns() -> None:
    async def run() -> tuple[int, list[str]]:
        most, in_flight = 0, 0
        ends: list[str] = []
        places = CallPlaces(4, ranges=2)

        async def call(_index: int) -> None:
            nonlocal most, in_flight
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0)
            in_flight -= 1

        async def end(name: str, records: int) -> None:
            await CallWindow(call, [None] * records, places).run()
            ends.append(name)

        # The first window may use all places, but the second, shorter one gets every other turn.
        await asyncio.gather(end("long", 40), end("short", 8))
        return most, ends

    assert asyncio.run(run()) == (4, ["short", "long"])


def test_a_cancelled_window_returns_its_places() -> None:
    async def run() -> list[int]:
        places = CallPlaces(2)

        async def hang(_index: int) -> None:
            await asyncio.Event().wait()

        async def call(index: int) -> int:
            return index

        hanging = asyncio.create_task(CallWindow(hang, [None] * 5, places).run())
        await asyncio.sleep(0)
        other = asyncio.create_task(CallWindow(call, [None] * 3, places).run())
        await asyncio.sleep(0)
        hanging.cancel()
        outcomes = await asyncio.wait_for(other, 60)
        return [result for result, _ in outcomes]

    assert asyncio.run(run()) == [0, 1, 2]


def test_a_call_sees_the_context_of_its_own_window() -> None:
    owner: ContextVar[str] = ContextVar("owner")

    async def run() -> set[tuple[str, str]]:
        seen: set[tuple[str, str]] = set()
        places = CallPlaces(2)

        async def work(name: str) -> None:
            owner.set(name)

            async def call(_index: int) -> None:
                await asyncio.sleep(0)
                seen.add((name, owner.get()))
                owner.set("of a record")

            await CallWindow(call, [None] * 10, places).run()

        await asyncio.gather(work("a"), work("b"))
        return seen

    assert asyncio.run(run()) == {("a", "a"), ("b", "b")}


def test_only_a_window_s_own_coroutine_is_one() -> None:
    async def call(_index: int) -> None: ...

    window, other = CallWindow(call, [], CallPlaces(1)).run(), call(0)
    assert is_window(window)
    assert not is_window(other)
    window.close()
    other.close()
