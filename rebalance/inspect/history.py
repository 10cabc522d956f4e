"""Group history from the log: membership, targets and task moves, by episode.

An episode lasts from a disturbance until all tasks are at their target. Compaction removes old
records: history can start inside an episode.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidewheel.rebalance.inspect.describe import (
    GroupPhase,
    LogEntry,
    LogFold,
    duration_text,
    program_name,
)
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.records import (
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    TargetRecord,
    TaskRecord,
)

MOVE_TEXTS: Final = {
    "start": "started",
    "learner": "by learner",
    "standby": "by its standby",
    "return": "returned to its own state",
    "stateless": "without state",
    "cold": "without a copy",
}

#: Display text by phase; joins and leaves have other texts.
_BECAME: Final = {
    MemberPhase.JOINING: "asks to join",
    MemberPhase.ACTIVE: "is active again",
    MemberPhase.PARKED: "gets no tasks",
    MemberPhase.FENCING: "counts as dead and is being fenced",
    MemberPhase.FENCED: "is fenced",
}

_EXPLAINED: Final = frozenset({MemberPhase.ACTIVE, MemberPhase.PARKED, MemberPhase.FENCING})

#: Records of one member less than this apart count as one transaction, which the log does
#: not mark.
_TRANSACTION_MS: Final = 1_000

_AT_REST: Final = frozenset({GroupPhase.RUNNING, GroupPhase.EMPTY})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent:
    """An event of the log.

    Attributes:
        kind: "leader", "member", "group", "target", or "learner" (one that was dropped).
        member: Name for people of the member that it is about, or "".
        phase: That member's phase after it, or "".
    """

    offset: int
    timestamp_ms: int
    kind: str
    text: str
    member: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    task: str
    task_epoch: int
    #: "" for no earlier owner.
    source: str
    target: str
    how: str
    reason: str
    fenced: bool
    planted_ms: int | None
    stopped_ms: int | None  # Time when the earlier owner was revoked or counted as dead.
    granted_ms: int
    source_name: str = ""
    target_name: str = ""

    @property
    def pause_ms(self) -> int | None:
        return None if self.stopped_ms is None else max(self.granted_ms - self.stopped_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A disturbance and the moves until the group is at its target."""

    first_offset: int
    last_offset: int
    began_ms: int
    ended_ms: int | None
    targets: tuple[int, ...]
    happenings: tuple[GroupEvent, ...]
    moves: tuple[Move, ...]
    stayed: int  # Tasks that kept their owner.


def account(entries: Iterable[LogEntry | RejectedRecord]) -> tuple[Episode, ...]:
    chronicle = Chronicle()
    for entry in entries:
        chronicle.add(entry)
    return chronicle.episodes()


def episode_text(episode: Episode, when: Callable[[int], str]) -> str:
    lines = [f"{when(episode.began_ms)}  {_title(episode)}"]
    lines += [
        f"  +{duration_text(event.timestamp_ms - episode.began_ms):<8} {event.text}"
        for event in episode.happenings
    ]
    lines += [
        f"  +{duration_text(move.granted_ms - episode.began_ms):<8} {move_text(move)}"
        for move in episode.moves
    ]
    return "\n".join(lines)


def move_text(move: Move) -> str:
    """Return a move as a line.

    >>> move_text(Move(task="0_1", task_epoch=4, source="a", target="c", how="learner", reason="", fenced=False,
    ...     planted_ms=0, stopped_ms=4_200, granted_ms=4_212))
    '0_1: a → c by learner (planted 4.2 s before), 12 ms without an owner, epoch 4'
    """
    source, target = move.source_name or move.source, move.target_name or move.target
    route = f"{source} → {target}" if source else f"→ {target}"
    parts = [f"{move.task}: {route} {MOVE_TEXTS[move.how]}"]
    if move.how in ("learner", "standby") and move.planted_ms is not None:
        parts[0] += f" (planted {duration_text(move.granted_ms - move.planted_ms)} before)"
    if move.pause_ms is not None:
        parts.append(f"{duration_text(move.pause_ms)} without an owner")
    parts += ["its owner was fenced"] if move.fenced else []
    return ", ".join([*parts, f"epoch {move.task_epoch}"])


