"""Environment of a lifetime: one clock, one event queue, seeded randomness, processes, network.

Only events pass time. Processes can be stopped (input waits), killed (input is lost) and cut off
from the broker (output waits). All randomness comes from the seed, so a seed replays a lifetime
exactly.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import msgspec

from tests.simulation.model.model_broker import BrokerError, ModelBroker
from tidewheel.rebalance.producer_ids import INCARNATION_BYTES

#: Requests delayed longer time out for senders that give up.
REQUEST_TIMEOUT_MS = 2_000

LINE_LENGTH = 300

_INCARNATION = re.compile(f"\\b[0-9a-f]{{{2 * INCARNATION_BYTES}}}\\b")


class RequestTimedOut(Exception):  # noqa: N818 - an event of the network, named as one
    """The outcome of the request is unknown."""


class Violation(AssertionError):  # noqa: N818 - what the checkers find is called that everywhere
    ...


class Process:
    """A worker or a watchdog."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: False after a kill; True while stopped by a signal.
        self.up = False
        self.paused = False
        self.cut = False  # The network to the broker is down.
        self.life = 0  # Number of starts; messages for an earlier life are lost.
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        #: Replies to transaction ends to lose, and late copies to deliver.
        self.lose_replies = 0
        self.repeat_ends = 0

    def begin(self) -> None:
        self.up, self.paused, self.backlog = True, False, []
        self.life += 1

    def stop(self) -> None:
        self.up = False
        self.backlog = []


@dataclass(slots=True)
class _Request:
    process: Process
    life: int
    action: Callable[[], Any]
    reply: Callable[[Any], None]
    gives_up: bool
    over: bool = False


_Event = tuple[int, int, Process | None, int, Callable[..., None], tuple[Any, ...]]


@dataclass(slots=True)
class Trace:
    """Events as text for people, and as a number to compare runs."""

    lines: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)

    def text(self, last: int | None = None) -> str:
        chosen = self.lines if last is None else self.lines[-last:]
        return "\n".join(
            f"{time_ms / 1000:9.3f}  {' '.join(map(_readable, parts))}" for time_ms, parts in chosen
        )


def incarnation_name(member: str, number: int) -> str:
    """Return an incarnation in the real form; a recovery fences no other ids.

    >>> incarnation_name("m1", 2)
    '6d312e32000000000000000000000000'
    """
    return f"{member}.{number}".encode().hex().ljust(2 * INCARNATION_BYTES, "0")


def _readable(part: Any) -> str:
    """Return readable text without default fields, truncated."""
    if isinstance(part, msgspec.Struct):
        text = _with_plain_incarnations(msgspec.json.encode(part).decode().replace('"', ""))
        return text if len(text) <= LINE_LENGTH else f"{text[:LINE_LENGTH]}..."
    return _with_plain_incarnations(str(part))


def _with_plain_incarnations(text: str) -> str:
    """Return text with readable incarnation names.

    >>> _with_plain_incarnations(f"shop-{incarnation_name('m1', 2)}-0")
    'shop-m1.2-0'
    """
    return _INCARNATION.sub(_plain_incarnation, text)


def _plain_incarnation(found: re.Match[str]) -> str:
    plain = bytes.fromhex(found[0]).rstrip(b"\0")
    return plain.decode() if plain.isascii() and b"." in plain else found[0]


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        #: Hours passed outside the lifetime, on every wall clock.
        self.wall_offset_ms = 1_700_000_000_000
        self.chance = random.Random(f"delays {seed}")
        self.broker = ModelBroker()
        self.broker_paused = False
        self.latency_ms = (1, 9)
        self.trace = Trace()
        self.events = 0
        #: (time, sequence, process, life, action, arguments).
        self._queue: list[_Event] = []
        self._number = 0
        self._held: list[_Request] = []
        #: Called when the network recovers.
        self.healed: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        return self.wall_offset_ms + self.now

    def trace_event(self, *parts: Any) -> None:
        self.trace.lines.append((self.now, parts))

    def fail(self, what: str) -> None:
        self.trace_event(f"VIOLATION {what}")
        raise Violation(_with_plain_incarnations(what))

    # Events.

    def at(self, when_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heappush(self._queue, (max(when_ms, self.now), self._number, None, 0, action, arguments))

    def after(self, delay_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_ms, action, *arguments)

    def post(
        self, process: Process, delay_ms: int, action: Callable[..., None], *arguments: Any
    ) -> None:
        """Run an action in a process that is still alive, once it is not stopped."""
        self._number = number = self._number + 1
        when_ms = self.now + delay_ms if delay_ms > 0 else self.now
        heappush(self._queue, (when_ms, number, process, process.life, action, arguments))

    def resume(self, process: Process) -> None:
        """Resume a stopped process with its waiting input."""
        if not (process.up and process.paused):
            return
        process.paused = False
        backlog, process.backlog = process.backlog, []
        for action, arguments in backlog:
            self.post(process, 0, action, *arguments)

    def run(self, until_ms: int) -> None:
        """Run all events up to a time."""
        queue, events = self._queue, self.events
        while queue and queue[0][0] <= until_ms:
            self.now, _, process, life, action, arguments = heappop(queue)
            events += 1
            if process is None:
                action(*arguments)
            elif process.up and process.life == life:
                if process.paused:
                    process.backlog.append((action, arguments))
                else:
                    action(*arguments)
        self.now, self.events = until_ms, events

    # The network.

    def delay_ms(self) -> int:
        """Return the one-way delay of the next message."""
        low, high = self.latency_ms
        return low + int(self.chance.random() * (high - low))

    def reachable(self, process: Process) -> bool:
        return not (process.cut or self.broker_paused)

    def request(
        self,
        process: Process,
        action: Callable[[], Any],
        reply: Callable[[Any], None],
        *,
        gives_up: bool = False,
        takes_ms: int = 0,
    ) -> None:
        """Call the broker: `action` runs there, `reply` here, with its answer or BrokerError.

        With `gives_up`, a slow request ends as `RequestTimedOut`, but may still be executed later.
        """
        request = _Request(process, process.life, action, reply, gives_up)
        self.after(self.delay_ms() + takes_ms, self._at_broker, request)

    def _at_broker(self, request: _Request) -> None:
        if self.reachable(request.process):
            self._carry_out(request)
            return
        self._held.append(request)
        if request.gives_up:
            self.after(REQUEST_TIMEOUT_MS, self._give_up, request)

    def _carry_out(self, request: _Request) -> None:
        try:
            answer = request.action()
        except BrokerError as error:
            answer = error
        if not request.over:
            self._answer(request, self.delay_ms(), answer)

    def _give_up(self, request: _Request) -> None:
        if not request.over:
            self._answer(request, 0, RequestTimedOut())

    def _answer(self, request: _Request, delay_ms: int, answer: Any) -> None:
        request.over = True
        if request.process.life == request.life:
            self.post(request.process, delay_ms, request.reply, answer)

    def heal(self) -> None:
        """Deliver delayed requests; late ones arrive half of the time."""
        held, self._held = self._held, []
        for request in held:
            if not self.reachable(request.process):
                self._held.append(request)
            elif not request.over or self.chance.random() < 0.5:
                self.after(self.delay_ms(), self._at_broker, request)
        for listener in self.healed:
            listener()
