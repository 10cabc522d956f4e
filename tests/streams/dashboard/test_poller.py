"""Polls of a group, one after the other, shared by all viewers."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.streams.dashboard.polled_groups import polled_group
from tidewheel.streams.dashboard.poller import GroupPoller, PolledGroup, PollResult
from tidewheel.streams.errors import StreamsError

_SOON_S = 0.001


async def _until(
    poller: GroupPoller, is_enough: Callable[[list[PollResult]], bool]
) -> list[PollResult]:
    """Return a viewer's results until they are enough; then end the poller."""
    running = asyncio.create_task(poller.run())
    told: list[PollResult] = []
    async for poll in poller.results():
        told.append(poll)
        if is_enough(told):
            break
    poller.end()
    await running
    return told


def test_polls_are_published_in_order() -> None:
    poller = GroupPoller(polled_group, _SOON_S)
    told = asyncio.run(_until(poller, lambda told: told[-1].number >= 3))
    assert told[0] == PollResult(number=0, at_s=told[0].at_s, problem="the group was not read yet")
    numbers = [each.number for each in told]
    assert numbers == sorted(set(numbers))
    assert all(each.polled == polled_group() for each in told[1:])


def test_unavailable_brokers_do_not_end_the_polls() -> None:
    away = iter([True, False, False])

    def fetch() -> PolledGroup:
        if next(away, False):
            raise StreamsError("list topics: nobody there")
        return polled_group()

    poller = GroupPoller(fetch, _SOON_S)
    told = asyncio.run(_until(poller, lambda told: told[-1].polled is not None))
    assert [each.problem for each in told if each.number == 1] == ["list topics: nobody there"]


def test_a_poll_that_does_not_return_is_a_problem() -> None:
    come_back, calls = threading.Event(), iter(range(1_000))

    def fetch() -> PolledGroup:
        if next(calls):
            assert come_back.wait(60)
        return polled_group()

    def is_enough(told: list[PollResult]) -> bool:
        if told[-1].number == 1 and told[-1].problem:
            come_back.set()
        return come_back.is_set()

    poller = GroupPoller(fetch, _SOON_S, patience_s=0.01)
    told = asyncio.run(_until(poller, is_enough))
    assert told[-1].polled is None
    assert told[-1].problem.startswith("the next poll has not returned")


def test_all_viewers_are_released_at_the_end() -> None:
    async def watch() -> list[list[PollResult]]:
        poller, waiting = GroupPoller(polled_group, 3_600.0), asyncio.Semaphore(0)
        running = asyncio.create_task(poller.run())

        async def viewer() -> list[PollResult]:
            told: list[PollResult] = []
            async for poll in poller.results():
                told.append(poll)
                if poll.number:
                    waiting.release()
            return told

        viewers = [asyncio.create_task(viewer()) for _ in range(3)]
        for _ in viewers:
            await waiting.acquire()
        threading.Thread(target=poller.end).start()
        await running
        return await asyncio.gather(*viewers)

    assert [told[-1].number for told in asyncio.run(watch())] == [1, 1, 1]


def test_an_unexpected_error_ends_the_polls() -> None:
    def fetch() -> PolledGroup:
        raise ZeroDivisionError

    poller = GroupPoller(fetch, _SOON_S)
    asyncio.run(poller.run())
    assert poller.ended
    with pytest.raises(ZeroDivisionError):
        raise poller.failure or AssertionError


def test_the_end_does_not_wait_for_brokers_that_do_not_answer() -> None:
    begun, come_back = threading.Event(), threading.Event()

    def fetch() -> PolledGroup:
        begun.set()
        assert come_back.wait(60)
        return polled_group()

    async def end() -> GroupPoller:
        poller = GroupPoller(fetch, _SOON_S, leave_s=0.01)
        running = asyncio.create_task(poller.run())
        await asyncio.to_thread(begun.wait)
        poller.end()
        await running
        return poller

    poller = asyncio.run(end())
    come_back.set()
    assert (poller.hangs, poller.last, poller.failure) == (True, None, None)


def test_a_poller_ended_before_its_start_does_not_poll() -> None:
    poller = GroupPoller(polled_group, _SOON_S)
    poller.end()
    asyncio.run(poller.run())
    assert poller.last is None