def _title(episode: Episode) -> str:
    count = len(episode.moves)
    if not episode.targets and not count and episode.ended_ms is not None:
        return episode.happenings[0].text if len(episode.happenings) == 1 else "nothing moved"
    moved = f"{count} task{'' if count == 1 else 's'} granted, {episode.stayed} stayed"
    if episode.ended_ms is None:
        return f"{moved} so far: not finished"
    return f"{moved}, {duration_text(episode.ended_ms - episode.began_ms)}"


class _CopyStart(NamedTuple):
    role: str
    learn_epoch: int
    at_ms: int


@dataclass(slots=True)
class _TaskMove:
    #: Copies by incarnation, also those that left the STEP record: one may be the new owner's.
    copies: dict[str, _CopyStart] = field(default_factory=dict[str, _CopyStart])
    source: str = ""
    source_incarnation: str = ""
    stopped_ms: int | None = None
    fenced: bool = False


class Chronicle:
    """Builder of episodes from log entries in offset order; keeps the last `keep`.

    Args:
        fold: Fold to add the entries to, still without any; default: one of its own.
    """

    def __init__(self, keep: int | None = None, *, fold: LogFold | None = None) -> None:
        self._fold = LogFold() if fold is None else fold
        self._done: deque[Episode] = deque(maxlen=keep)
        self._journeys: dict[TaskId, _TaskMove] = {}
        self._first: LogEntry | None = None
        self._owners: dict[TaskId, str] = {}
        self._happenings: list[GroupEvent] = []
        self._moves: list[Move] = []
        self._targets: list[int] = []
        self._dropped: list[tuple[TaskId, str, LogEntry]] = []
        self._away_since: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._displayed: dict[str, str] = {}
        self._last: LogEntry | None = None

    def add(self, entry: LogEntry | RejectedRecord) -> None:
        before = self._fold.group
        if not self._fold.add(entry) or isinstance(entry, RejectedRecord):
            return
        after = self._fold.group
        texts: list[tuple[str, str]] = []
        if after.pending is None and before.pending is None:
            texts = self._describe_entry(before, after, entry)
        if texts or self._fold.phase not in _AT_REST:
            self._open(before, entry)
        member = phase = ""
        if isinstance(entry.record, MemberRecord):
            member, phase = display_name(entry.record), entry.record.phase
        self._happenings += [
            GroupEvent(
                offset=entry.offset,
                timestamp_ms=entry.timestamp_ms,
                kind=kind,
                text=text,
                member=member,
                phase=phase,
            )
            for kind, text in texts
        ]
        self._track_copies(before, after, entry)
        if after.pending is None and isinstance(entry.record, TaskRecord):
            self._track_task(before, entry)
        self._last = entry
        if self._first is not None and self._fold.phase in _AT_REST and after.pending is None:
            self._close(entry)

    def episodes(self) -> tuple[Episode, ...]:
        """Return episodes, oldest first; the last may be open."""
        if self._first is None or self._last is None:
            return tuple(self._done)
        return (*self._done, self._episode(self._first, self._last, ended=False))

    def _open(self, before: Group, entry: LogEntry) -> None:
        if self._first is None:
            self._first = entry
            self._owners = _owners(before)

    def _close(self, last: LogEntry) -> None:
        assert self._first is not None, "only an open episode is closed"
        self._done.append(self._episode(self._first, last, ended=True))
        for task, incarnation, _ in self._dropped_learners():
            self._journeys.setdefault(task, _TaskMove()).copies.pop(incarnation, None)
        self._first = None
        self._happenings, self._moves, self._targets, self._dropped = [], [], [], []

    def _episode(self, first: LogEntry, last: LogEntry, *, ended: bool) -> Episode:
        owners = _owners(self._fold.group)
        happenings = sorted(
            self._happenings + self._dropped_learner_happenings(), key=lambda event: event.offset
        )
        return Episode(
            first_offset=first.offset,
            last_offset=last.offset,
            began_ms=first.timestamp_ms,
            ended_ms=last.timestamp_ms if ended else None,
            targets=tuple(self._targets),
            happenings=tuple(happenings),
            moves=tuple(self._moves),
            stayed=sum(owners.get(task) == owner for task, owner in self._owners.items()),
        )

    def _describe_entry(
        self, before: Group, after: Group, entry: LogEntry
    ) -> list[tuple[str, str]]:
        match entry.record:
            case LeaderClaim():
                return [("leader", _leader_text(before, after))]
            case MemberRecord():
                self._names[entry.record.incarnation] = entry.record.member
                self._displayed[entry.record.member] = display_name(entry.record)
                text = self._member_text(before, entry.record, entry.timestamp_ms)
                return [("member", text)] if text else []
            case GroupRecord():
                return [("group", text) for text in _group_texts(before, after)]
            case TargetRecord():
                self._targets.append(entry.record.group_epoch)
                reason = f": {entry.record.reason}" if entry.record.reason else ""
                return [("target", f"target {entry.record.group_epoch}{reason}")]
            case _:
                return []

    def _member_text(self, before: Group, record: MemberRecord, at_ms: int) -> str:
        old = before.members.get(record.incarnation)
        if record.shutdown and old is not None and not old.shutdown:
            return f"{display_name(record)} must end with the whole application ({record.shutdown})"
        phase = MemberPhase(record.phase)
        if old is not None and (old.phase, old.rejoin_ms) == (phase, record.rejoin_ms):
            return ""
        if phase is MemberPhase.GONE:
            if record.rejoin_ms:
                self._away_since.setdefault(record.member, at_ms)
            return _leave_text(before, record)
        if phase is MemberPhase.ACTIVE and old is None:
            return self._joined_text(record, at_ms)
        if phase is MemberPhase.LEAVING:
            if record.rejoin_ms:
                self._away_since.setdefault(record.member, at_ms)
            return f"{display_name(record)} {_leaving_text(record)}"
        reason = f": {record.reason}" if record.reason and phase in _EXPLAINED else ""
        return f"{display_name(record)} {_BECAME[phase]}{reason}"

    def _joined_text(self, record: MemberRecord, at_ms: int) -> str:
        name = display_name(record)
        away_ms = self._away_since.pop(record.member, None)
        if away_ms is None:
            return f"{name} joined{_process_text(record)}"
        # The transaction of its return also ended its former incarnation: it did not stay away.
        timeout_text = _stayed_away(name)
        self._happenings = [
            event
            for event in self._happenings
            if event.text != timeout_text or at_ms - event.timestamp_ms >= _TRANSACTION_MS
        ]
        away_text = duration_text(at_ms - away_ms)
        return f"{name} is back after {away_text}{_process_text(record)}"

    def _track_copies(self, before: Group, after: Group, entry: LogEntry) -> None:
        for task in sorted(after.step.changed_tasks(before.step)):
            copies = self._journeys.setdefault(task, _TaskMove()).copies
            present = after.step.copies(task)
            for copy in reversed(present):
                role = "learner" if after.step.learners.get(task) == copy else "standby"
                started = copies.get(copy.incarnation)
                if started is None or started.learn_epoch != copy.learn_epoch:
                    copies[copy.incarnation] = _CopyStart(
                        role, copy.learn_epoch, entry.timestamp_ms
                    )
            learner = before.step.learners.get(task)
            if learner is not None and learner not in present:
                self._dropped.append((task, learner.incarnation, entry))

    def _dropped_learners(self) -> list[tuple[TaskId, str, LogEntry]]:
        granted = {(move.task, move.target) for move in self._moves}
        return [
            (task, incarnation, entry)
            for task, incarnation, entry in self._dropped
            if (str(task), self._names.get(incarnation, incarnation)) not in granted
        ]

    def _displayed_at(self, incarnation: str) -> str:
        name = self._names.get(incarnation, incarnation)
        return self._displayed.get(name, name)

    def _dropped_learner_happenings(self) -> list[GroupEvent]:
        return [
            GroupEvent(
                offset=entry.offset,
                timestamp_ms=entry.timestamp_ms,
                kind="learner",
                member=self._displayed_at(incarnation),
                text=f"the learner of {task} at {self._displayed_at(incarnation)} was dropped, the task stayed",
            )
            for task, incarnation, entry in self._dropped_learners()
        ]

    def _track_task(self, before: Group, entry: LogEntry) -> None:
        record = entry.record
        assert isinstance(record, TaskRecord), "the caller asked"
        task = TaskId.parse(record.task)
        journey = self._journeys.setdefault(task, _TaskMove())
        old = before.states.get(task)
        match TaskPhase(record.phase):
            case TaskPhase.REVOKING | TaskPhase.FENCE_WAIT | TaskPhase.RELEASED | TaskPhase.UNOWNED:
                if journey.stopped_ms is None:
                    journey.stopped_ms = entry.timestamp_ms
                    journey.source = (old.member or "") if old is not None else ""
                    journey.source_incarnation = (old.owner or "") if old is not None else ""
                journey.fenced |= record.phase == TaskPhase.FENCE_WAIT or record.source == "fence"
            case TaskPhase.RUNNING:
                if old is None or old.task_epoch != record.task_epoch:
                    self._granted(task, journey, record, entry)

    def _granted(
        self, task: TaskId, journey: _TaskMove, record: TaskRecord, entry: LogEntry
    ) -> None:
        owner = record.owner or ""
        planted = journey.copies.get(owner)
        role = "" if planted is None else planted.role
        shape = self._fold.group.tasks.get(task)
        if not journey.source:
            how = role or "start"
        elif journey.source == record.member:
            how = "return"
        elif shape is not None and not shape.stateful:
            how = "stateless"
        else:
            how = role or "cold"
        self._moves.append(
            Move(
                task=record.task,
                task_epoch=record.task_epoch,
                source=journey.source,
                target=record.member or owner,
                source_name=self._displayed.get(journey.source, journey.source),
                target_name=self._displayed_at(owner),
                how=how,
                reason=record.reason,
                fenced=journey.fenced,
                planted_ms=None if planted is None else planted.at_ms,
                stopped_ms=journey.stopped_ms if journey.source else None,
                granted_ms=entry.timestamp_ms,
            )
        )
        standbys = {copy.incarnation for copy in self._fold.group.step.copies(task)} - {owner}
        self._journeys[task] = _TaskMove(
            copies={copy: start for copy, start in journey.copies.items() if copy in standbys}
        )


