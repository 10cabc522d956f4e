"""A worker's group member: a pure state machine in the watchdog process.

The member derives orders from the group log and announces its worker's reports in the inbox. It
repeats an announcement each heartbeat until the log reflects it: a lost message costs one
heartbeat. After a watchdog restart the new member repeats all orders.
"""

from collections.abc import Iterator
from typing import Final, TypedDict

import msgspec

from tidewheel.rebalance.leader.compatibility import runs_program
from tidewheel.rebalance.member.order_book import OrderBook
from tidewheel.rebalance.member.status_rows import StatusRows
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.producer_ids import group_id
from tidewheel.rebalance.protocol.group import LIVE, Group, is_of_leader
from tidewheel.rebalance.protocol.inbox_limit import PER_SECOND
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    DiskCopy,
    EraseKey,
    GrantedOk,
    JoinGroup,
    JoinRefused,
    KeyErased,
    LeaderBeat,
    Leave,
    MemberDied,
    NotReady,
    Ready,
    Revoked,
    ShardCopy,
    ShutDown,
    TaskFailed,
    TransactionalIdWanted,
)
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    CopyNotReady,
    CopyReady,
    EndApplication,
    EndIncarnation,
    EraseRows,
    MayClose,
    RowsErased,
    SetRest,
    TaskBroken,
    TaskReleased,
    TaskRunning,
    TasksSeen,
    UseTransactionalId,
    WantShutdown,
    WantTransactionalId,
    Welcome,
    WorkerClosed,
    WorkerInCall,
    WorkerLeaves,
    WorkerStatus,
)
from tidewheel.rebalance.protocol.records import Copy, MemberRecord
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.rebalance.protocol.task_status import RunningCall

#: Heartbeats between JOIN messages of an admitted member, sent while it is parked, the group is
#: held, or the log has other data about it or its tasks.
JOIN_AGAIN_HEARTBEATS: Final = 4

BEATS_REMEMBERED: Final = 1_000


