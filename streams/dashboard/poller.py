"""Shared group poller: one reader for any number of viewers."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.streams.dashboard.graph import TopologyGraph
from tidewheel.streams.dashboard.timeline import AlarmSpan, HistoryEpisode
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.status import GroupStatus

_PATIENCE_S: Final = 10.0
#: Seconds to wait for a poll at shutdown; without brokers it may take a minute.
_LEAVE_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledGroup:
    """Group status, its recent episodes and alarms, oldest first, and its topology."""

    status: GroupStatus
    history: tuple[HistoryEpisode, ...] = ()
    alarms: tuple[AlarmSpan, ...] = ()
    graph: TopologyGraph | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """Result of one poll; `at_s`: its time by the event loop's clock."""

    number: int
    at_s: float
    polled: PolledGroup | None = None
    problem: str = ""


class GroupPoller:
    """Poller that reads the group in a thread while `run` runs, and keeps the last result.

    Args:
        patience_s: Seconds beyond the interval after which a poll is reported as a problem.
        leave_s: Seconds to wait for a running poll at shutdown.
    """

    def __init__(
        self,
        fetch_status: Callable[[], PolledGroup],
        interval_s: float,
        patience_s: float = _PATIENCE_S,
        leave_s: float = _LEAVE_S,
    ) -> None:
        self.interval_s = interval_s
        self._patience_s = patience_s
        self._leave_s = leave_s
        #: True if a poll still ran at shutdown. Its thread uses the Kafka clients, so the caller
        #: must not close them.
        self.hangs = False
        self.failure: Exception | None = None
        self.last: PollResult | None = None
        self.ended = False
        self._fetch_status = fetch_status
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        number = 0
        try:
            while not self.ended:
                number += 1
                began_s = loop.time()
                self._publish(await self._poll(number, loop.time))
                await _is_set(self._ending, self.interval_s - (loop.time() - began_s))
        except Exception as error:  # noqa: BLE001 - not swallowed: the server raises it
            self.failure = error
        finally:
            self._end()

    def end(self) -> None:
        """Stop polling and wake all readers; any thread or signal handler may call it."""
        if self._loop is None or self._loop.is_closed():
            self.ended = True
        else:
            self._loop.call_soon_threadsafe(self._end)

    def now(self) -> PollResult:
        """Return the last result, or a problem if there is none yet or it is too old."""
        now_s = asyncio.get_running_loop().time()
        last = self.last
        if last is None:
            return PollResult(number=0, at_s=now_s, problem="the group was not read yet")
        age_s = now_s - last.at_s
        if age_s <= self.interval_s + self._patience_s:
            return last
        return PollResult(
            number=last.number,
            at_s=last.at_s,
            problem=f"the next poll has not returned: the last one was {age_s:.0f} s ago, and the brokers do not answer",
        )

    async def results(self) -> AsyncGenerator[PollResult]:
        """Yield the current result and each newer one; slow readers skip some.

        After `interval_s` and half of `patience_s` without a newer one, it repeats the last one, to
        show that the connection lives.
        """
        last_number = -1
        while True:
            news, now = self._news, self.now()
            if now.number > last_number:
                last_number = now.number
                yield now
            elif self.ended:
                return
            elif not await _is_set(news, self.interval_s + self._patience_s / 2):
                yield self.now()

    async def _poll(self, number: int, clock_s: Callable[[], float]) -> PollResult | None:
        polled: Future[PollResult] = Future()

        def run_poll() -> None:
            try:
                polled.set_result(self._next(number, clock_s))
            except Exception as error:  # noqa: BLE001 - not swallowed: it is raised below
                polled.set_exception(error)

        # A daemon thread does not delay the program's exit, unlike a pool's.
        threading.Thread(target=run_poll, name="dashboard-poll", daemon=True).start()
        poll = asyncio.wrap_future(polled)
        ending = asyncio.create_task(self._ending.wait())
        either: set[asyncio.Future[Any]] = {poll, ending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not poll.done():
            await asyncio.wait({poll}, timeout=self._leave_s)
        ending.cancel()
        self.hangs = not poll.done()
        return None if self.hangs else poll.result()

    def _next(self, number: int, clock_s: Callable[[], float]) -> PollResult:
        try:
            polled = self._fetch_status()
        except StreamsError as error:
            return PollResult(number=number, at_s=clock_s(), problem=str(error))
        return PollResult(number=number, at_s=clock_s(), polled=polled)

    def _publish(self, poll: PollResult | None) -> None:
        if poll is not None:
            self.last = poll
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _end(self) -> None:
        self.ended = True
        self._ending.set()
        self._publish(None)


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(event.wait(), max(seconds, 0))
    except TimeoutError:
        return False