def _owners(group: Group) -> dict[TaskId, str]:
    return {task: state.owner for task, state in group.states.items() if state.owner is not None}


def _leader_text(before: Group, after: Group) -> str:
    leader = program_name(after, after.leader)
    if before.leader and before.leader != after.leader:
        earlier = program_name(before, before.leader)
        return f"{leader} leads, in place of {earlier} (leader epoch {after.leader_epoch})"
    again = " again" if before.leader else ""
    return f"{leader} leads{again} (leader epoch {after.leader_epoch})"


def _leaving_text(record: MemberRecord) -> str:
    if record.rejoin_ms:
        return "releases its tasks for a restart"
    if record.drain_ms:
        return f"is leaving, its tasks have {duration_text(record.drain_ms)} to move first"
    return "is leaving and releases its tasks"


def _leave_text(before: Group, record: MemberRecord) -> str:
    name = display_name(record)
    old = before.members.get(record.incarnation)
    if record.rejoin_ms:
        return f"{name} is away, its tasks wait {duration_text(record.rejoin_ms)} for it"
    if old is None or old.phase == MemberPhase.FENCED:
        return ""
    if old.phase == MemberPhase.GONE:
        return _stayed_away(name) if before.incarnation_of(record.member) is None else ""
    return f"{name} left"


def _process_text(record: MemberRecord) -> str:
    return f" (process {record.pid})" if record.pid else ""


def _stayed_away(name: str) -> str:
    return f"{name} did not come back in time"


def _group_texts(before: Group, after: Group) -> list[str]:
    texts: list[str] = []
    if after.about.held != before.about.held:
        texts.append(
            f"nothing is decided: {after.about.held}" if after.about.held else "decides again"
        )
    if set(after.tasks) != set(before.tasks) and before.tasks:
        texts.append(f"the program has {len(after.tasks)} tasks now, {len(before.tasks)} before")
    if before.about.group_version != after.about.group_version and before.tasks:
        texts.append(
            f"the group speaks protocol {after.about.group_version} now, {before.about.group_version} before"
        )
    if before.about.topology_hash not in ("", after.about.topology_hash):
        texts.append(f"the program is topology {after.about.topology_epoch} now")
    return texts
