"""Inbox messages of members and leader: announcements, not decisions.

Only the group log changes ownership. Each message names its sender's incarnation: the leader
ignores fenced ones. Readers ignore unknown fields and kinds, for rolling upgrades. Only members of
a group with shards send ids of shards: members of version 1 can not be in such a group.
"""

from typing import Final

import msgspec

from tidewheel.rebalance.producer_ids import is_group_id
from tidewheel.rebalance.protocol.decoding import RecordDecoder, Rejection
from tidewheel.rebalance.protocol.field_types import (
    PARTITIONS_MAX,
    AnyTaskText,
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
    ShardCount,
    ShardText,
    TailBytes,
    TaskRoleText,
    TaskText,
    Text,
    Threads,
    TopicText,
    Version,
)
from tidewheel.rebalance.protocol.task_status import RunningCall, TaskStatus

#: Readers drop larger messages.
MESSAGE_BYTES_MAX: Final = 256 * 1024

PROTOCOL_MIN: Final = 1
#: Version 2 added shards of partitions.
PROTOCOL_MAX: Final = 2
_FIRST_VERSION: Final = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    app: Name
    #: Lasting name: `group_instance_id` (plus the slot, if a program has several workers); if
    #: unset, an id from the state directory.
    member: Name
    incarnation: Name  # One life of that member; never reused.
    v: Version = _FIRST_VERSION


class DiskCopy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's state on a joining member's disk, in no open store."""

    task: TaskText
    positions: Positions = {}


class ShardCopy(DiskCopy, frozen=True, kw_only=True):
    task: ShardText


class SeenTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that the sender derives from its topology and partition counts.

    `shards` tasks share it, if they are several.
    """

    task: TaskText
    stateful: bool = False
    changelogs: tuple[TopicText, ...] = ()
    shards: ShardCount = 1


class JoinGroup(Message, frozen=True, kw_only=True, tag="JOIN"):
    """Request to join; sent each heartbeat until logged, and after the member's tasks change."""

    transactional_ids: tuple[Name, ...]
    host: Label  # Machine, "" if unknown.
    pid: Count
    process_id: Label
    endpoint: Label | None = None
    rack: Label | None = None
    tags: dict[Label, Label] = {}
    threads: Threads = 1
    static: bool = False  # The name is a `group_instance_id`.
    slot: OptionalOffset = -1  # Number of its state directory on the host; -1: older member.
    protocol: tuple[Version, Version] = (1, 1)  # As joins of version 1 leave it out.
    #: The program: members of one topology epoch must have one hash.
    topology_epoch: Epoch = 0
    topology_hash: Label = ""
    assignor: Label = "sticky"
    tasks: tuple[SeenTask, ...] = ()
    partitions: dict[TopicText, PartitionCount] = {}
    on_disk: tuple[DiskCopy, ...] = ()
    session_timeout_ms: SessionMs = 3_000
    rejoin_timeout_ms: DurationMs = 60_000
    #: In fields of their own, which leaders of version 1 skip: they can read and refuse the join.
    shards: ShardCount = 1
    shards_on_disk: tuple[ShardCopy, ...] = ()


class Beat(Message, frozen=True, kw_only=True, tag="BEAT"):
    """Heartbeat of a member with the status of changed tasks, every tenth time of all."""

    seq: Sequence  # Increases within the incarnation, even across watchdog restarts.
    leader_epoch: Epoch = 0
    state_offset: Offset = 0  # The member has read the group log up to this offset.
    full: bool = False
    in_call: bool = False  # The worker is in a long call of user code; orders wait.
    call: RunningCall | None = None
    tasks: tuple[TaskStatus, ...] = ()


class Ready(Message, frozen=True, kw_only=True, tag="READY"):
    """A copy has caught up; sent each heartbeat until it is promoted, dropped or behind."""

    task: AnyTaskText
    learn_epoch: Counter
    store_uuid: Label
    positions: Positions
    ends: Positions


class NotReady(Message, frozen=True, kw_only=True, tag="NOT_READY"):
    """A ready copy fell behind, is damaged or lost its disk."""

    task: AnyTaskText
    learn_epoch: Counter
    reason: Text


class Revoked(Message, frozen=True, kw_only=True, tag="REVOKED"):
    """The owner has committed and released the task; repeated until RELEASED is logged."""

    task: AnyTaskText
    task_epoch: Counter
    input: Positions
    changelog_end: Positions  # Changelog offsets after the owner's last record.
    kept: bool = False  # The task's state stays open as a standby.


class GrantedOk(Message, frozen=True, kw_only=True, tag="GRANTED_OK"):
    """The owner now processes the task; it restored `restored` changelog records first."""

    task: AnyTaskText
    task_epoch: Counter
    input: Positions
    restored: Count = 0


