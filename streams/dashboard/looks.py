"""The looks at a group that all who watch it share: one reader, however many viewers."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.status import GroupStatus

_PATIENCE_S: Final = 10.0
#: At the end a look under way is waited for so long; one that brokers do not answer may take a minute.
_LEAVE_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What was seen of a group.

    Attributes:
        status: The group as it is known.
        history: What happened last, one text for each episode, the newest last.
    """

    status: GroupStatus
    history: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look.

    Attributes:
        number: Looks are counted from 1.
        seen: What it saw; None if the group could not be read.
        problem: Why it could not, or "".
        at_s: When it was done, by the event loop's clock.
    """

    number: int
    at_s: float
    seen: Sighting | None = None
    problem: str = ""


class Looks:
    """Looks again and again, in a thread, for as long as `run` runs; keeps the last look.

    Args:
        look: Reads on, which may take a while. Raises `StreamsError` if the group can't be read now.
        interval_s: From the beginning of one look to the beginning of the next.
        patience_s: A look that takes so much longer is told of as a problem.
        leave_s: At the end a look under way is waited for so long.
    """

    def __init__(
        self,
        look: Callable[[], Sighting],
        interval_s: float,
        patience_s: float = _PATIENCE_S,
        leave_s: float = _LEAVE_S,
    ) -> None:
        self.interval_s = interval_s
        self._patience_s = patience_s
        self._leave_s = leave_s
        #: Whether a look had not come back when it ended: its thread still uses what it looks with.
        self.hangs = False
        #: The error that nobody foresaw, which ended the looks.
        self.failure: Exception | None = None
        self.last: Look | None = None
        self.ended = False
        self._look = look
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Look until somebody says `end`, or an error comes that nobody foresaw: then see `failure`."""
        loop = self._loop = asyncio.get_running_loop()
        number = 0
        try:
            while not self.ended:
                number += 1
                began_s = loop.time()
                self._publish(await self._taken(number, loop.time))
                await _is_set(self._ending, self.interval_s - (loop.time() - began_s))
        except Exception as error:  # noqa: BLE001 - not swallowed: whoever serves the looks raises it
            self.failure = error
        finally:
            self._end()

    def end(self) -> None:
        """Look no more, and let all who wait for a look go. Any thread may call it, and a signal's handler."""
        if self._loop is None or self._loop.is_closed():
            self.ended = True
        else:
            self._loop.call_soon_threadsafe(self._end)

    def now(self) -> Look:
        """Return the last look; one that says so if there was none yet, or if that is too long ago to be believed."""
        now_s = asyncio.get_running_loop().time()
        last = self.last
        if last is None:
            return Look(number=0, at_s=now_s, problem="the group was not read yet")
        age_s = now_s - last.at_s
        if age_s <= self.interval_s + self._patience_s:
            return last
        return Look(
            number=last.number,
            at_s=last.at_s,
            problem=f"the next look has not come back: the last one was {age_s:.0f} s ago, and the brokers do not answer",
        )

    async def each(self) -> AsyncGenerator[Look]:
        """Yield what is known now and then each new look, without those that the reader was too slow for, until the end.

        While none comes, say now and then what is known: who reads it can tell that from a connection that is lost.
        """
        told = -1
        while True:
            news, now = self._news, self.now()
            if now.number > told:
                told = now.number
                yield now
            elif self.ended:
                return
            elif not await _is_set(news, self.interval_s + self._patience_s / 2):
                yield self.now()

    async def _taken(self, number: int, clock_s: Callable[[], float]) -> Look | None:
        """Return a look that a thread takes; None if it is to end meanwhile, and the look does not come back soon."""
        taken: Future[Look] = Future()

        def take() -> None:
            try:
                taken.set_result(self._next(number, clock_s))
            except Exception as error:  # noqa: BLE001 - not swallowed: it is raised below
                taken.set_exception(error)

        # Nobody waits for a thread of its own at the end of the program, as for those of a pool.
        threading.Thread(target=take, name="dashboard-look", daemon=True).start()
        look = asyncio.wrap_future(taken)
        ending = asyncio.create_task(self._ending.wait())
        either: set[asyncio.Future[Any]] = {look, ending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not look.done():
            await asyncio.wait({look}, timeout=self._leave_s)
        ending.cancel()
        self.hangs = not look.done()
        return None if self.hangs else look.result()

    def _next(self, number: int, clock_s: Callable[[], float]) -> Look:
        try:
            seen = self._look()
        except StreamsError as error:
            return Look(number=number, at_s=clock_s(), problem=str(error))
        return Look(number=number, at_s=clock_s(), seen=seen)

    def _publish(self, look: Look | None) -> None:
        if look is not None:
            self.last = look
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _end(self) -> None:
        self.ended = True
        self._ending.set()
        self._publish(None)


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, so long at most; return whether it came."""
    try:
        return await asyncio.wait_for(event.wait(), max(seconds, 0))
    except TimeoutError:
        return False
