"""What members and the leader say to each other through the inbox topic: announcements, not decisions.

Nothing here changes who owns what: only the group log does. Every message names its sender's incarnation, so that what
a fenced process still says is told apart. The topic is untrusted: size and shape are checked, unknown fields and kinds
are ignored, so that members of neighbouring versions understand each other.
"""

from typing import Final

import msgspec

from tidewheel.rebalance.producer_ids import is_group_id
from tidewheel.rebalance.protocol.decoding import Door, Rejection
from tidewheel.rebalance.protocol.field_types import (
    PARTITIONS_MAX,
    Count,
    Counter,
    DurationMs,
    Epoch,
    KeyBytes,
    Label,
    Name,
    Offset,
    OptionalOffset,
    PartitionCount,
    Positions,
    Sequence,
    SessionMs,
    TailBytes,
    TaskRoleText,
    TaskText,
    Text,
    Threads,
    TopicText,
    Version,
)
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus

#: Messages beyond this size are dropped.
MESSAGE_BYTES_MAX: Final = 256 * 1024

#: The protocol versions this code speaks.
PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """What every message carries.

    Attributes:
        app: The application's id; others are ignored.
        member: The member's lasting name: `group_instance_id` (and slot), or an id kept in its state directory.
        incarnation: One life of that member, never used again.
        v: Version of the protocol it is written in.
    """

    app: Name
    member: Name
    incarnation: Name
    v: Version = PROTOCOL_MAX


class DiskCopy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a task that a joining member has on its disk, not open."""

    task: TaskText
    positions: Positions = {}


class SeenTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that the topology has on the cluster as the sender sees it (`tidewheel.rebalance.model.TaskShape`)."""

    task: TaskText
    stateful: bool = False
    changelogs: tuple[TopicText, ...] = ()


class Join(Message, frozen=True, kw_only=True, tag="JOIN"):
    """Take me in. Sent at each heartbeat until the group log has the incarnation, and again if what it sees changed.

    Attributes:
        transactional_ids: Ids it will use, not used yet.
        host: Name of its machine; copies are kept off the machine of the active task if possible.
        process_id: The host program it belongs to.
        endpoint: `application_server`, for queries.
        rack, tags: `rack_id`, `client_tags`.
        threads: Capacity: load is compared per thread.
        static: Whether the name is a `group_instance_id`.
        protocol: Lowest and highest version it speaks.
        topology_epoch, topology_hash: Which program it runs; one hash per epoch.
        assignor: Name of its assignor.
        tasks: What the topology and the cluster's partitions make of tasks.
        partitions: Partition counts of the topics read.
        on_disk: State it could begin from.
        session_timeout_ms, rejoin_timeout_ms: Its settings.
        rejoining: It was told of a clean restart before (`Leave.rejoin`) or finds its own files.
    """

    transactional_ids: tuple[Name, ...]
    host: Label
    pid: Count
    process_id: Label
    endpoint: Label | None = None
    rack: Label | None = None
    tags: dict[Label, Label] = {}
    threads: Threads = 1
    static: bool = False
    protocol: tuple[Version, Version] = (PROTOCOL_MIN, PROTOCOL_MAX)
    topology_epoch: Epoch = 0
    topology_hash: Label = ""
    assignor: Label = "sticky"
    tasks: tuple[SeenTask, ...] = ()
    partitions: dict[TopicText, PartitionCount] = {}
    on_disk: tuple[DiskCopy, ...] = ()
    session_timeout_ms: SessionMs = 3_000
    rejoin_timeout_ms: DurationMs = 60_000


class Beat(Message, frozen=True, kw_only=True, tag="BEAT"):
    """I am alive, and vouch for my worker. At most 2 KiB: changed tasks only, all of them every tenth time.

    Attributes:
        seq: Counts up within the incarnation, also when another watchdog speaks for it.
        leader_epoch: Newest it has seen.
        state_offset: End of the group log as it has read it.
        full: Whether `tasks` has every task.
        in_call: Whether the worker's loop is in a long call of user code, so that orders wait.
        call: The call of user code that the worker has been in for longest, where that is a second or more.
    """

    seq: Sequence
    leader_epoch: Epoch = 0
    state_offset: Offset = 0
    full: bool = False
    in_call: bool = False
    call: RunningCall | None = None
    tasks: tuple[TaskStatus, ...] = ()


