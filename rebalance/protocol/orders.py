"""Orders from a member to its worker, and reports back.

The member runs in the watchdog process, the worker in the user's program. Orders are idempotent and
name the epoch of their task.
"""

from typing import Final

import msgspec

from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="order", omit_defaults=True): ...


class Welcome(Order, frozen=True, kw_only=True, tag="welcome"):
    """The incarnation is logged; its transactional id is usable."""

    transactional_id: str


class RunTask(Order, frozen=True, kw_only=True, tag="run"):
    """Own the task; answered by `TaskRunning` or `TaskBroken`. An open copy is promoted in place."""

    task: str
    task_epoch: int
    input: dict[str, int] = {}  # Floor: a committed offset below it is an error.
    #: Positions to restore before the first record; {}: the current end.
    changelog_end: dict[str, int] = {}


class ReleaseTask(Order, frozen=True, kw_only=True, tag="release"):
    """Stop, commit and release the task; answered by `TaskReleased`."""

    task: str
    task_epoch: int
    keep: int = 0  # Learn epoch of a copy to keep open; 0: close the stores.


class KeepCopy(Order, frozen=True, kw_only=True, tag="copy"):
    """Restore the task's state and follow it, as "standby" or "learner" (the same work)."""

    task: str
    role: str
    learn_epoch: int


class DropCopy(Order, frozen=True, kw_only=True, tag="drop"):
    task: str


class EraseRows(Order, frozen=True, kw_only=True, tag="erase"):
    """Delete a key's rows and commit; answered by `RowsErased`."""

    request: str
    task: str
    task_epoch: int
    store: str
    key: bytes
    tail: int = 0

    def __repr__(self) -> str:
        return f"EraseRows(request={self.request!r}, task={self.task!r}, store={self.store!r})"


class UseTransactionalId(Order, frozen=True, kw_only=True, tag="transactional-id"):
    """The requested transactional id is logged and usable."""

    number: int
    transactional_id: str


class EndIncarnation(Order, frozen=True, kw_only=True, tag="end"):
    """This incarnation is over: discard uncommitted work."""

    reason: str
    final: bool = False  # Do not rejoin: the name is taken, or the program does not fit the group.
    code: str = "FENCED"


class MayClose(Order, frozen=True, kw_only=True, tag="leaveable"):
    """A draining worker has no tasks left and can close."""


class EndApplication(Order, frozen=True, kw_only=True, tag="shutdown"):
    """End the application: commit, leave, do not restart."""

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
    | MayClose
    | EndApplication
)


class Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", omit_defaults=True): ...


class TaskRunning(Report, frozen=True, kw_only=True, tag="running"):
    """Processing starts at `input`."""

    task: str
    task_epoch: int
    input: dict[str, int]
    restored: int = 0


class TaskReleased(Report, frozen=True, kw_only=True, tag="released"):
    """Fields as in `messages.Revoked`."""

    task: str
    task_epoch: int
    input: dict[str, int]
    changelog_end: dict[str, int]
    kept: bool = False


class CopyReady(Report, frozen=True, kw_only=True, tag="ready"):
    """A copy is within `acceptable_recovery_lag`; repeated at most every 100 ms as it moves on."""

    task: str
    learn_epoch: int
    store_uuid: str
    positions: dict[str, int]
    ends: dict[str, int]


class CopyNotReady(Report, frozen=True, kw_only=True, tag="not-ready"):
    task: str
    learn_epoch: int
    reason: str


class TaskBroken(Report, frozen=True, kw_only=True, tag="broken"):
    task: str
    epoch: int
    role: str
    detail: str


class RowsErased(Report, frozen=True, kw_only=True, tag="erased"):
    """Fields as in `messages.KeyErased`."""

    request: str
    task: str
    rows: int = 0
    first: int = -1
    last: int = -1
    problem: str = ""


class WorkerStatus(Report, frozen=True, kw_only=True, tag="status"):
    """Status of all tasks, about twice per heartbeat."""

    tasks: tuple[TaskStatus, ...] = ()


class WorkerInCall(Report, frozen=True, kw_only=True, tag="in-call"):
    """Longest running call of user code, repeated while it runs; None when it ends."""

    call: RunningCall | None = None


class WantTransactionalId(Report, frozen=True, kw_only=True, tag="want-transactional-id"):
    """The producer was retired; `number` counts the incarnation's ids from 0."""

    number: int


class TasksSeen(Report, frozen=True, kw_only=True, tag="tasks-seen"):
    """Tasks after a change of topics; shape as in `messages.SeenTask`."""

    tasks: tuple[tuple[str, bool, tuple[str, ...]], ...]
    partitions: dict[str, int]


class WorkerLeaves(Report, frozen=True, kw_only=True, tag="leaves"):
    """Fields as in `messages.Leave`."""

    rejoin: bool = False
    drain_ms: int = 0


class WantShutdown(Report, frozen=True, kw_only=True, tag="want-shutdown"):
    """Request to end the application; answered by `EndApplication`."""

    reason: str


class WorkerClosed(Report, frozen=True, kw_only=True, tag="closed"):
    """Everything is committed and closed; the last report."""


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

#: Reports that stay true until replaced: a new member for the worker gets the last of each, in this
#: order. All others answer orders, which are repeated.
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
    return _ORDERS.decode(line)


def decode_report(line: bytes) -> AnyReport:
    return _REPORTS.decode(line)
