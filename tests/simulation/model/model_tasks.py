"""Parts of a model worker: directories, tasks, commits, rules."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.model.model_broker import BrokerError, Log
from tests.simulation.model.world import World
from tests.simulation.workload import TaskNames, Workload
from tidewheel.rebalance.protocol.orders import ReleaseTask, RunTask
from tidewheel.state_stores.layout.position import Position
from tidewheel.tasks.key_ranges.progress_vector import Progress

RETRY_MS = 40


@dataclass(slots=True)
class Disk:
    """One task's directory: readable state, and the durable part that survives a kill."""

    uuid: str
    store: dict[int, int] = field(default_factory=dict)
    position: Position | None = None
    durable: tuple[dict[int, int], Position | None] = field(default_factory=lambda: ({}, None))

    def flush(self) -> None:
        self.durable = (dict(self.store), self.position)

    def crash(self) -> None:
        """Lose unflushed data and position together."""
        self.store, self.position = dict(self.durable[0]), self.durable[1]

    def wipe(self, uuid: str) -> None:
        self.uuid, self.store, self.position = uuid, {}, None
        self.flush()

    @property
    def offset(self) -> int:
        return 0 if self.position is None else self.position.offset


@dataclass(slots=True)
class ActiveTask:
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
    stop: int = 1 << 60  # Offset of the first record that waits for the end of a rest.
    last_record_at: int = -1


@dataclass(slots=True)
class CopyTask:
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
    active: ActiveTask
    buffer: dict[int, int | None]
    outputs: list[tuple[int, int, int]]
    position: int
    progress: Progress
    changelog_end: int = -1


@dataclass(slots=True)
class Commit:
    """One transaction in progress; `suspicious`: the client logged a lost connection (H8)."""

    transactional_id: str
    epoch: int
    parts: list[Part]
    suspicious: bool = False
    #: Concurrent requests: records and offsets.
    unanswered: int = 2


class Rules:
    """Decisions of a worker, one method each; mutants replace one."""

    @staticmethod
    def next_transactional_id(app: str, member: str, incarnation: str, number: int) -> str:
        """H7: an id belongs to one incarnation."""
        return f"{app}-{incarnation}-{number}"

    @staticmethod
    def fenced_ends_incarnation() -> bool:
        """H7: fencing ends the incarnation, not only its producer."""
        return True

    @staticmethod
    def retire(*, suspicious: bool) -> bool:
        """H8: after a lost connection the producer is not reused, whatever the commit returned."""
        return suspicious

    @staticmethod
    def read_until(order: RunTask, names: TaskNames, end_at_open: int) -> int:
        """H14: a new owner restores to its predecessor's end before its first record."""
        return max(order.changelog_end.get(names.changelog_key, 0), end_at_open)

    @staticmethod
    def end_at_open(log: Log, *, is_shard: bool) -> int:
        """A shard's last rows may be behind another shard's open transaction: read to the end."""
        return log.end if is_shard else log.last_stable_offset

    @staticmethod
    def restores(names: TaskNames, key: int) -> bool:
        """A shard restores its own rows of the common changelog."""
        return names.is_own(key)

    @staticmethod
    def stable_offsets() -> bool:
        """H15: wait for pending offsets."""
        return True

    @staticmethod
    def start(explicit: int, remembered: int | None) -> int:
        """H16: assign explicit positions; ignore the consumer's memory."""
        return explicit

    @staticmethod
    def restored(position: int, until: int, last_record: int) -> bool:
        """H29: judge by position, not by the last record."""
        return position >= until

    @staticmethod
    def commits_before_release() -> bool:
        """N2: commit before release."""
        return True

    @staticmethod
    def stops_after_release() -> bool:
        """Invariant 2: stop after the reported release."""
        return True

    @staticmethod
    def promotes_in_place() -> bool:
        """Invariant 22: promotion ends the copy; its directory is opened once."""
        return True

    @staticmethod
    def runs_independently(*, others_restore: bool) -> bool:
        """Invariant 7: a task runs independently of other tasks in its worker."""
        return True

    @staticmethod
    def may_read_input(lease_left: int | None) -> bool:
        """H9, H24: no input without a lease; None: it needs none."""
        return lease_left is None or lease_left > 0

    @staticmethod
    def offset_to_commit(part: Part) -> int:
        """Invariant 11: commit the position of the last output."""
        return part.position

    @staticmethod
    def applies_after_commit() -> bool:
        """H10: the disk may lag the changelog, never lead it."""
        return True


class Surroundings(Protocol):
    world: World
    workload: Workload
    commit_interval_ms: int
    acceptable_recovery_lag: int
    restore_per_s: int
    rules: Rules

    def opened(self, worker: Any, active: ActiveTask) -> None: ...

    def processed(self, worker: Any, active: ActiveTask) -> None: ...

    def applied(self, worker: Any, names: TaskNames, disk: Disk) -> None: ...


class LostReplyError(BrokerError):
    """The broker executed the request, but its reply is lost."""

    def __init__(self) -> None:
        super().__init__("_TIMED_OUT")
