"""Orders from a member to its worker, and reports back.

The member runs in the watchdog process, the worker in the user's program. Orders are idempotent and
name the epoch of their task.
"""

from typing import Final

import msgspec

from tidewheel.rebalance.protocol.messages import SeenTask
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="order", omit_defaults=True): ...


class Welcome(Order, frozen=True, kw_only=True, tag="welcome"):
    """Notice that the leader has admitted the incarnation: its transactional id is usable."""

    transactional_id: str
    rest: Rest | None = None  # As in `SetRest`, which follows only after a change.


class SetRest(Order, frozen=True, kw_only=True, tag="rest"):
    """Order to take no external input, or (None) to take it again."""

    rest: Rest | None = None


class RunTask(Order, frozen=True, kw_only=True, tag="run"):
    """Order to own a task; answered by `TaskRunning` or `TaskBroken`. Promotes an open copy."""

    task: str
    task_epoch: int
    input: dict[str, int] = {}  # Lowest valid committed offsets; lower ones are an error.
    #: Changelog offsets to restore up to before processing; {}: the current end.
    changelog_end: dict[str, int] = {}


class ReleaseTask(Order, frozen=True, kw_only=True, tag="release"):
    """Order to stop, commit and release a task; answered by `TaskReleased`."""

    task: str
    task_epoch: int
    keep: int = 0  # Learn epoch of a copy to keep open; 0: close the stores.


class KeepCopy(Order, frozen=True, kw_only=True, tag="copy"):
    """Order to restore a task's state and follow it, as "standby" or "learner" (the same work)."""

    task: str
    role: str
    learn_epoch: int


class DropCopy(Order, frozen=True, kw_only=True, tag="drop"):
    task: str


class EraseRows(Order, frozen=True, kw_only=True, tag="erase"):
    """Order to delete a key's rows and commit; answered by `RowsErased`."""

    request: str
    task: str
    task_epoch: int
    store: str
    key: bytes
    tail: int = 0

    def __repr__(self) -> str:
        return f"EraseRows(request={self.request!r}, task={self.task!r}, store={self.store!r})"


class UseTransactionalId(Order, frozen=True, kw_only=True, tag="transactional-id"):
    """Notice that the requested transactional id is logged and usable."""

    number: int
    transactional_id: str


class EndIncarnation(Order, frozen=True, kw_only=True, tag="end"):
    """Order to discard uncommitted work: the group has ended this incarnation."""

    reason: str
    final: bool = False  # Do not rejoin: the name is taken, or the program does not fit the group.
    code: str = "FENCED"


class MayClose(Order, frozen=True, kw_only=True, tag="leaveable"):
    """Permission for a leaving worker to close."""


class EndApplication(Order, frozen=True, kw_only=True, tag="shutdown"):
    """Order to commit, leave and not restart: the whole application ends."""

    reason: str


class LogLine(Order, frozen=True, kw_only=True, tag="log"):
    """A log line of the watchdog, for the logging of the worker's program.

    Attributes:
        name: The logger's.
        level: A number of `logging`.
    """

    name: str
    level: int
    text: str


AnyOrder = (
    Welcome
    | SetRest
    | RunTask
    | ReleaseTask
    | KeepCopy
    | DropCopy
    | EraseRows
    | UseTransactionalId
    | EndIncarnation
    | MayClose
    | EndApplication
    | LogLine
)


class Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", omit_defaults=True): ...


class TaskRunning(Report, frozen=True, kw_only=True, tag="running"):
    """Start of the task's processing, at the offsets `input`."""

    task: str
    task_epoch: int
    input: dict[str, int]
    restored: int = 0


class TaskReleased(Report, frozen=True, kw_only=True, tag="released"):
    """The task is committed and released; fields as in `messages.Revoked`."""

    task: str
    task_epoch: int
    input: dict[str, int]
    changelog_end: dict[str, int]
    kept: bool = False


class CopyReady(Report, frozen=True, kw_only=True, tag="ready"):
    """A copy is within `acceptable_recovery_lag`; sent at most every 100 ms while it advances."""

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
    """Answer to `EraseRows`; fields as in `messages.KeyErased`."""

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
    """Request for the id of a new producer; `number` counts the incarnation's ids from 0."""

    number: int


class TasksSeen(Report, frozen=True, kw_only=True, tag="tasks-seen"):
    """Tasks after a change of topics."""

    tasks: tuple[SeenTask, ...]
    partitions: dict[str, int]


class WorkerLeaves(Report, frozen=True, kw_only=True, tag="leaves"):
    """Request to leave the group; fields as in `messages.Leave`."""

    rejoin: bool = False
    drain_ms: int = 0


class WantShutdown(Report, frozen=True, kw_only=True, tag="want-shutdown"):
    """Request to end the application; answered by `EndApplication`."""

    reason: str


class WorkerClosed(Report, frozen=True, kw_only=True, tag="closed"):
    """The worker's last report: everything is committed and closed."""


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

#: Reports that stay true until replaced: a worker's new `Member` object receives the last of each,
#: in this order. Other reports answer orders, which a new member repeats.
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
