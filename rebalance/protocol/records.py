"""Records of the group log: decisions of the leader, written in its transactions.

A record replaces earlier ones of its key completely, so compaction keeps the state. Keys start with
the leader epoch: a deposed leader's late record never replaces a newer one (H4). A new leader
writes a snapshot of the group between `SnapshotBegin` and `SnapshotEnd`.

Shards are in fields and a kind (`ShardRecord`) of protocol version 2, which older readers skip. A
group without shards has none of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.decoding import RecordDecoder, Rejection
from tidewheel.rebalance.protocol.field_types import (
    PARTITIONS_MAX,
    BootstrapPhaseText,
    Count,
    Counter,
    DurationMs,
    Epoch,
    KeyHash,
    Label,
    MemberPhaseText,
    Name,
    OptionalOffset,
    PartitionCount,
    Positions,
    SessionMs,
    ShardCount,
    ShardText,
    TaskPhaseText,
    TaskText,
    Text,
    Threads,
    TopicText,
    Version,
    counter_max,
)
from tidewheel.rebalance.protocol.rest import Rest

#: Writers refuse larger records; readers skip them.
RECORD_BYTES_MAX: Final = 900_000

#: Newest version of the records. Only kinds that version 2 added are written with it.
RECORD_VERSION: Final = 2
_FIRST_VERSION: Final = 1

#: Beginning of `GroupRecord.held` on the wire while the group has shards. Leaders of version 1 keep
#: it and assign no task; they lose the records of shards. Readers drop it if they know the shards.
SHARDS_HOLD: Final = (
    "SAFE_HOLD: the group shares partitions in shards, and a process of an older version, which knows none, became its leader: "
    "stop that process and upgrade its program; then stop all workers and run `tidewheel group recover`. "
)

_V = TypeVar("_V")

#: Maximum tasks of one group, counting shards.
GROUP_TASKS_MAX: Final = 100_000

#: Part of a snapshot record's key, after the leader epoch.
SNAPSHOT_PART: Final = b"snapshot"


class LogRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    leader_epoch: Epoch
    v: Version = _FIRST_VERSION


class LeaderClaim(LogRecord, frozen=True, kw_only=True, tag="LEADER_CLAIM"):
    """Claim of the leadership: records of lower epochs no longer count."""

    leader: Name
    previous_epoch: Epoch = 0
    #: Ids of both control topics, to detect recreated topics.
    topic_ids: dict[TopicText, Label] = {}


class SnapshotBegin(LogRecord, frozen=True, kw_only=True, tag="SNAP_BEGIN"):
    """Start of a snapshot: the records up to `SnapshotEnd` are the whole group."""


class SnapshotEnd(LogRecord, frozen=True, kw_only=True, tag="SNAP_END"):
    """End of a snapshot, valid if `count` records with checksum `crc` came since its begin.

    These leave out `ShardRecord`, which older readers skip; such records have their own two.
    """

    count: Count
    crc: KeyHash
    shard_count: Count = 0
    shard_crc: KeyHash = 0


class TaskRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    stateful: bool = False
    changelogs: tuple[TopicText, ...] = ()
    shards: ShardCount = 1  # Tasks that share the partition.


class GroupRecord(LogRecord, frozen=True, kw_only=True, tag="GROUP"):
    group_version: Version = 1  # Protocol version that all members know.
    topology_epoch: Epoch = 0
    topology_hash: Label = ""
    assignor: Label = ""
    tasks: dict[TaskText, TaskRow] = {}
    #: Partition counts; while one is lower than before, the leader decides nothing.
    partitions: dict[TopicText, PartitionCount] = {}
    held: Text = ""  # Reason why the leader decides nothing, or "".
    rest: Rest | None = None  # Set by `tidewheel group rest`; older leaders lose it.
    ended: tuple[Name, ...] = ()  # In a snapshot: the last ended incarnations.
    #: Set by `tidewheel group recover` until a member of this program joins: others are refused.
    pinned: bool = False
    #: `partition_shards` of all members; sub-topologies that can't be sharded have whole tasks.
    shards: ShardCount = 1


class MemberRecord(LogRecord, frozen=True, kw_only=True, tag="MEMBER"):
    """One incarnation; other fields as in `messages.JoinGroup`."""

    member: Name
    incarnation: Name
    phase: MemberPhaseText
    transactional_ids: tuple[Name, ...] = ()  # Every id it may use, for fencing.
    host: Label = ""
    process_id: Label = ""
    endpoint: Label | None = None
    rack: Label | None = None
    tags: dict[Label, Label] = {}
    threads: Threads = 1
    static: bool = False
    slot: OptionalOffset = -1
    pid: Count = 0  # 0: written by an older leader.
    protocol: tuple[Version, Version] = (1, 1)
    topology_epoch: Epoch = 0
    topology_hash: Label = ""
    assignor: Label = "sticky"
    session_timeout_ms: SessionMs = 3_000
    rejoin_timeout_ms: DurationMs = 60_000
    member_epoch: Epoch = 0
    reason: Text = ""
    rejoin_ms: DurationMs = 0  # In LEAVING, FENCING, GONE: time its tasks wait for its return.
    #: In LEAVING: time to keep working while tasks move; 0: revoke all now.
    drain_ms: DurationMs = 0
    shutdown: Text = ""  # Reason why the whole application must end, or "".
    shards: ShardCount = 1


class TargetRecord(LogRecord, frozen=True, kw_only=True, tag="TARGET"):
    """Target assignment by member name, one per group change."""

    group_epoch: Counter
    owners: dict[TaskText, Name]
    standbys: dict[TaskText, tuple[Name, ...]] = {}
    basis: Label = ""  # Digest of the assignor's inputs: while equal, no new target is needed.
    reason: Text = ""
    shard_owners: dict[ShardText, Name] = {}
    shard_standbys: dict[ShardText, tuple[Name, ...]] = {}

    @property
    def all_owners(self) -> dict[str, str]:
        """Return the owners of whole tasks and of shards."""
        return self.owners | self.shard_owners

    @property
    def all_standbys(self) -> dict[str, tuple[str, ...]]:
        return self.standbys | self.shard_standbys


class Copy(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    incarnation: Name
    learn_epoch: Counter


class StepRecord(LogRecord, frozen=True, kw_only=True, tag="STEP"):
    """Intermediate assignment: copies to keep on the way to the target."""

    group_epoch: Counter
    step_epoch: Counter
    learners: dict[TaskText, Copy] = {}
    standbys: dict[TaskText, tuple[Copy, ...]] = {}
    parked: tuple[TaskText, ...] = ()  # Tasks whose moves wait: `max_warmup_replicas` is used up.
    shard_learners: dict[ShardText, Copy] = {}
    shard_standbys: dict[ShardText, tuple[Copy, ...]] = {}
    shard_parked: tuple[ShardText, ...] = ()

    @property
    def all_learners(self) -> dict[str, Copy]:
        """Return the learners of whole tasks and of shards."""
        return self.learners | self.shard_learners

    @property
    def all_standbys(self) -> dict[str, tuple[Copy, ...]]:
        return self.standbys | self.shard_standbys

    @property
    def all_parked(self) -> tuple[str, ...]:
        return self.parked + self.shard_parked


class TaskRecord(LogRecord, frozen=True, kw_only=True, tag="TASK"):
    task: TaskText
    phase: TaskPhaseText
    task_epoch: Counter  # Increases per grant; never reused.
    #: Incarnation that can commit (in RUNNING, REVOKING, FENCE_WAIT), or None.
    owner: Name | None = None
    member: Name | None = None
    next_member: Name | None = None
    event: Label = ""
    reason: Text = ""
    #: Lowest valid committed input offsets: a new owner fails if the group's are lower. A release,
    #: and the last beats of a dead owner, raise them.
    input: Positions = {}
    #: Changelog offsets up to which a new owner restores before it processes; {} (after a fence):
    #: up to the current end.
    changelog_end: Positions = {}
    source: Label = ""
    deadline_ms: DurationMs = 0


class ShardRecord(TaskRecord, frozen=True, kw_only=True, tag="SHARD"):
    """A task record of a shard, which readers of version 1 skip."""

    task: ShardText


class BootstrapRecord(LogRecord, frozen=True, kw_only=True, tag="BOOTSTRAP"):
    """State of `tidewheel bootstrap`, which loads a store.

    Meanwhile `GroupRecord.held` is set: even leaders too old for this kind assign no task.
    """

    store: Name
    attempt: Name  # Id of the command's run; only the last one counts.
    phase: BootstrapPhaseText
    was_empty: bool = True  # The changelog was empty before the first attempt.
    input: Positions = {}  # Input offsets where processing will start, fixed at the first attempt.
    input_offsets: Label = ""


class BootstrappedRecord(LogRecord, frozen=True, kw_only=True, tag="BOOTSTRAPPED"):
    """End of a load; replaces its BOOTSTRAP record, whose key it has."""

    store: Name
    attempt: Name
    rows: Count = 0
    withdrawn: bool = False  # The load was stopped before it wrote a row.


AnyRecord = (
    LeaderClaim
    | SnapshotBegin
    | SnapshotEnd
    | GroupRecord
    | MemberRecord
    | TargetRecord
    | StepRecord
    | TaskRecord
    | ShardRecord
    | BootstrapRecord
    | BootstrappedRecord
)


def task_record(
    task: TaskId, *, leader_epoch: int, phase: str, task_epoch: int
) -> TaskRecord | ShardRecord:
    """Return the record of a task without an owner, in the kind of whole tasks or of shards.

    >>> type(task_record(TaskId.parse("0_1/2of4"), leader_epoch=1, phase="UNOWNED", task_epoch=0)).__name__
    'ShardRecord'
    """
    if task.shard.is_whole:
        return TaskRecord(
            leader_epoch=leader_epoch, task=str(task), phase=phase, task_epoch=task_epoch
        )
    return ShardRecord(
        leader_epoch=leader_epoch,
        v=RECORD_VERSION,
        task=str(task),
        phase=phase,
        task_epoch=task_epoch,
    )


def whole_and_shards(values: Mapping[TaskId, _V]) -> tuple[dict[str, _V], dict[str, _V]]:
    """Return the entries of whole tasks and those of shards, in order of the tasks.

    >>> whole_and_shards({TaskId.parse("1_0/0of2"): "b", TaskId(0, 0): "a"})
    ({'0_0': 'a'}, {'1_0/0of2': 'b'})
    """
    whole: dict[str, _V] = {}
    shards: dict[str, _V] = {}
    for task, value in sorted(values.items(), key=lambda item: item[0]):
        (whole if task.shard.is_whole else shards)[str(task)] = value
    return whole, shards


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def record_key(record: AnyRecord) -> bytes:
    """Return the key of a record.

    >>> record_key(TaskRecord(leader_epoch=3, task="0_1", phase="RUNNING", task_epoch=7))
    b'3/task/0_1'
    """
    match record:
        case LeaderClaim():
            name = "claim"
        case SnapshotBegin():
            name = "snapshot-begin"
        case SnapshotEnd():
            name = "snapshot-end"
        case GroupRecord():
            name = "group"
        case MemberRecord():
            name = f"member/{record.member}/{record.incarnation}"
        case TargetRecord():
            name = "target"
        case StepRecord():
            name = "step"
        case TaskRecord():
            name = f"task/{record.task}"
        case BootstrapRecord() | BootstrappedRecord():
            name = f"bootstrap/{record.store}"
    return f"{record.leader_epoch}/{name}".encode()


def record_keys(records: Sequence[AnyRecord]) -> list[bytes]:
    """Return the keys of one transaction's records.

    Snapshot records have keys of their own: otherwise later records would replace some of them in
    compaction, and count and checksum would not match.

    >>> claim, begin = LeaderClaim(leader_epoch=3, leader="p"), SnapshotBegin(leader_epoch=3)
    >>> record_keys([claim, begin, GroupRecord(leader_epoch=3)])
    [b'3/claim', b'3/snapshot-begin', b'3/snapshot/group']
    """
    keys: list[bytes] = []
    inside = False
    for record in records:
        key = record_key(record)
        if isinstance(record, SnapshotEnd):
            inside = False
        if inside:
            epoch, _, name = key.partition(b"/")
            key = b"/".join((epoch, SNAPSHOT_PART, name))
        if isinstance(record, SnapshotBegin):
            inside = True
        keys.append(key)
    return keys


def encode_record(record: AnyRecord) -> bytes:
    """Return a record as JSON, in the version of its kind; raise ValueError if it is too large.

    Fields that only a newer version knows are lost.
    """
    version = RECORD_VERSION if isinstance(record, ShardRecord) else _FIRST_VERSION
    if record.v != version:
        record = msgspec.structs.replace(record, v=version)
    if isinstance(record, GroupRecord) and record.shards > 1:
        record = msgspec.structs.replace(record, held=SHARDS_HOLD + record.held)
    data = _ENCODER.encode(record)
    if len(data) > RECORD_BYTES_MAX:
        raise ValueError(
            f"a {type(record).__name__} of {len(data)} bytes is larger than the group log allows ({RECORD_BYTES_MAX})"
        )
    return data


def read_record(data: bytes | None) -> AnyRecord | Rejection | None:
    """Return the record or a rejection; None for tombstones and kinds of later versions.

    >>> read_record(b'{"kind":"LEADER_CLAIM","leader_epoch":1,"leader":"p1"}').leader
    'p1'
    >>> str(read_record(b'{"kind":"TASK","leader_epoch":1,"task":"x","phase":"RUNNING","task_epoch":1}'))
    'field task: is not a task id, such as 0_1 (sub-topology, partition)'
    """
    record = None if data is None else _DECODER.read(data)
    if isinstance(record, GroupRecord) and record.shards > 1:
        return msgspec.structs.replace(record, held=record.held.removeprefix(SHARDS_HOLD))
    return record


def decode_record(data: bytes | None) -> AnyRecord | None:
    record = read_record(data)
    return None if isinstance(record, Rejection) else record


def _problem(record: AnyRecord) -> Rejection | None:
    match record:
        case LeaderClaim() if record.leader_epoch <= record.previous_epoch:
            return Rejection("leader_epoch", "is not above previous_epoch")
        case GroupRecord():
            return _group_problem(record)
        case MemberRecord() if record.protocol[0] > record.protocol[1]:
            return Rejection("protocol", "ends before it begins")
        case TaskRecord() if (record.owner is None) is _HAS_OWNER[record.phase]:
            has = "no owner" if record.owner is None else "an owner"
            return Rejection("owner", f"a task that is {record.phase} can't have {has}")
        case TaskRecord() | StepRecord() | TargetRecord():
            return _counter_problem(record)
        case _:
            return None


def _group_problem(record: GroupRecord) -> Rejection | None:
    if sum(record.partitions.values()) > PARTITIONS_MAX:
        return Rejection("partitions", f"has more than {PARTITIONS_MAX} partitions in all")
    if sum(row.shards for row in record.tasks.values()) > GROUP_TASKS_MAX:
        return Rejection("tasks", f"has more than {GROUP_TASKS_MAX} tasks in all")
    return None


def _counter_problem(record: TaskRecord | StepRecord | TargetRecord) -> Rejection | None:
    match record:
        case TaskRecord():
            counters = [("task_epoch", record.task_epoch)]
        case TargetRecord():
            counters = [("group_epoch", record.group_epoch)]
        case StepRecord():
            counters = [("group_epoch", record.group_epoch), ("step_epoch", record.step_epoch)]
            counters += [("learners", copy.learn_epoch) for copy in record.all_learners.values()]
            counters += [
                ("standbys", copy.learn_epoch)
                for copies in record.all_standbys.values()
                for copy in copies
            ]
    limit = counter_max(record.leader_epoch)
    for field, counter in counters:
        if counter > limit:
            return Rejection(
                field, f"is far above what leader epoch {record.leader_epoch} counts to"
            )
    return None


_HAS_OWNER: Final = {
    "UNOWNED": False,
    "RUNNING": True,
    "REVOKING": True,
    "FENCE_WAIT": True,
    "RELEASED": False,
}

_DECODER: Final[RecordDecoder[AnyRecord]] = RecordDecoder(
    AnyRecord,
    noun="record",
    bytes_max=RECORD_BYTES_MAX,
    version=RECORD_VERSION,
    check=_problem,
)


def checksum(records: Iterable[AnyRecord]) -> int:
    """Return the CRC-32 over record keys, in order.

    Content is not included: older readers don't see every field, but must compute the same. Kafka's
    own checksums protect the content.
    """
    crc = 0
    for record in records:
        crc = crc32(record_key(record), crc)
    return crc
