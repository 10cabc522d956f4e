"""What a member tells its worker to do (orders), and what the worker tells its member (reports).

They cross a process boundary: the member lives in the watchdog, the worker in the user's program. Orders may come again;
carrying one out twice does no harm. Every order about a task names the epoch it belongs to.
"""

from typing import Final

import msgspec

from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="order", omit_defaults=True):
    """Something for the worker to do."""


class Welcome(Order, frozen=True, kw_only=True, tag="welcome"):
    """The incarnation is in the group log: its transactional id may be used from now on."""

    transactional_id: str


class RunTask(Order, frozen=True, kw_only=True, tag="run"):
    """Own the task: restore to `changelog_end`, begin at what is committed, which is at least `input` where given.

    A copy of the task that is open here is promoted in place. Answered by `TaskRunning` or `TaskBroken`.

    Attributes:
        input: Committed offsets that an owner named last; a committed offset below is an error (nobody goes back).
        changelog_end: Position per changelog partition to reach before the first record; {} means the end as read now.
    """

    task: str
    task_epoch: int
    input: dict[str, int] = {}
    changelog_end: dict[str, int] = {}


class ReleaseTask(Order, frozen=True, kw_only=True, tag="release"):
    """Stop dispatching, commit, let go, answer `TaskReleased`. Other tasks notice nothing.

    Attributes:
        keep: Keep its stores open as a copy with this learn epoch; 0: close them.
    """

    task: str
    task_epoch: int
    keep: int = 0


class KeepCopy(Order, frozen=True, kw_only=True, tag="copy"):
    """Restore the task's state and follow it. `role` is "standby" or "learner"; both do the same work."""

    task: str
    role: str
    learn_epoch: int


class DropCopy(Order, frozen=True, kw_only=True, tag="drop"):
    """Close the copy of a task, if there is one."""

    task: str


class EraseRows(Order, frozen=True, kw_only=True, tag="erase"):
    """Delete a key's rows from a store of an owned task, commit, answer `RowsErased` (see `messages.EraseKey`)."""

    request: str
    task: str
    task_epoch: int
    store: str
    key: bytes
    tail: int = 0

    def __repr__(self) -> str:
        return f"EraseRows(request={self.request!r}, task={self.task!r}, store={self.store!r})"


class UseTransactionalId(Order, frozen=True, kw_only=True, tag="transactional-id"):
    """The id asked for by `TransactionalIdWanted` is in the group log and may be used."""

    number: int
    transactional_id: str


class EndIncarnation(Order, frozen=True, kw_only=True, tag="end"):
    """This incarnation is over: forget what is not committed.

    Attributes:
        reason: For people.
        final: The process must not join again by itself (another one has its name, or it does not fit the group).
        code: As in `messages.Refused`, or FENCED.
    """

    reason: str
    final: bool = False
    code: str = "FENCED"


class Leaveable(Order, frozen=True, kw_only=True, tag="leaveable"):
    """A draining worker has no task left: it may close."""


class EndApplication(Order, frozen=True, kw_only=True, tag="shutdown"):
    """A member wants the whole application to end: commit, leave, and don't come back by itself."""

    reason: str


AnyOrder = (
    Welcome
    | RunTask
    | ReleaseTask
    | KeepCopy
    | DropCopy
    | EraseRows
    | UseTransactionalId
    | EndIncarnation
    | Leaveable
    | EndApplication
)


class Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", omit_defaults=True):
    """Something the worker says."""


class TaskRunning(Report, frozen=True, kw_only=True, tag="running"):
    """An owned task processes from `input` on; `restored` changelog records were read since the order came."""

    task: str
    task_epoch: int
    input: dict[str, int]
    restored: int = 0


class TaskReleased(Report, frozen=True, kw_only=True, tag="released"):
    """An owned task was committed and let go (see `messages.Revoked`)."""

    task: str
    task_epoch: int
    input: dict[str, int]
    changelog_end: dict[str, int]
    kept: bool = False


