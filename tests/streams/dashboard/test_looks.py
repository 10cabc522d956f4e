"""The looks at a group: one after the other, shared by all who watch, and never old without saying so."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.streams.dashboard.sightings import sighting
from tidewheel.streams.dashboard.looks import Look, Looks, Sighting
from tidewheel.streams.errors import StreamsError

_SOON_S = 0.001


async def _until(looks: Looks, is_enough: Callable[[list[Look]], bool]) -> list[Look]:
    """Return what a viewer is told until that is enough; then the looks end."""
    running = asyncio.create_task(looks.run())
    told: list[Look] = []
    async for look in looks.each():
        told.append(look)
        if is_enough(told):
            break
    looks.end()
    await running
    return told


def test_each_look_is_told_in_order() -> None:
    looks = Looks(sighting, _SOON_S)
    told = asyncio.run(_until(looks, lambda told: told[-1].number >= 3))
    assert told[0] == Look(number=0, at_s=told[0].at_s, problem="the group was not read yet")
    numbers = [each.number for each in told]
    assert numbers == sorted(set(numbers))
    assert all(each.seen == sighting() for each in told[1:])


def test_brokers_that_are_away_do_not_end_the_looks() -> None:
    away = iter([True, False, False])

    def look() -> Sighting:
        if next(away, False):
            raise StreamsError("list topics: nobody there")
        return sighting()

    looks = Looks(look, _SOON_S)
    told = asyncio.run(_until(looks, lambda told: told[-1].seen is not None))
    assert [each.problem for each in told if each.number == 1] == ["list topics: nobody there"]


def test_a_look_that_does_not_come_back_is_a_problem() -> None:
    come_back, calls = threading.Event(), iter(range(1_000))

    def look() -> Sighting:
        if next(calls):
            assert come_back.wait(60)
        return sighting()

    def is_enough(told: list[Look]) -> bool:
        if told[-1].number == 1 and told[-1].problem:
            come_back.set()
        return come_back.is_set()

    looks = Looks(look, _SOON_S, patience_s=0.01)
    told = asyncio.run(_until(looks, is_enough))
    assert told[-1].seen is None
    assert told[-1].problem.startswith("the next look has not come back")


def test_everybody_is_let_go_at_the_end() -> None:
    async def watch() -> list[list[Look]]:
        looks, waiting = Looks(sighting, 3_600.0), asyncio.Semaphore(0)
        running = asyncio.create_task(looks.run())

        async def viewer() -> list[Look]:
            told: list[Look] = []
            async for look in looks.each():
                told.append(look)
                if look.number:
                    waiting.release()
            return told

        viewers = [asyncio.create_task(viewer()) for _ in range(3)]
        for _ in viewers:
            await waiting.acquire()
        threading.Thread(target=looks.end).start()
        await running
        return await asyncio.gather(*viewers)

    assert [told[-1].number for told in asyncio.run(watch())] == [1, 1, 1]


def test_an_error_that_nobody_foresaw_ends_the_looks() -> None:
    def look() -> Sighting:
        raise ZeroDivisionError

    looks = Looks(look, _SOON_S)
    asyncio.run(looks.run())
    assert looks.ended
    with pytest.raises(ZeroDivisionError):
        raise looks.failure or AssertionError


def test_the_end_does_not_wait_for_brokers_that_do_not_answer() -> None:
    begun, come_back = threading.Event(), threading.Event()

    def look() -> Sighting:
        begun.set()
        assert come_back.wait(60)
        return sighting()

    async def end() -> Looks:
        looks = Looks(look, _SOON_S, leave_s=0.01)
        running = asyncio.create_task(looks.run())
        await asyncio.to_thread(begun.wait)
        looks.end()
        await running
        return looks

    looks = asyncio.run(end())
    come_back.set()
    assert (looks.hangs, looks.last, looks.failure) == (True, None, None)


def test_looks_that_were_ended_before_they_began_do_not_begin() -> None:
    looks = Looks(sighting, _SOON_S)
    looks.end()
    asyncio.run(looks.run())
    assert looks.last is None
