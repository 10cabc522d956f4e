"""What invariants of the log know of a lifetime besides the log: what was really said, heard, fenced and read."""

from collections import defaultdict
from dataclasses import dataclass, field

from tidewheel.rebalance.protocol.messages import AnyMessage, Beat, Join, NotReady, Ready, Revoked
from tidewheel.rebalance.protocol.records import Copy


@dataclass(slots=True)
class EndsRead:
    """End offsets that a leader has read from the broker."""

    at_ms: int
    ends: dict[str, int]


@dataclass(slots=True)
class Limits:
    """What the lifetime was configured with, as far as invariants speak of it."""

    acceptable_recovery_lag: int
    max_warmup_replicas: int
    fences_at_once: int
    num_standby_replicas: int
    refine: bool
    #: A task is nobody's no longer than this with nothing wrong: detection, fence and grant (invariant 21).
    unowned_ms: int
    #: Who was granted a task has read its changelog, and processes, within this time.
    opens_ms: int


@dataclass(slots=True)
class LeaderHeard:
    """What the leader of now has heard, in order: what it decides rests on what came before.

    Attributes:
        decided_ms: When it last decided; what is in the log next was decided then.
    """

    decided_ms: int = 0
    _count: int = 0
    _decided: int = 0
    _stores: dict[tuple[str, str, int], list[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _sequences: dict[str, int] = field(default_factory=dict)
    _alive: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def hear(self, message: AnyMessage, now_ms: int) -> None:
        """It has heard something."""
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
        if isinstance(message, Join | Beat):
            self._alive[message.incarnation].append((self._count, now_ms))
            del self._alive[message.incarnation][:-20]

    def decide(self, now_ms: int) -> None:
        """It decides."""
        self._decided, self.decided_ms = self._count, now_ms

    def store(self, task: str, copy: Copy) -> str:
        """Return the store of a copy's newest READY, "" if none counts any more."""
        said = self._stores.get((task, copy.incarnation, copy.learn_epoch), [])
        return next((store for number, store in reversed(said) if number <= self._decided), "")

    def silent_ms(self, incarnation: str, claimed_ms: int) -> int:
        """Return for how long it has not heard of somebody."""
        heard = self._alive.get(incarnation, [])
        known = (at_ms for number, at_ms in reversed(heard) if number <= self._decided)
        return self.decided_ms - next(known, claimed_ms)


@dataclass(slots=True)
class Evidence:
    """What was really said and done, as opposed to what the log says of it."""

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
    leader: LeaderHeard = field(default_factory=LeaderHeard)
    #: End of the disturbance that lasts longest.
    disturbed_until_ms: int = 0
