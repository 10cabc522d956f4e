"""A member's side of the group, without its worker: what it hears and reads in, what it says and orders out; pure.

The member never decides who owns what: it reads that from the group log, orders its worker accordingly, and says what the
worker reports. Announcements are repeated at each heartbeat until the log shows that they were taken in, so that a lost
message costs one heartbeat; those of many copies in turns. Orders are the difference between what the log says now and
what was ordered before; a new member for the same incarnation (its watchdog was replaced) gives all of them once more.
"""

from collections.abc import Iterator
from typing import Final, TypedDict

import msgspec

from tidewheel.rebalance.group import LIVE, Group, is_of_leader
from tidewheel.rebalance.leader.group_program import runs
from tidewheel.rebalance.member.order_book import OrderBook
from tidewheel.rebalance.member.status_rows import StatusRows
from tidewheel.rebalance.model import MemberPhase, TaskId, TaskPhase, TaskRole
from tidewheel.rebalance.producer_ids import group_id
from tidewheel.rebalance.protocol.inbox_limit import PER_SECOND
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    DiskCopy,
    EraseKey,
    GrantedOk,
    Join,
    KeyErased,
    LeaderBeat,
    Leave,
    MemberDied,
    NotReady,
    Ready,
    Refused,
    Revoked,
    SeenTask,
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
    Leaveable,
    RowsErased,
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
from tidewheel.rebalance.protocol.task_status import RunningCall

#: A join is repeated at every so many heartbeats while the leader needs what it says: the member is parked, the group is
#: held, or has other tasks than it sees.
JOIN_AGAIN_HEARTBEATS: Final = 4

#: Beats whose sending is remembered until they are acknowledged.
BEATS_REMEMBERED: Final = 1_000


class MemberDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a member wants done.

    Attributes:
        messages: To be sent to the inbox, in order.
        orders: For the worker, in order.
        lease_until_ms: The worker may begin new work until then (by the same clock as `now_ms`); None: not in the group yet.
        wake_ms: Decide again by then at the latest, or as soon as anything came in.
        over: The incarnation has ended and everything was said: forget this object.
    """

    messages: tuple[AnyMessage, ...] = ()
    orders: tuple[AnyOrder, ...] = ()
    lease_until_ms: int | None = None
    wake_ms: int = 0
    over: bool = False


class _Sender(TypedDict):
    """What every message says of its sender."""

    app: str
    member: str
    incarnation: str


class Member:
    """One incarnation of one member."""

    def __init__(
        self, join: Join, *, heartbeat_interval_ms: int, session_timeout_ms: int, now_ms: int
    ) -> None:
        """Begin with what the worker said of itself; the first decision says JOIN."""
        self._join = join
        self._heartbeat_ms = heartbeat_interval_ms
        self._session_ms = session_timeout_ms
        self._group = Group()
        self._state_offset = 0
        self._book = OrderBook(join.incarnation)
        self._rows = StatusRows()
        # How it goes on.
        self._alive, self._in_call = True, False
        self._call: RunningCall | None = None
        self._was_in = False
        self._leaving = False
        self._left = False
        self._closed = False
        self._death: str | None = None
        self._death_said = False
        self._over = False
        # What is said once, now; and at each heartbeat until the log shows that it was taken in.
        self._now: list[AnyMessage] = []
        self._again: dict[tuple[str, TaskId], Ready | Revoked | TaskFailed] = {}
        self._leave: WorkerLeaves | None = None
        self._shutdown: WantShutdown | None = None
        self._shutdown_told = False
        self._ids: dict[int, str] = {}
        self._orders: list[AnyOrder] = []
        # Beats. A member that takes an incarnation over on the same machine must count on from above (the leader drops
        # what is not newer): the machine's clock does that, with at most one beat each millisecond.
        self._sequence = now_ms
        self._sent_ms: dict[int, int] = {}
        # When the last word was sent that the leader is known to have heard: its patience counts from then or later.
        self._acked_ms: int | None = None
        self._joined_ms: int | None = None
        self._heartbeats = 0
        self._heartbeat_due_ms = now_ms

    # -- what comes in ------------------------------------------------------------------------------------------------

    def follow(self, group: Group, state_offset: int, now_ms: int) -> None:
        """Take in the fold of the log up to an offset."""
        self._state_offset = state_offset
        if group is self._group or self._over:
            return
        self._group = group
        record = self._record()
        if record is not None:
            self._obey(record, now_ms)
        elif self._was_in or self._join.incarnation in group.members:
            self._put_out()

    def hear(self, message: AnyMessage, now_ms: int) -> None:  # noqa: ARG002 - every input has its moment
        """Take in a message of the leader (LeaderBeat, Refused) or of an operator (EraseKey); others are ignored."""
        mine = self._join.incarnation
        if message.app != self._join.app:
            return
        if isinstance(message, LeaderBeat) and is_of_leader(message, self._group):
            sent_ms = self._sent_ms.get(message.seen.get(mine, -1))
            if sent_ms is not None:
                self._acked_ms = max(sent_ms, self._acked_ms or sent_ms)
        elif isinstance(message, Refused) and message.incarnation == mine and not self._was_in:
            self._end(message.reason, final=message.code != "FENCED", code=message.code)
        elif isinstance(message, EraseKey):
            self._erase(message)

    def _erase(self, wish: EraseKey) -> None:
        """Order a deletion if the worker owns the task under the epoch that the wish names."""
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
        """Take in what the worker said."""
        match report:
            case TaskRunning() | TaskReleased() | CopyReady() | CopyNotReady() | TaskBroken():
                self._announce(report)
            case RowsErased():
                self._now.append(
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
                self._see(report)
            case WantTransactionalId():
                name = group_id(self._join.app, self._join.incarnation, report.number)
                self._ids[report.number] = name
                self._now.append(self._id_wanted(report.number))
            case TasksSeen():
                seen = tuple(
                    SeenTask(task=task, stateful=stateful, changelogs=changelogs)
                    for task, stateful, changelogs in report.tasks
                )
                self._join = msgspec.structs.replace(
                    self._join, tasks=seen, partitions=report.partitions
                )
                self._now.append(self._join)
            case WorkerLeaves():
                self._leave = report
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)
            case WantShutdown():
                self._shutdown = report
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)
            case WorkerClosed():
                self._closed = True
                self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)

    def _see(self, report: WorkerStatus | WorkerInCall) -> None:
        """Take in what the worker does; the next beat says it."""
        if isinstance(report, WorkerInCall):
            self._call = report.call
            return
        self._rows.replace(report.tasks)
        if self._record() is not None:
            self._orders += self._book.corrections(self._group, report.tasks)

    def vouch(self, alive: bool, now_ms: int, *, in_call: bool = False) -> None:  # noqa: ARG002 - every input has its moment; the verb says what it is
        """Take in whether the worker lives; while it does not, nothing is said in its name.

        It does while its progress counter moves, and while it is in a long call of user code (`in_call`) within its bound.
        """
        self._alive, self._in_call = alive, in_call

    def died(self, reason: str, now_ms: int) -> None:
        """Take in that the worker's process is gone."""
        if self._death is None:
            self._death = reason or "its process ended"
            self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)

    # -- what goes out ------------------------------------------------------------------------------------------------

    def decide(self, now_ms: int) -> MemberDecision:
        """Return what is to be said, ordered and awaited."""
        messages: list[AnyMessage] = []
        speaks = (self._alive or self._death is not None) and not self._over and not self._left
        if speaks:
            messages, self._now = self._now, []
            if now_ms >= self._heartbeat_due_ms:
                self._wake_up(now_ms)
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
            # Who is not to speak is asked again as if the next heartbeat were due then: until something comes in nothing changes.
            wake_ms=max(self._heartbeat_due_ms, now_ms + (1 if speaks else self._heartbeat_ms)),
            over=self._over or self._is_done(),
        )

    def _wake_up(self, now_ms: int) -> None:
        """End an incarnation that slept for a session while it was joining.

        It may have been taken in and fenced meanwhile, without a trace in the group of now; its name must not come back.
        """
        slept_ms = now_ms - self._heartbeat_due_ms
        if self._heartbeats and not self._was_in and slept_ms >= self._session_ms:
            self._end(
                f"stood still for {slept_ms} ms while it was joining", final=False, code="FENCED"
            )

    def _is_done(self) -> bool:
        """Return whether the worker is no more, and nobody waits for a word about it."""
        if self._record() is None:
            return self._death_said or ((self._left or self._death is None) and self._closed)
        return self._closed and self._death is None and not self._owns()

    def _heartbeat(self, now_ms: int) -> Iterator[AnyMessage]:
        record = self._record()
        death = self._death or ("closed without letting go of its tasks" if self._closed else None)
        if death is not None:
            self._death_said = self._death is not None
            yield MemberDied(**self._sender(), reason=death)
            return
        self._heartbeats += 1
        if record is None:
            self._joined_ms = now_ms if self._joined_ms is None else self._joined_ms
            yield self._join
            return
        if self._heartbeats % JOIN_AGAIN_HEARTBEATS == 0 and self._must_say_join(record):
            yield self._join
        yield self._beat(now_ms)
        yield from self._said_again()
        yield from map(self._id_wanted, sorted(self._ids))
        leave = self._leave
        if leave is not None and not _shows(record, leave):
            yield Leave(**self._sender(), rejoin=leave.rejoin, drain_ms=leave.drain_ms)
        if self._shutdown is not None and not record.shutdown:
            yield ShutDown(**self._sender(), reason=self._shutdown.reason)

    def _said_again(self) -> list[Ready | Revoked | TaskFailed]:
        """Return the announcements to repeat now: all of them, unless readers would drop some (H23); then in turns.

        A member with hundreds of standbys would else have the same ones dropped each time. What the group waits for goes
        before the copies that are ready.
        """
        most = max(self._heartbeat_ms * PER_SECOND // 2_000, 1)
        if len(self._again) <= most:
            return list(self._again.values())
        waited_for = [key for key, each in self._again.items() if not isinstance(each, Ready)]
        others = [key for key, each in self._again.items() if isinstance(each, Ready)]
        keys = [*waited_for, *others][:most]
        said = {key: self._again.pop(key) for key in keys}
        self._again |= said  # last in the next turn
        return list(said.values())

    def _must_say_join(self, record: MemberRecord) -> bool:
        """Return whether the leader lacks what only a join says; one that has just taken over has heard none."""
        about = self._group.about
        named = {each.task for each in self._join.tasks}
        unknown = not about.tasks.keys() >= named
        if record.topology_hash == about.topology_hash:
            unknown |= not named >= about.tasks.keys()
        is_parked = record.phase == MemberPhase.PARKED
        unknown |= not runs(self._join, about) or not _shows_join(record, self._join)
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

    # -- what the log says --------------------------------------------------------------------------------------------

    def _record(self) -> MemberRecord | None:
        """Return the incarnation's record while it is in the group."""
        record = self._group.members.get(self._join.incarnation)
        return record if record is not None and record.phase in LIVE else None

    def _owns(self) -> bool:
        return bool(self._group.owned(self._join.incarnation))

    def _obey(self, record: MemberRecord, now_ms: int) -> None:
        """Order what the log asks for, and stop repeating what it shows."""
        if not self._was_in:
            self._was_in = True
            # Where its state stands changes from now on: what a later join repeated would be of another time.
            on_disk = tuple(DiskCopy(task=each.task) for each in self._join.on_disk)
            self._join = msgspec.structs.replace(self._join, on_disk=on_disk)
            # It was let in for a join: some leader has heard one, the first or a later one. Not known of a life that
            # another watchdog began, which has the lease that it had.
            if self._acked_ms is None:
                self._acked_ms = self._joined_ms
            self._heartbeat_due_ms = min(self._heartbeat_due_ms, now_ms)
            self._orders.append(Welcome(transactional_id=self._join.transactional_ids[0]))
        for number, name in list(self._ids.items()):
            if name in record.transactional_ids:
                del self._ids[number]
                self._orders.append(UseTransactionalId(number=number, transactional_id=name))
        if record.shutdown and not self._shutdown_told:
            self._shutdown_told = True
            self._orders.append(EndApplication(reason=record.shutdown))
        self._orders += self._book.orders(self._group)
        self._again = {
            key: message for key, message in self._again.items() if self._is_news(message, key[1])
        }
        self._leaving = record.phase == MemberPhase.LEAVING
        if self._leaving and not self._owns():
            self._let_go()

    def _is_news(self, message: Ready | Revoked | TaskFailed, task: TaskId) -> bool:
        """Return whether the log still lets an announcement change something."""
        mine = self._join.incarnation
        state = self._group.states.get(task)
        owner_of = state.task_epoch if state is not None and state.owner == mine else None
        if isinstance(message, Revoked):
            revoking = state is not None and state.phase == TaskPhase.REVOKING
            return revoking and owner_of == message.task_epoch
        if isinstance(message, TaskFailed) and message.role == TaskRole.ACTIVE:
            return owner_of == message.epoch
        epoch = message.epoch if isinstance(message, TaskFailed) else message.learn_epoch
        copy = Copy(incarnation=mine, learn_epoch=epoch)
        return copy in self._group.step.copies(task)

    def _put_out(self) -> None:
        """The incarnation is no longer in the group: it left, or it was fenced."""
        gone = self._group.members.get(self._join.incarnation)
        fenced = gone is not None and gone.phase in (MemberPhase.FENCING, MemberPhase.FENCED)
        # One that has nothing to give up leaves in a single decision: LEAVING is never seen.
        wants_to_leave = self._leaving or self._leave is not None
        if self._left or (not fenced and wants_to_leave):
            self._let_go()
            return
        replaced = self._group.incarnation_of(self._join.member) is not None
        reason = gone.reason if gone is not None else "the group has gone on without it"
        self._end(reason, final=replaced, code="FENCED_INSTANCE" if replaced else "FENCED")

    def _let_go(self) -> None:
        if not self._left:
            self._left = True
            self._orders.append(Leaveable())

    def _end(self, reason: str, *, final: bool, code: str) -> None:
        if not self._over:
            self._over = True
            self._orders.append(EndIncarnation(reason=reason, final=final, code=code))

    # -- what the worker says -----------------------------------------------------------------------------------------

    def _announce(
        self, report: TaskRunning | TaskReleased | CopyReady | CopyNotReady | TaskBroken
    ) -> None:
        """Say at once what a worker reports of a task, and again with each heartbeat where that matters."""
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
            self._again.pop(("Ready", task), None)
        elif not isinstance(message, GrantedOk):
            key = (type(message).__name__, task)
            before = self._again.get(key)
            self._again[key] = message
            if _goes_on(before, message):
                return  # with the next heartbeat
        self._now.append(message)


def _goes_on(before: AnyMessage | None, message: AnyMessage) -> bool:
    """Return whether a copy that was announced has just moved on."""
    if not isinstance(before, Ready) or not isinstance(message, Ready):
        return False
    return before.learn_epoch == message.learn_epoch


#: Fields of a member's record that repeat those of its join.
_JOINED: Final = tuple(
    name
    for name in MemberRecord.__struct_fields__
    if name in Join.__struct_fields__ and name not in ("v", "transactional_ids")
)


def _shows_join(record: MemberRecord, join: Join) -> bool:
    """Return whether a member's record says what its join does; it does unless somebody else wrote it."""
    return all(getattr(record, name) == getattr(join, name) for name in _JOINED)


def _shows(record: MemberRecord, leave: WorkerLeaves) -> bool:
    """Return whether a member's record shows that its wish to leave was taken in."""
    if record.phase != MemberPhase.LEAVING:
        return False
    return not record.drain_ms if leave.rejoin or not leave.drain_ms else True
