"""What a model worker is made of: directories, tasks, commits, and the rules it decides by itself."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.model_broker import BrokerError
from tests.simulation.workload import TaskNames, Workload
from tests.simulation.world import World
from tidewheel.rebalance.protocol.orders import ReleaseTask, RunTask
from tidewheel.state_stores.layout.position import Position
from tidewheel.tasks.key_ranges.progress_vector import Progress

#: Asking again for what is pending.
RETRY_MS = 40


@dataclass(slots=True)
class Disk:
    """One task's directory: what a reader sees, and what would survive a kill."""

    uuid: str
    store: dict[int, int] = field(default_factory=dict)
    position: Position | None = None
    durable: tuple[dict[int, int], Position | None] = field(default_factory=lambda: ({}, None))

    def flush(self) -> None:
        """Make what is applied durable."""
        self.durable = (dict(self.store), self.position)

    def crash(self) -> None:
        """Lose what was not flushed, data and position together."""
        self.store, self.position = dict(self.durable[0]), self.durable[1]

    def wipe(self, uuid: str) -> None:
        """Begin anew."""
        self.uuid, self.store, self.position = uuid, {}, None
        self.flush()

    @property
    def offset(self) -> int:
        """Return the changelog position, 0 without one."""
        return 0 if self.position is None else self.position.offset


@dataclass(slots=True)
class ActiveTask:
    """A task this worker owns."""

    names: TaskNames
    order: RunTask
    disk: Disk
    stage: str = "waiting"
    opened_at: int = 0
    until: int = 0
    restored: int = 0
    position: int = 0
    committed: int = 0
    buffer: dict[int, int | None] = field(default_factory=dict)
    outputs: list[tuple[int, int, int]] = field(default_factory=list)
    release: ReleaseTask | None = None
    last_record_at: int = -1


@dataclass(slots=True)
class CopyTask:
    """A standby or learner."""

    names: TaskNames
    role: str
    learn_epoch: int
    disk: Disk
    ready: bool = False
    opened: bool = False
    end: int = 0
    said_ms: int = -1


@dataclass(slots=True)
class Part:
    """What one commit takes of one task."""

    active: ActiveTask
    buffer: dict[int, int | None]
    outputs: list[tuple[int, int, int]]
    position: int
    progress: Progress
    changelog_end: int = -1


@dataclass(slots=True)
class Commit:
    """One transaction on its way; `suspicious`: the client's log tells of a lost connection (H8)."""

    transactional_id: str
    epoch: int
    parts: list[Part]
    suspicious: bool = False
    #: Requests under way at once: the records, and beside them the offsets.
    unanswered: int = 2


class Rules:
    """What a worker decides by itself, one rule a method; mutants replace one."""

    @staticmethod
    def next_transactional_id(app: str, member: str, incarnation: str, number: int) -> str:
        """H7: an id belongs to one incarnation, never to a place."""
        return f"{app}-{incarnation}-{number}"

    @staticmethod
    def fenced_ends_incarnation() -> bool:
        """H7: being fenced ends the incarnation, not only its producer."""
        return True

    @staticmethod
    def retire(*, suspicious: bool) -> bool:
        """H8: a producer whose commit saw a lost connection is not used again, whatever the commit returned."""
        return suspicious

    @staticmethod
    def read_until(order: RunTask, names: TaskNames, end_at_open: int) -> int:
        """H14: a new owner reads to where the last one ended before its first record."""
        return max(order.changelog_end.get(names.changelog_key, 0), end_at_open)

    @staticmethod
    def stable_offsets() -> bool:
        """H15: a pending offset is waited for."""
        return True

    @staticmethod
    def start(explicit: int, remembered: int | None) -> int:
        """H16: a partition is assigned with an explicit position; what the consumer remembers of it counts for nothing."""
        return explicit

    @staticmethod
    def restored(position: int, until: int, last_record: int) -> bool:
        """H29: judged by position, not by the last record seen."""
        return position >= until

    @staticmethod
    def commits_before_release() -> bool:
        """N2: an owner commits before it lets go."""
        return True

    @staticmethod
    def lets_go() -> bool:
        """Invariant 2: who has said that it let go does not go on."""
        return True

    @staticmethod
    def promotes_in_place() -> bool:
        """Invariant 22: a copy that becomes the owner's is a copy no more: its directory is open once."""
        return True

    @staticmethod
    def goes_on(*, others_restore: bool) -> bool:
        """Invariant 7: a task goes on whatever becomes of others in its worker."""
        return True

    @staticmethod
    def may_take_input(lease_left: int | None) -> bool:
        """H9, H24: without a lease no input is taken; None: it never had one, and needs none."""
        return lease_left is None or lease_left > 0

    @staticmethod
    def offset_to_commit(part: Part) -> int:
        """Invariant 11: what is committed is where the outputs end."""
        return part.position

    @staticmethod
    def applies_after_commit() -> bool:
        """H10: the disk may lag the changelog, never lead it."""
        return True


class Surroundings(Protocol):
    """What a worker needs of its lifetime."""

    world: World
    workload: Workload
    commit_interval_ms: int
    acceptable_recovery_lag: int
    restore_per_s: int
    rules: Rules

    def opened(self, worker: Any, active: ActiveTask) -> None:
        """An owner is about to process its first record."""

    def processed(self, worker: Any, active: ActiveTask) -> None:
        """An owner has processed records."""

    def applied(self, worker: Any, names: TaskNames, disk: Disk) -> None:
        """A store and its position have changed."""


class LostReplyError(BrokerError):
    """The broker has carried it out, and nobody will hear of it."""

    def __init__(self) -> None:
        super().__init__("_TIMED_OUT")