class Ready(Message, frozen=True, kw_only=True, tag="READY"):
    """A copy has caught up. Repeated with each beat's interval until the copy is promoted, dropped or falls behind."""

    task: TaskText
    learn_epoch: Counter
    store_uuid: Label
    positions: Positions
    ends: Positions


class NotReady(Message, frozen=True, kw_only=True, tag="NOT_READY"):
    """A copy that was ready is not any more: fell behind, is damaged, has no disk left."""

    task: TaskText
    learn_epoch: Counter
    reason: Text


class Revoked(Message, frozen=True, kw_only=True, tag="REVOKED"):
    """The owner has committed and let go. Repeated until the group log says RELEASED.

    Attributes:
        input: Committed offset per input partition.
        changelog_end: Per changelog partition the position after the last record of the owner.
        kept: Whether its state stays open as a copy (standby).
    """

    task: TaskText
    task_epoch: Counter
    input: Positions
    changelog_end: Positions
    kept: bool = False


class GrantedOk(Message, frozen=True, kw_only=True, tag="GRANTED_OK"):
    """The owner processes the task. `restored` counts changelog records read since the grant."""

    task: TaskText
    task_epoch: Counter
    input: Positions
    restored: Count = 0


class TaskFailed(Message, frozen=True, kw_only=True, tag="TASK_FAILED"):
    """A task could not be opened or restored here (no disk, damaged, foreign); `detail` has no user data."""

    task: TaskText
    epoch: Counter
    role: TaskRoleText
    detail: Text


class TransactionalIdWanted(Message, frozen=True, kw_only=True, tag="TXN_ID"):
    """The sender needs its `number`th transactional id logged before it uses it (hole H8)."""

    number: Count
    transactional_id: Name


class Leave(Message, frozen=True, kw_only=True, tag="LEAVE"):
    """I am going. Repeated until the group log says LEAVING or GONE.

    Attributes:
        rejoin: It comes back soon (restart): its tasks wait for it `rejoin_timeout_ms` unless a caught-up copy exists.
        drain_ms: How long it goes on working while its tasks move; 0: release everything now.
    """

    rejoin: bool = False
    drain_ms: DurationMs = 0


class DrainMember(Message, frozen=True, kw_only=True, tag="DRAIN"):
    """An operator's wish that `target` (a member's name) leaves in order (`tidewheel drain`)."""

    target: Name
    drain_ms: DurationMs


class EraseKey(Message, frozen=True, kw_only=True, tag="ERASE"):
    """An operator's wish that the owner of a task deletes a key from a store (`tidewheel state delete`).

    It is for the owner under this epoch alone: a later owner that reads the inbox from a while back must not delete what
    was written since. Repeated until it is answered by `KeyErased`.

    Attributes:
        request: Names the wish; an owner carries it out once.
        key: The key's bytes, as the store's serde writes them.
        tail: Number of bytes that follow the key in the keys of its rows, where those are windowed.
    """

    request: Name
    task: TaskText
    task_epoch: Counter
    store: Name
    key: KeyBytes
    tail: TailBytes = 0

    def __repr__(self) -> str:
        return f"EraseKey(request={self.request!r}, task={self.task!r}, store={self.store!r})"


class KeyErased(Message, frozen=True, kw_only=True, tag="ERASED"):
    """The owner's answer to an `EraseKey`: the deletion is committed, or `problem` says why there is none.

    Attributes:
        rows: How many rows the key had.
        first, last: Offsets of the tombstones in the task's partition of the changelog; -1 where the cluster has not told
            them. Where key ranges commit together, rows of other keys may be between them.
        problem: For people; holds no key.
    """

    request: Name
    task: TaskText
    rows: Count = 0
    first: OptionalOffset = -1
    last: OptionalOffset = -1
    problem: Text = ""


class ShutDown(Message, frozen=True, kw_only=True, tag="SHUTDOWN"):
    """The whole application is to end: every member that is in the group now. Repeated until the group log says it.

    Attributes:
        reason: For people.
    """

    reason: Text = ""