class MemberDecision(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[AnyMessage, ...] = ()
    orders: tuple[AnyOrder, ...] = ()
    #: The worker can process records until then (clock of `now_ms`); None: not admitted yet.
    lease_until_ms: int | None = None
    wake_ms: int = 0  # Decide again by then, or after any input.
    over: bool = False  # The incarnation has ended: drop this object.


class _Sender(TypedDict):
    app: str
    member: str
    incarnation: str


class Member:
    def __init__(
        self, join: JoinGroup, *, heartbeat_interval_ms: int, session_timeout_ms: int, now_ms: int
    ) -> None:
        self._join = join
        self._heartbeat_ms = heartbeat_interval_ms
        self._session_ms = session_timeout_ms
        self._group = Group()
        self._state_offset = 0
        self._book = OrderBook(join.incarnation)
        self._rows = StatusRows()
        self._alive, self._in_call = True, False
        self._call: RunningCall | None = None
        self._was_admitted = False
        self._leaving = False
        self._left = False
        self._closed = False
        self._death: str | None = None
        self._is_death_sent = False
        self._over = False
        # `_outgoing` is sent once; `_repeated` each heartbeat until the log reflects it.
        self._outgoing: list[AnyMessage] = []
        self._repeated: dict[tuple[str, TaskId], Ready | Revoked | TaskFailed] = {}
        self._leave: WorkerLeaves | None = None
        self._shutdown: WantShutdown | None = None
        self._is_shutdown_ordered = False
        self._rest: Rest | None = None
        self._ids: dict[int, str] = {}
        self._orders: list[AnyOrder] = []
        # The leader drops beats whose number is not higher. After a watchdog restart the new member
        # starts at the clock (ms), which is higher: members send at most one beat per millisecond.
        self._sequence = now_ms
        self._sent_ms: dict[int, int] = {}
        # Send time of the last message that the leader acknowledged: its session timeout for this
        # member starts then or later.
        self._acked_ms: int | None = None
        self._joined_ms: int | None = None
        self._heartbeats = 0
        self._heartbeat_due_ms = now_ms

    def follow(self, group: Group, state_offset: int, now_ms: int) -> None:
        self._state_offset = state_offset
        if group is self._group or self._over:
            return
        self._group = group
        record = self._record()
        if record is not None:
            self._apply_record(record, now_ms)
        elif self._was_admitted or self._join.incarnation in group.members:
            self._handle_removal()

    def receive(self, message: AnyMessage, now_ms: int) -> None:  # noqa: ARG002 - every input method takes the time
        incarnation = self._join.incarnation
        if message.app != self._join.app:
            return
        if isinstance(message, LeaderBeat) and is_of_leader(message, self._group):
            sent_ms = self._sent_ms.get(message.seen.get(incarnation, -1))
            if sent_ms is not None:
                self._acked_ms = max(sent_ms, self._acked_ms or sent_ms)
        elif (
            isinstance(message, JoinRefused)
            and message.incarnation == incarnation
            and not self._was_admitted
        ):
            self._end(message.reason, final=message.code != "FENCED", code=message.code)
        elif isinstance(message, EraseKey):
            self._erase(message)

    def _erase(self, wish: EraseKey) -> None:
        state = self._group.states.get(TaskId.parse(wish.task))
        if state is None or state.owner != self._join.incarnation or self._over:
            return
        if state.task_epoch == wish.task_epoch:
            self._orders.append(
                EraseRows(
                    request=wish.request,
                    task=wish.task,
                    task_epoch=wish.task_epoch,
                    store=wish.store,
                    key=wish.key,
                    tail=wish.tail,
                )
            )

    def report(self, report: AnyReport, now_ms: int) -> None:
        match report:
            case TaskRunning() | TaskReleased() | CopyReady() | CopyNotReady() | TaskBroken():
                self._announce(report)
            case RowsErased():
                self._outgoing.append(
                    KeyErased(
                        **self._sender(),
                        request=report.request,
                        task=report.task,
                        rows=report.rows,
                        first=report.first,
                        last=report.last,
                        problem=report.problem,
                    )
                )
            case WorkerStatus() | WorkerInCall():
                self._process_status(report)
            case WantTransactionalId():
                name = group_id(self._join.app, self._join.incarnation, report.number)
                self._ids[report.number] = name
                self._outgoing.append(self._id_wanted(report.number))
            case TasksSeen():
                self._join = msgspec.structs.replace(
                    self._join, tasks=report.tasks, partitions=report.partitions
                )
                self._outgoing.append(self._join)
            case WorkerLeaves():
                self._leave = report
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)
            case WantShutdown():
                self._shutdown = report
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)
            case WorkerClosed():
                self._closed = True
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)

    def _process_status(self, report: WorkerStatus | WorkerInCall) -> None:
        if isinstance(report, WorkerInCall):
            self._call = report.call
            return
        self._rows.replace(report.tasks)
        if self._record() is not None:
            self._orders += self._book.corrections(self._group, report.tasks)

    def set_health(self, alive: bool, now_ms: int, *, in_call: bool = False) -> None:  # noqa: ARG002 - every input method takes the time
        """Set the worker's health; for a dead worker the member sends no beat.

        A worker is alive while its loop advances, or during a call within `max_call_ms`.
        """
        self._alive, self._in_call = alive, in_call

    def died(self, reason: str, now_ms: int) -> None:
        if self._death is None:
            self._death = reason or "its process ended"
            self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)

    def decide(self, now_ms: int) -> MemberDecision:
        messages: list[AnyMessage] = []
        speaks = (self._alive or self._death is not None) and not self._over and not self._left
        if speaks:
            messages, self._outgoing = self._outgoing, []
            if now_ms >= self._heartbeat_due_ms:
                self._end_after_pause(now_ms)
                self._heartbeat_due_ms = now_ms + self._heartbeat_ms
                if not self._over:
                    messages += self._heartbeat(now_ms)
        orders, self._orders = tuple(self._orders), []
        lease_until_ms = None
        if self._acked_ms is not None:
            lease_until_ms = self._acked_ms + self._session_ms - self._heartbeat_ms
        return MemberDecision(
            messages=tuple(messages),
            orders=orders,
            lease_until_ms=lease_until_ms,
            # A member that must not send sleeps a heartbeat: only new input can change that.
            wake_ms=max(self._heartbeat_due_ms, now_ms + (1 if speaks else self._heartbeat_ms)),
            over=self._over or self._is_done(),
        )

    def _end_after_pause(self, now_ms: int) -> None:
        """End an incarnation whose process paused for a session timeout while joining.

        The group may have admitted and fenced it meanwhile.
        """
        slept_ms = now_ms - self._heartbeat_due_ms
        if self._heartbeats and not self._was_admitted and slept_ms >= self._session_ms:
            self._end(f"paused for {slept_ms} ms while it was joining", final=False, code="FENCED")

    def _is_done(self) -> bool:
        if self._record() is None:
            return self._is_death_sent or ((self._left or self._death is None) and self._closed)
        return self._closed and self._death is None and not self._has_tasks()

    def _heartbeat(self, now_ms: int) -> Iterator[AnyMessage]:
        record = self._record()
        death = self._death or ("closed without releasing its tasks" if self._closed else None)
        if death is not None:
            self._is_death_sent = self._death is not None
            yield MemberDied(**self._sender(), reason=death)
            return
        self._heartbeats += 1
        if record is None:
            self._joined_ms = now_ms if self._joined_ms is None else self._joined_ms
            yield self._join
            return
        if self._heartbeats % JOIN_AGAIN_HEARTBEATS == 0 and self._needs_join(record):
            yield self._join
        yield self._beat(now_ms)
        yield from self._repeated_messages()
        yield from map(self._id_wanted, sorted(self._ids))
        leave = self._leave
        if leave is not None and not _reflects_leave(record, leave):
            yield Leave(**self._sender(), rejoin=leave.rejoin, drain_ms=leave.drain_ms)
        if self._shutdown is not None and not record.shutdown:
            yield ShutDown(**self._sender(), reason=self._shutdown.reason)

    def _repeated_messages(self) -> list[Ready | Revoked | TaskFailed]:
        """Return announcements to repeat now; in turns if the inbox's rate limit requires it.

        REVOKED and TASK_FAILED, for which the leader waits, come before READY.
        """
        most = max(self._heartbeat_ms * PER_SECOND // 2_000, 1)
        if len(self._repeated) <= most:
            return list(self._repeated.values())
        waited_for = [
            key for key, message in self._repeated.items() if not isinstance(message, Ready)
        ]
        ready_keys = [key for key, message in self._repeated.items() if isinstance(message, Ready)]
        keys = [*waited_for, *ready_keys][:most]
        messages = {key: self._repeated.pop(key) for key in keys}
        self._repeated |= messages
        return list(messages.values())

    def _needs_join(self, record: MemberRecord) -> bool:
        about = self._group.about
        named = {task.task for task in self._join.tasks}
        unknown = not about.tasks.keys() >= named
        if record.topology_hash == about.topology_hash:
            unknown |= not named >= about.tasks.keys()
        is_parked = record.phase == MemberPhase.PARKED
        unknown |= not runs_program(self._join, about) or not _reflects_join(record, self._join)
        return is_parked or bool(about.held) or unknown or record.assignor != about.assignor

    def _beat(self, now_ms: int) -> Beat:
        self._sequence += 1
        self._sent_ms[self._sequence] = now_ms
        if len(self._sent_ms) > BEATS_REMEMBERED:
            del self._sent_ms[next(iter(self._sent_ms))]
        rows, full = self._rows.next_rows()
        return Beat(
            **self._sender(),
            seq=self._sequence,
            leader_epoch=self._group.leader_epoch,
            state_offset=self._state_offset,
            full=full,
            in_call=self._in_call,
            call=self._call,
            tasks=rows,
        )

    def _sender(self) -> _Sender:
        join = self._join
        return {"app": join.app, "member": join.member, "incarnation": join.incarnation}

    def _id_wanted(self, number: int) -> TransactionalIdWanted:
        return TransactionalIdWanted(
            **self._sender(), number=number, transactional_id=self._ids[number]
        )

    def _record(self) -> MemberRecord | None:
        record = self._group.members.get(self._join.incarnation)
        return record if record is not None and record.phase in LIVE else None

    def _has_tasks(self) -> bool:
        return bool(self._group.owned(self._join.incarnation))

    def _apply_record(self, record: MemberRecord, now_ms: int) -> None:
        if not self._was_admitted:
            self._was_admitted = True
            # The worker opens its stores now: a repeated JOIN omits their outdated positions.
            on_disk = tuple(DiskCopy(task=copy.task) for copy in self._join.on_disk)
            shards = tuple(ShardCopy(task=copy.task) for copy in self._join.shards_on_disk)
            self._join = msgspec.structs.replace(self._join, on_disk=on_disk, shards_on_disk=shards)
            # The leader received a JOIN, perhaps the first: the lease starts when that was sent.
            # After a watchdog restart this member sent none: the worker keeps its earlier lease.
            if self._acked_ms is None:
                self._acked_ms = self._joined_ms
            self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)
            self._rest = self._group.about.rest
            self._orders.append(
                Welcome(transactional_id=self._join.transactional_ids[0], rest=self._rest)
            )
        if self._group.about.rest != self._rest:
            # Before orders to run tasks: these must not take input first.
            self._rest = self._group.about.rest
            self._orders.append(SetRest(rest=self._rest))
        for number, name in list(self._ids.items()):
            if name in record.transactional_ids:
                del self._ids[number]
                self._orders.append(UseTransactionalId(number=number, transactional_id=name))
        if record.shutdown and not self._is_shutdown_ordered:
            self._is_shutdown_ordered = True
            self._orders.append(EndApplication(reason=record.shutdown))
        self._orders += self._book.orders(self._group)
        self._repeated = {
            key: message
            for key, message in self._repeated.items()
            if self._is_pending(message, key[1])
        }
        self._leaving = record.phase == MemberPhase.LEAVING
        if self._leaving and not self._has_tasks():
            self._permit_closing()

    def _is_pending(self, message: Ready | Revoked | TaskFailed, task: TaskId) -> bool:
        """Return True if the announcement can still change the log."""
        incarnation = self._join.incarnation
        state = self._group.states.get(task)
        owner_of = state.task_epoch if state is not None and state.owner == incarnation else None
        if isinstance(message, Revoked):
            revoking = state is not None and state.phase == TaskPhase.REVOKING
            return revoking and owner_of == message.task_epoch
        if isinstance(message, TaskFailed) and message.role == TaskRole.ACTIVE:
            return owner_of == message.epoch
        epoch = message.epoch if isinstance(message, TaskFailed) else message.learn_epoch
        copy = Copy(incarnation=incarnation, learn_epoch=epoch)
        return copy in self._group.step.copies(task)

    def _handle_removal(self) -> None:
        removed = self._group.members.get(self._join.incarnation)
        fenced = removed is not None and removed.phase in (MemberPhase.FENCING, MemberPhase.FENCED)
        # A member without tasks leaves in one decision, so it never sees LEAVING.
        wants_to_leave = self._leaving or self._leave is not None
        if self._left or (not fenced and wants_to_leave):
            self._permit_closing()
            return
        replaced = self._group.incarnation_of(self._join.member) is not None
        reason = removed.reason if removed is not None else "the group has continued without it"
        self._end(reason, final=replaced, code="FENCED_INSTANCE" if replaced else "FENCED")

    def _permit_closing(self) -> None:
        if not self._left:
            self._left = True
            self._orders.append(MayClose())

    def _end(self, reason: str, *, final: bool, code: str) -> None:
        if not self._over:
            self._over = True
            self._orders.append(EndIncarnation(reason=reason, final=final, code=code))

    def _announce(
        self, report: TaskRunning | TaskReleased | CopyReady | CopyNotReady | TaskBroken
    ) -> None:
        """Send a report now; repeat it each heartbeat, except GrantedOk and NotReady."""
        task = TaskId.parse(report.task)
        message: Ready | NotReady | Revoked | GrantedOk | TaskFailed
        match report:
            case TaskRunning():
                message = GrantedOk(
                    **self._sender(),
                    task=report.task,
                    task_epoch=report.task_epoch,
                    input=report.input,
                    restored=report.restored,
                )
            case TaskReleased():
                message = Revoked(
                    **self._sender(),
                    task=report.task,
                    task_epoch=report.task_epoch,
                    input=report.input,
                    changelog_end=report.changelog_end,
                    kept=report.kept,
                )
            case CopyReady():
                message = Ready(
                    **self._sender(),
                    task=report.task,
                    learn_epoch=report.learn_epoch,
                    store_uuid=report.store_uuid,
                    positions=report.positions,
                    ends=report.ends,
                )
            case CopyNotReady():
                message = NotReady(
                    **self._sender(),
                    task=report.task,
                    learn_epoch=report.learn_epoch,
                    reason=report.reason,
                )
            case TaskBroken():
                message = TaskFailed(
                    **self._sender(),
                    task=report.task,
                    epoch=report.epoch,
                    role=report.role,
                    detail=report.detail,
                )
        if isinstance(message, NotReady):
            self._repeated.pop(("Ready", task), None)
        elif not isinstance(message, GrantedOk):
            key = (type(message).__name__, task)
            before = self._repeated.get(key)
            self._repeated[key] = message
            if _is_newer_position(before, message):
                return
        self._outgoing.append(message)


def _is_newer_position(before: AnyMessage | None, message: AnyMessage) -> bool:
    if not isinstance(before, Ready) or not isinstance(message, Ready):
        return False
    return before.learn_epoch == message.learn_epoch


_JOINED: Final = tuple(
    name
    for name in MemberRecord.__struct_fields__
    if name in JoinGroup.__struct_fields__ and name not in ("v", "transactional_ids")
)


def _reflects_join(record: MemberRecord, join: JoinGroup) -> bool:
    """Return False if a writer other than the leader changed the record: join again then."""
    return all(getattr(record, name) == getattr(join, name) for name in _JOINED)


def _reflects_leave(record: MemberRecord, leave: WorkerLeaves) -> bool:
    if record.phase != MemberPhase.LEAVING:
        return False
    return not record.drain_ms if leave.rejoin or not leave.drain_ms else True