class TaskFailed(Message, frozen=True, kw_only=True, tag="TASK_FAILED"):
    """The member can't open or restore the task; `detail` has no user data."""

    task: AnyTaskText
    epoch: Counter
    role: TaskRoleText
    detail: Text


class TransactionalIdWanted(Message, frozen=True, kw_only=True, tag="TXN_ID"):
    """Request to log a transactional id before its use: the leader fences logged ids only."""

    number: Count
    transactional_id: Name


class Leave(Message, frozen=True, kw_only=True, tag="LEAVE"):
    """Request to leave; repeated until LEAVING or GONE is logged."""

    #: The member restarts: its tasks wait `rejoin_timeout_ms` unless a caught-up copy exists.
    rejoin: bool = False
    drain_ms: DurationMs = 0  # Time to keep working while tasks move; 0: release all now.


class DrainMember(Message, frozen=True, kw_only=True, tag="DRAIN"):
    """Operator's request (`tidewheel drain`) that member `target` moves its tasks and leaves."""

    target: Name
    drain_ms: DurationMs


class EraseKey(Message, frozen=True, kw_only=True, tag="ERASE"):
    """Operator's request to delete a key (`tidewheel state delete`); repeated until `KeyErased`.

    Only the owner at this epoch acts: a later owner that reads old messages must not delete newer
    rows.
    """

    request: Name
    task: AnyTaskText
    task_epoch: Counter
    store: Name
    key: KeyBytes
    tail: TailBytes = 0

    def __repr__(self) -> str:
        return f"EraseKey(request={self.request!r}, task={self.task!r}, store={self.store!r})"


class KeyErased(Message, frozen=True, kw_only=True, tag="ERASED"):
    """Answer to `EraseKey`: the deletion is committed, or `problem` has the reason."""

    request: Name
    task: AnyTaskText
    rows: Count = 0
    #: Offsets of the first and last tombstone, -1 if unknown; other records may lie between.
    first: OptionalOffset = -1
    last: OptionalOffset = -1
    problem: Text = ""


class ShutDown(Message, frozen=True, kw_only=True, tag="SHUTDOWN"):
    """Request to end all current members; repeated until logged."""

    reason: Text = ""


class MemberDied(Message, frozen=True, kw_only=True, tag="MEMBER_DIED"):
    """The worker's process ended; sent by its watchdog."""

    reason: Text = ""


class Suspect(Message, frozen=True, kw_only=True, tag="SUSPECT"):
    """A candidate misses the leader's beats; a live leader answers with one immediately."""

    leader_epoch: Epoch


class JoinRefused(Message, frozen=True, kw_only=True, tag="REFUSED"):
    #: INCOMPATIBLE_TOPOLOGY, INCOMPATIBLE_ASSIGNOR, INCOMPATIBLE_VERSION, INCOMPATIBLE_SHARDS; or
    #: FENCED for an ended incarnation, whose process may join as a new one.
    code: Label
    reason: Text


class LeaderBeat(Message, frozen=True, kw_only=True, tag="LEADER_BEAT"):
    """Heartbeat of the leader; `member` and `incarnation` are its process id."""

    leader_epoch: Epoch
    seq: Sequence
    state_offset: Offset = 0
    #: Last beat received per incarnation: the member's lease starts when it sent that beat.
    seen: dict[Name, Sequence] = {}
    resigns: bool = False
    alarms: tuple[Text, ...] = ()


AnyMessage = (
    JoinGroup
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
    | JoinRefused
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
    """Return the message or a rejection; None for a kind of a later version.

    >>> str(read_message(b'{"kind":"TELEPATHY","app":"shop"}'))
    'field kind: is not known to this version'
    """
    if data is None:
        return Rejection("message", "is null")
    return _DECODER.read(data)


def decode_message(data: bytes) -> AnyMessage | None:
    message = read_message(data)
    return None if isinstance(message, Rejection) else message


def _problem(message: AnyMessage) -> Rejection | None:
    match message:
        case JoinGroup() if message.protocol[0] > message.protocol[1]:
            return Rejection("protocol", "ends before it begins")
        case JoinGroup() if sum(message.partitions.values()) > PARTITIONS_MAX:
            return Rejection("partitions", f"has more than {PARTITIONS_MAX} partitions in all")
        case JoinGroup():
            ids = message.transactional_ids
            field = "transactional_ids"
        case TransactionalIdWanted():
            ids, field = (message.transactional_id,), "transactional_id"
        case _:
            return None
    if ids and all(
        is_group_id(transactional_id, message.app, message.incarnation) for transactional_id in ids
    ):
        return None
    return Rejection(field, "is not an id of this member: <application id>-<incarnation>-<number>")


_DECODER: Final[RecordDecoder[AnyMessage]] = RecordDecoder(
    AnyMessage,
    noun="message",
    bytes_max=MESSAGE_BYTES_MAX,
    version=PROTOCOL_MAX,
    check=_problem,
)
