"""What members and the leader say to each other through the inbox topic: announcements, not decisions.

Nothing here changes who owns what: only the group log does. Every message names its sender's incarnation, so that what
a fenced process still says is told apart. The topic is untrusted: size and shape are checked, unknown fields and kinds
are ignored, so that members of neighbouring versions understand each other.
"""

from typing import Final

import msgspec

from rebalance.task_status import TaskStatus

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

    app: str
    member: str
    incarnation: str
    v: int = PROTOCOL_MAX


class DiskCopy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a task that a joining member has on its disk, not open."""

    task: str
    positions: dict[str, int] = {}


class SeenTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that the topology has on the cluster as the sender sees it (`rebalance.model.TaskShape`)."""

    task: str
    stateful: bool = False
    changelogs: tuple[str, ...] = ()


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

    transactional_ids: tuple[str, ...]
    host: str
    pid: int
    process_id: str
    endpoint: str | None = None
    rack: str | None = None
    tags: dict[str, str] = {}
    threads: int = 1
    static: bool = False
    protocol: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)
    topology_epoch: int = 0
    topology_hash: str = ""
    assignor: str = "sticky"
    tasks: tuple[SeenTask, ...] = ()
    partitions: dict[str, int] = {}
    on_disk: tuple[DiskCopy, ...] = ()
    session_timeout_ms: int = 3_000
    rejoin_timeout_ms: int = 60_000


class Beat(Message, frozen=True, kw_only=True, tag="BEAT"):
    """I am alive, and vouch for my worker. At most 2 KiB: changed tasks only, all of them every tenth time.

    Attributes:
        seq: Counts up within the incarnation, also when another watchdog speaks for it.
        leader_epoch: Newest it has seen.
        state_offset: End of the group log as it has read it.
        full: Whether `tasks` has every task.
    """

    seq: int
    leader_epoch: int = 0
    state_offset: int = 0
    full: bool = False
    tasks: tuple[TaskStatus, ...] = ()


class Ready(Message, frozen=True, kw_only=True, tag="READY"):
    """A copy has caught up. Repeated with each beat's interval until the copy is promoted, dropped or falls behind."""

    task: str
    learn_epoch: int
    store_uuid: str
    positions: dict[str, int]
    ends: dict[str, int]


class NotReady(Message, frozen=True, kw_only=True, tag="NOT_READY"):
    """A copy that was ready is not any more: fell behind, is damaged, has no disk left."""

    task: str
    learn_epoch: int
    reason: str


class Revoked(Message, frozen=True, kw_only=True, tag="REVOKED"):
    """The owner has committed and let go. Repeated until the group log says RELEASED.

    Attributes:
        input: Committed offset per input partition.
        changelog_end: Per changelog partition the position after the last record of the owner.
        kept: Whether its state stays open as a copy (standby).
    """

    task: str
    task_epoch: int
    input: dict[str, int]
    changelog_end: dict[str, int]
    kept: bool = False


class GrantedOk(Message, frozen=True, kw_only=True, tag="GRANTED_OK"):
    """The owner processes the task. `restored` counts changelog records read since the grant."""

    task: str
    task_epoch: int
    input: dict[str, int]
    restored: int = 0


class TaskFailed(Message, frozen=True, kw_only=True, tag="TASK_FAILED"):
    """A task could not be opened or restored here (no disk, damaged, foreign); `detail` has no user data."""

    task: str
    epoch: int
    role: str
    detail: str


class TransactionalIdWanted(Message, frozen=True, kw_only=True, tag="TXN_ID"):
    """The sender needs its `number`th transactional id logged before it uses it (hole H8)."""

    number: int
    transactional_id: str


class Leave(Message, frozen=True, kw_only=True, tag="LEAVE"):
    """I am going. Repeated until the group log says LEAVING or GONE.

    Attributes:
        rejoin: It comes back soon (restart): its tasks wait for it `rejoin_timeout_ms` unless a caught-up copy exists.
        drain_ms: How long it goes on working while its tasks move; 0: release everything now.
    """

    rejoin: bool = False
    drain_ms: int = 0


class DrainMember(Message, frozen=True, kw_only=True, tag="DRAIN"):
    """An operator's wish that `target` (a member's name) leaves in order (`tidewheel drain`)."""

    target: str
    drain_ms: int


class ShutDown(Message, frozen=True, kw_only=True, tag="SHUTDOWN"):
    """The whole application is to end: every member that is in the group now. Repeated until the group log says it.

    Attributes:
        reason: For people.
    """

    reason: str = ""


class MemberDied(Message, frozen=True, kw_only=True, tag="MEMBER_DIED"):
    """The worker's process is gone: said by whoever held its pipe, in the worker's name."""

    reason: str = ""


class Suspect(Message, frozen=True, kw_only=True, tag="SUSPECT"):
    """A candidate has not heard the leader for a while; a live leader answers with a beat at once."""

    leader_epoch: int


class Refused(Message, frozen=True, kw_only=True, tag="REFUSED"):
    """The leader's answer to a join that can't be: `incarnation` is the refused one's.

    Attributes:
        code: INCOMPATIBLE_TOPOLOGY, INCOMPATIBLE_ASSIGNOR or INCOMPATIBLE_VERSION; FENCED for an incarnation that was in
            the group and is over (it slept through its end): its process may join as a new one.
        reason: For people.
    """

    code: str
    reason: str


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

    leader_epoch: int
    seq: int
    state_offset: int = 0
    seen: dict[str, int] = {}
    resigns: bool = False
    alarms: tuple[str, ...] = ()


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
    | ShutDown
    | MemberDied
    | Suspect
    | Refused
    | LeaderBeat
)

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final[msgspec.json.Decoder[AnyMessage]] = msgspec.json.Decoder(AnyMessage)


def encode_message(message: AnyMessage) -> bytes:
    """Return a message as JSON.

    >>> encode_message(Suspect(app="shop", member="a", incarnation="a-1", leader_epoch=3))
    b'{"kind":"SUSPECT","app":"shop","member":"a","incarnation":"a-1","leader_epoch":3}'
    """
    return _ENCODER.encode(message)


def decode_message(data: bytes) -> AnyMessage | None:
    """Return the message in `data`, or None for what is too large, malformed or of an unknown kind.

    >>> decode_message(b'{"kind":"TELEPATHY"}') is None
    True
    """
    if len(data) > MESSAGE_BYTES_MAX:
        return None
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