class MemberDied(Message, frozen=True, kw_only=True, tag="MEMBER_DIED"):
    """The worker's process is gone: said by whoever held its pipe, in the worker's name."""

    reason: Text = ""


class Suspect(Message, frozen=True, kw_only=True, tag="SUSPECT"):
    """A candidate has not heard the leader for a while; a live leader answers with a beat at once."""

    leader_epoch: Epoch


class Refused(Message, frozen=True, kw_only=True, tag="REFUSED"):
    """The leader's answer to a join that can't be: `incarnation` is the refused one's.

    Attributes:
        code: INCOMPATIBLE_TOPOLOGY, INCOMPATIBLE_ASSIGNOR or INCOMPATIBLE_VERSION; FENCED for an incarnation that was in
            the group and is over (it slept through its end): its process may join as a new one.
        reason: For people.
    """

    code: Label
    reason: Text


class LeaderBeat(Message, frozen=True, kw_only=True, tag="LEADER_BEAT"):
    """The leader is alive. `member` and `incarnation` are those of its process.

    Attributes:
        leader_epoch: Of its claim.
        seq: Counts up from 1 within the claim.
        state_offset: End of the group log.
        seen: Last beat taken from each incarnation: its lease counts from when it sent that one.
        resigns: It stops leading in order: the next candidate need not wait.
        alarms: What an operator should know of its leading, such as an assignor that fails.
    """

    leader_epoch: Epoch
    seq: Sequence
    state_offset: Offset = 0
    seen: dict[Name, Sequence] = {}
    resigns: bool = False
    alarms: tuple[Text, ...] = ()


AnyMessage = (
    Join
    | Beat
    | Ready
    | NotReady
    | Revoked
    | GrantedOk
    | TaskFailed
    | TransactionalIdWanted
    | Leave
    | DrainMember
    | EraseKey
    | KeyErased
    | ShutDown
    | MemberDied
    | Suspect
    | Refused
    | LeaderBeat
)

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def encode_message(message: AnyMessage) -> bytes:
    """Return a message as JSON.

    >>> encode_message(Suspect(app="shop", member="a", incarnation="a-1", leader_epoch=3))
    b'{"kind":"SUSPECT","app":"shop","member":"a","incarnation":"a-1","leader_epoch":3}'
    """
    return _ENCODER.encode(message)


def read_message(data: bytes | None) -> AnyMessage | Rejection | None:
    """Return the message in `data`, or why it is dropped; None for a kind that only a later version knows.

    >>> str(read_message(b'{"kind":"TELEPATHY","app":"shop"}'))
    'field kind: is not known to this version'
    """
    if data is None:
        return Rejection("message", "is null")
    return _DOOR.read(data)


def decode_message(data: bytes) -> AnyMessage | None:
    """Return the message in `data`, or None for what is dropped."""
    message = read_message(data)
    return None if isinstance(message, Rejection) else message


def _problem(message: AnyMessage) -> Rejection | None:
    """Return what is wrong between a message's fields."""
    match message:
        case Join() if message.protocol[0] > message.protocol[1]:
            return Rejection("protocol", "ends before it begins")
        case Join() if sum(message.partitions.values()) > PARTITIONS_MAX:
            return Rejection("partitions", f"has more than {PARTITIONS_MAX} partitions in all")
        case Join():
            ids = message.transactional_ids
            field = "transactional_ids"
        case TransactionalIdWanted():
            ids, field = (message.transactional_id,), "transactional_id"
        case _:
            return None
    if ids and all(is_group_id(each, message.app, message.incarnation) for each in ids):
        return None
    return Rejection(field, "is not an id of this member: <application id>-<incarnation>-<number>")


_DOOR: Final[Door[AnyMessage]] = Door(
    AnyMessage,
    noun="message",
    bytes_max=MESSAGE_BYTES_MAX,
    version=PROTOCOL_MAX,
    check=_problem,
    texts={
        NotReady: ("reason",),
        TaskFailed: ("detail",),
        KeyErased: ("problem",),
        ShutDown: ("reason",),
        MemberDied: ("reason",),
        Refused: ("reason",),
        LeaderBeat: ("alarms",),
    },
)
