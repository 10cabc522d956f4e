"""Evidence outside the log: real messages, deaths, fences and reads."""

from collections import defaultdict
from dataclasses import dataclass, field

from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    JoinGroup,
    NotReady,
    Ready,
    Revoked,
)
from tidewheel.rebalance.protocol.records import Copy


@dataclass(slots=True)
class EndsRead:
    at_ms: int
    ends: dict[str, int]


@dataclass(slots=True)
class Limits:
    """Configuration of the lifetime that the invariants use."""

    acceptable_recovery_lag: int
    max_warmup_replicas: int
    fences_at_once: int
    num_standby_replicas: int
    refine: bool
    #: Maximum time without an owner in a healthy group: detection, fence, grant (invariant 21).
    unowned_ms: int
    #: Maximum time from grant to processing.
    opens_ms: int


@dataclass(slots=True)
class LeaderReports:
    """Messages that the current leader has heard, in order."""

    decided_ms: int = 0  # Its last decision; the next logged records stem from it.
    _count: int = 0
    _decided: int = 0
    _stores: dict[tuple[str, str, int], list[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _sequences: dict[str, int] = field(default_factory=dict)
    _alive: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def receive(self, message: AnyMessage, now_ms: int) -> None:
        self._count += 1
        if isinstance(message, Ready | NotReady):
            store = message.store_uuid if isinstance(message, Ready) else ""
            said = self._stores[message.task, message.incarnation, message.learn_epoch]
            said.append((self._count, store))
            del said[:-20]
        elif isinstance(message, Beat):
            if message.seq <= self._sequences.get(message.incarnation, -1):
                return
            self._sequences[message.incarnation] = message.seq
        if isinstance(message, JoinGroup | Beat):
            self._alive[message.incarnation].append((self._count, now_ms))
            del self._alive[message.incarnation][:-20]

    def decide(self, now_ms: int) -> None:
        self._decided, self.decided_ms = self._count, now_ms

    def store(self, task: str, copy: Copy) -> str:
        """Return the store of a copy's newest valid READY, or ""."""
        said = self._stores.get((task, copy.incarnation, copy.learn_epoch), [])
        return next((store for number, store in reversed(said) if number <= self._decided), "")

    def silent_ms(self, incarnation: str, claimed_ms: int) -> int:
        """Return the time since it heard an incarnation."""
        heard = self._alive.get(incarnation, [])
        known = (at_ms for number, at_ms in reversed(heard) if number <= self._decided)
        return self.decided_ms - next(known, claimed_ms)


@dataclass(slots=True)
class Evidence:
    """Real events, as opposed to their records in the log."""

    revoked: dict[tuple[str, int, str], Revoked] = field(default_factory=dict)
    ready: dict[tuple[str, str], list[tuple[int, Ready]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    began: dict[tuple[str, int], int] = field(default_factory=dict)
    failed: set[tuple[str, int]] = field(default_factory=set)
    ends_read: list[EndsRead] = field(default_factory=list)
    used_ids: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    fenced_ids: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    #: Newest incarnation that asked to join, by member.
    newest: dict[str, str] = field(default_factory=dict)
    leader: LeaderReports = field(default_factory=LeaderReports)
    #: End of the longest disturbance.
    disturbed_until_ms: int = 0