class CopyReady(Report, frozen=True, kw_only=True, tag="ready"):
    """A copy has come within `acceptable_recovery_lag` of the end; said again as it moves on, at most each 100 ms."""

    task: str
    learn_epoch: int
    store_uuid: str
    positions: dict[str, int]
    ends: dict[str, int]


class CopyNotReady(Report, frozen=True, kw_only=True, tag="not-ready"):
    """A copy that was ready fell behind."""

    task: str
    learn_epoch: int
    reason: str


class TaskBroken(Report, frozen=True, kw_only=True, tag="broken"):
    """A task or copy can't be had here: no disk, damaged, refused."""

    task: str
    epoch: int
    role: str
    detail: str


class RowsErased(Report, frozen=True, kw_only=True, tag="erased"):
    """A key's rows are deleted and that is committed, or `problem` says why not (see `messages.KeyErased`)."""

    request: str
    task: str
    rows: int = 0
    first: int = -1
    last: int = -1
    problem: str = ""


class WorkerStatus(Report, frozen=True, kw_only=True, tag="status"):
    """All tasks in all roles, about twice per heartbeat."""

    tasks: tuple[TaskStatus, ...] = ()


class WorkerInCall(Report, frozen=True, kw_only=True, tag="in-call"):
    """The call of user code that the worker has been in for longest, repeated while it runs; None when it is over."""

    call: RunningCall | None = None


class WantTransactionalId(Report, frozen=True, kw_only=True, tag="want-transactional-id"):
    """The producer was retired; `number` counts the incarnation's ids from 0."""

    number: int


class TasksSeen(Report, frozen=True, kw_only=True, tag="tasks-seen"):
    """The cluster's topics changed: these tasks exist now (shape as in `messages.SeenTask`)."""

    tasks: tuple[tuple[str, bool, tuple[str, ...]], ...]
    partitions: dict[str, int]


class WorkerLeaves(Report, frozen=True, kw_only=True, tag="leaves"):
    """The worker wants to go (see `messages.Leave`)."""

    rejoin: bool = False
    drain_ms: int = 0


class WantShutdown(Report, frozen=True, kw_only=True, tag="want-shutdown"):
    """The whole application is to end (see `messages.ShutDown`); answered by `EndApplication`."""

    reason: str


class WorkerClosed(Report, frozen=True, kw_only=True, tag="closed"):
    """Everything is committed and closed: the last word."""


AnyReport = (
    TaskRunning
    | TaskReleased
    | CopyReady
    | CopyNotReady
    | TaskBroken
    | RowsErased
    | WorkerStatus
    | WorkerInCall
    | WantTransactionalId
    | TasksSeen
    | WorkerLeaves
    | WantShutdown
    | WorkerClosed
)

#: Reports that stay true until they are said anew: who speaks for a worker from now on is told the last of each, in this
#: order. All others are answers to orders, which come again.
LASTING: Final = (
    TasksSeen,
    WantTransactionalId,
    WorkerStatus,
    WorkerLeaves,
    WantShutdown,
    WorkerClosed,
)

_ENCODER: Final = msgspec.json.Encoder()
_ORDERS: Final[msgspec.json.Decoder[AnyOrder]] = msgspec.json.Decoder(AnyOrder)
_REPORTS: Final[msgspec.json.Decoder[AnyReport]] = msgspec.json.Decoder(AnyReport)


def encode_line(value: AnyOrder | AnyReport) -> bytes:
    r"""Return an order or report as one line.

    >>> encode_line(DropCopy(task="0_1"))
    b'{"order":"drop","task":"0_1"}\n'
    """
    return _ENCODER.encode(value) + b"\n"


def decode_order(line: bytes) -> AnyOrder:
    """Return the order in a line; raises `msgspec.MsgspecError` (both ends are of one version)."""
    return _ORDERS.decode(line)


def decode_report(line: bytes) -> AnyReport:
    """Return the report in a line; raises `msgspec.MsgspecError`."""
    return _REPORTS.decode(line)
