"""Simulated inbox: some messages are lost, doubled, replayed, or wait for a cut-off host.

A leader that hears a message of a dead incarnation must decide the same without it (invariant 18).
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tests.simulation.host import Host
from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.model.leading import twin
from tests.simulation.model.world import Process, World
from tests.simulation.next_version import UNKNOWN_KIND, Rolling, newer_form
from tests.simulation.scenario import Scenario
from tidewheel.rebalance.leader.coordinator import Coordinator
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    JoinRefused,
    LeaderBeat,
    Suspect,
    decode_message,
    encode_message,
)
from tidewheel.rebalance.protocol.records import AnyRecord


class Lifetime(Protocol):
    scenario: Scenario
    world: World
    log: LogInvariants
    rolling: Rolling
    hosts: list[Host]

    def topics_life(self) -> int: ...


class Inbox:
    """The inbox of one lifetime."""

    def __init__(self, lifetime: Lifetime) -> None:
        self.lifetime = lifetime
        self.world = lifetime.world
        self.log = lifetime.log
        self.lose = lifetime.scenario.lose  # Current share of lost messages.
        self._said: list[AnyMessage] = []
        self._forgotten: list[AnyMessage] = []
        self._replayed: set[int] = set()
        self._held: list[tuple[Process, AnyMessage]] = []

    def publish(self, sender: Process, message: AnyMessage) -> None:
        if not self.world.reachable(sender):
            self._held.append((sender, message))
            return
        self._send(sender, message)

    def healed(self) -> None:
        held, self._held = self._held, []
        for sender, message in held:
            self._send(sender, message)

    def replay(self, draw: float) -> None:
        """Repeat an old message, also of ended incarnations."""
        if not self._said:
            return
        chance = self.world.chance
        for message in chance.choices(self._said, k=20 + int(draw * 20)):
            again = msgspec.structs.replace(message)
            over = self.log.members.get(message.incarnation)
            if over is not None and over.phase in ("FENCING", "FENCED", "GONE"):
                self._replayed.add(id(again))
                self._said.append(again)  # Kept alive: its `id()` must stay unique.
            self._append(again)

    def forget(self) -> None:
        """Recreate the topic: earlier messages can't be replayed."""
        self._forgotten += self._said  # Kept alive: their `id()` must stay unique.
        self._said = []
        self._replayed.clear()

    def observe(
        self, coordinator: Coordinator, message: AnyMessage, writing: Sequence[AnyRecord]
    ) -> None:
        """Deliver a message to a leader; one of an ended incarnation must change nothing (18).

        A leader decides only after its last records are in the log. So the next decision is
        compared, after those records, which may have ended the incarnation.
        """
        now = self.world.now
        deposed = coordinator.group.leader_epoch < self.log.leader_epoch
        if not deposed:
            self.log.evidence.leader.receive(message, now)
        # A deposed leader's decisions do not count.
        if id(message) not in self._replayed or deposed:
            coordinator.observe(message, now)
            return
        one, other = twin(coordinator), twin(coordinator)
        other.observe(message, now)
        for each in (one, other):
            each.committed(writing, now)
            each._dirty = True  # force both to decide
        before, after = one.decide(now).records, other.decide(now).records
        if before != after:
            self.world.fail(f"invariant 18: {message} changes what is decided: {before} {after}")

    def _send(self, sender: Process, message: AnyMessage) -> None:
        if not self.lifetime.topics_life():
            return
        if not isinstance(message, Beat | LeaderBeat):
            self.world.trace_event(message)
        self.log.published(message)
        chance = self.world.chance
        if self.lose and chance.random() < self.lose:
            return
        self.log.heard(message)
        data = encode_message(message)
        if self.lifetime.rolling.is_newer(sender):
            data = newer_form(data)
            if chance.random() < 0.1:
                self._append(decode_message(UNKNOWN_KIND))
        self._append(decode_message(data))
        repeat = self.lifetime.scenario.repeat
        if repeat and chance.random() < repeat:
            self.world.after(int(chance.uniform(1, 2_000)), self._append, decode_message(data))
        if not isinstance(message, Beat | LeaderBeat):
            self._said.append(message)

    def _append(self, message: AnyMessage | None) -> None:
        if message is None:
            return
        for_all = isinstance(message, LeaderBeat | JoinRefused | Suspect)
        for host in self.lifetime.hosts:
            # Readers that do not lead skip other messages.
            if host.up and (for_all or host.leading is not None):
                host.receive_soon(message)
