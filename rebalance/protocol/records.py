"""What the group log (the state topic) holds: decisions of the leader, written in its transactions.

Each record replaces what an earlier one with the same key said, whole, so that compaction at any point leaves the same
state behind. Keys are `<leader epoch>/<kind>/<id>`: what an earlier leader wrote never hides what a later one did (H4).
A new leader writes a whole snapshot under its epoch between `SnapshotBegin` and `SnapshotEnd`.
"""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from tidewheel.rebalance.protocol.decoding import Door, Rejection
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
    PartitionCount,
    Positions,
    SessionMs,
    TaskPhaseText,
    TaskText,
    Text,
    Threads,
    TopicText,
    Version,
    counter_max,
)

#: Records beyond this size are refused on writing and ignored on reading.
RECORD_BYTES_MAX: Final = 900_000

#: Version of the protocol that records are written in: `messages.PROTOCOL_MAX`.
RECORD_VERSION: Final = 1

#: Part of the keys of what a snapshot holds, after the leader epoch.
SNAPSHOT_PART: Final = b"snapshot"


class LogRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """What every record carries.

    Attributes:
        leader_epoch: Of the leader that wrote it.
        v: Version of the protocol it was written in.
    """

    leader_epoch: Epoch
    v: Version = RECORD_VERSION


class LeaderClaim(LogRecord, frozen=True, kw_only=True, tag="LEADER_CLAIM"):
    """From here on, records of lower epochs count for nothing.

    Attributes:
        leader: The process that leads.
        previous_epoch: Of the claim before; 0 for none.
        topic_ids: Ids of the two control topics: another id is another life of the group (H24).
    """

    leader: Name
    previous_epoch: Epoch = 0
    topic_ids: dict[TopicText, Label] = {}


class SnapshotBegin(LogRecord, frozen=True, kw_only=True, tag="SNAP_BEGIN"):
    """The records up to `SnapshotEnd` are the whole state."""


class SnapshotEnd(LogRecord, frozen=True, kw_only=True, tag="SNAP_END"):
    """The snapshot counts if exactly `count` records came since its begin and `crc` is theirs.

    A kind that a later version adds stands behind it, in the same transaction: who does not know it can't count it (N14).
    """

    count: Count
    crc: KeyHash


class TaskRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's shape (`tidewheel.rebalance.model.TaskShape`)."""

    stateful: bool = False
    changelogs: tuple[TopicText, ...] = ()


class GroupRecord(LogRecord, frozen=True, kw_only=True, tag="GROUP"):
    """What the group runs: its version, program and tasks.

    Attributes:
        group_version: Protocol version all members speak.
        tasks: Shape by task id.
        partitions: Partition count by topic; a change other than growth is an error.
        held: Why nothing is decided (SAFE_HOLD, a partition mismatch), or "".
        ended: In a snapshot, the incarnations that ended last (`Group.ended`).
        pinned: Set up again for this program (H24), and nobody of it has come yet: others are refused though nobody is there.
    """

    group_version: Version = 1
    topology_epoch: Epoch = 0
    topology_hash: Label = ""
    assignor: Label = ""
    tasks: dict[TaskText, TaskRow] = {}
    partitions: dict[TopicText, PartitionCount] = {}
    held: Text = ""
    ended: tuple[Name, ...] = ()
    pinned: bool = False


class MemberRecord(LogRecord, frozen=True, kw_only=True, tag="MEMBER"):
    """One incarnation of a member; the fields are those of `messages.Join`.

    Attributes:
        phase: See `tidewheel.rebalance.model.MemberPhase`.
        transactional_ids: Every id it ever may use: what fencing it fences.
        member_epoch: Last step it was told; counts up.
        reason: Why it is in this phase.
        rejoin_ms: While LEAVING, FENCING or GONE: how long its tasks wait for its return; 0 if they don't.
        drain_ms: While LEAVING: how long it goes on working while its tasks move; 0: everything is revoked at once.
        shutdown: Why this incarnation is to end with the whole application, or "".
    """

    member: Name
    incarnation: Name
    phase: MemberPhaseText
    transactional_ids: tuple[Name, ...] = ()
    host: Label = ""
    process_id: Label = ""
    endpoint: Label | None = None
    rack: Label | None = None
    tags: dict[Label, Label] = {}
    threads: Threads = 1
    static: bool = False
    protocol: tuple[Version, Version] = (1, 1)
    topology_epoch: Epoch = 0
    topology_hash: Label = ""
    assignor: Label = "sticky"
    session_timeout_ms: SessionMs = 3_000
    rejoin_timeout_ms: DurationMs = 60_000
    member_epoch: Epoch = 0
    reason: Text = ""
    rejoin_ms: DurationMs = 0
    drain_ms: DurationMs = 0
    shutdown: Text = ""


class TargetRecord(LogRecord, frozen=True, kw_only=True, tag="TARGET"):
    """Where every task belongs in the end, by members' names; computed once per change of the group.

    Attributes:
        group_epoch: Counts up with each target.
        owners: Member by task.
        standbys: Members by task.
        basis: Digest of what it was computed from: the same basis needs no new target.
        reason: What changed, for people.
    """

    group_epoch: Counter
    owners: dict[TaskText, Name]
    standbys: dict[TaskText, tuple[Name, ...]] = {}
    basis: Label = ""
    reason: Text = ""


class Copy(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A copy of a task's state: who keeps it (incarnation), under which learn epoch."""

    incarnation: Name
    learn_epoch: Counter


class StepRecord(LogRecord, frozen=True, kw_only=True, tag="STEP"):
    """The intermediate assignment: which copies are kept on the way to the target.

    Attributes:
        step_epoch: Counts up with each refinement.
        learners: Copy by task; it becomes the owner when it is ready.
        standbys: Copies by task.
        parked: Tasks whose move waits for a place among the learners.
    """

    group_epoch: Counter
    step_epoch: Counter
    learners: dict[TaskText, Copy] = {}
    standbys: dict[TaskText, tuple[Copy, ...]] = {}
    parked: tuple[TaskText, ...] = ()


class TaskRecord(LogRecord, frozen=True, kw_only=True, tag="TASK"):
    """One task's state, whole.

    Attributes:
        phase: See `tidewheel.rebalance.model.TaskPhase`.
        task_epoch: Counts up at every grant, never used twice.
        owner: Incarnation that may commit (RUNNING, REVOKING, FENCE_WAIT), or None.
        member: The owner's name.
        next_member: Whom it is meant for next, where known.
        event: What happened: GRANT, REVOKE, FENCE_WAIT, RELEASED.
        reason: Why, for people.
        input: The floor: committed offsets that the last owner to name them had; the owner compares. A release by
            acknowledgement raises it, FENCE_WAIT raises it to what the owner's beats said, a fence keeps it.
        changelog_end: At RELEASED by acknowledgement and at GRANT: the positions to reach before the first record.
        source: Of RELEASED: "ack" or "fence".
        deadline_ms: Of REVOKE: how long the owner has.
        ranges, hash_name: Reserved: key ranges (first hash, last hash) the owner has, where a partition has several owners
            (K8). It is always (), for all of them: an owner cuts its task itself, and each commit tells how (`Progress`).
    """

    task: TaskText
    phase: TaskPhaseText
    task_epoch: Counter
    owner: Name | None = None
    member: Name | None = None
    next_member: Name | None = None
    event: Label = ""
    reason: Text = ""
    input: Positions = {}
    changelog_end: Positions = {}
    source: Label = ""
    deadline_ms: DurationMs = 0
    ranges: tuple[tuple[KeyHash, KeyHash], ...] = ()
    hash_name: Label = "crc32"


class BootstrapRecord(LogRecord, frozen=True, kw_only=True, tag="BOOTSTRAP"):
    """A store is being loaded from outside (`tidewheel bootstrap`); until it is over, nothing is decided.

    `GroupRecord.held` says so as well, so that a leader that does not know this kind holds still too.

    Attributes:
        store: The store.
        attempt: Which run of the command; only the last one counts.
        phase: See `tidewheel.rebalance.model.BootstrapPhase`.
        was_empty: Whether the store's changelog had no record before the first attempt.
        input: Where input is read from afterwards, by position key; fixed at the first attempt.
        input_offsets: What was asked for: the same again means the same offsets again.
    """

    store: Name
    attempt: Name
    phase: BootstrapPhaseText
    was_empty: bool = True
    input: Positions = {}
    input_offsets: Label = ""


class BootstrappedRecord(LogRecord, frozen=True, kw_only=True, tag="BOOTSTRAPPED"):
    """The loading of a store is over: the group goes on. It has the key of the BOOTSTRAP that it ends.

    Attributes:
        store: The store.
        attempt: Which run of the command.
        rows: What was written; none if it was withdrawn.
        withdrawn: Nothing was written: the store and the offsets are as they were.
    """

    store: Name
    attempt: Name
    rows: Count = 0
    withdrawn: bool = False


AnyRecord = (
    LeaderClaim
    | SnapshotBegin
    | SnapshotEnd
    | GroupRecord
    | MemberRecord
    | TargetRecord
    | StepRecord
    | TaskRecord
    | BootstrapRecord
    | BootstrappedRecord
)

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def record_key(record: AnyRecord) -> bytes:
    """Return the key under which a record is written.

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
    """Return the keys under which the records of one transaction are written.

    What a snapshot holds has keys of its own: compaction would else remove from it whatever a later record of the same
    leader replaces, and the rest would not agree with its count and checksum any more (H4).

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
    """Return a record as JSON; raises ValueError if it is larger than the log takes.

    Its version is that of this code: what a newer leader wrote is restated without what only that one knows (N14).
    """
    if record.v != RECORD_VERSION:
        record = msgspec.structs.replace(record, v=RECORD_VERSION)
    data = _ENCODER.encode(record)
    if len(data) > RECORD_BYTES_MAX:
        raise ValueError(
            f"a {type(record).__name__} of {len(data)} bytes is larger than the group log takes ({RECORD_BYTES_MAX})"
        )
    return data


def read_record(data: bytes | None) -> AnyRecord | Rejection | None:
    """Return the record in `data`, or why readers of the log skip it.

    None: a tombstone, or a kind that only a later version knows.

    >>> read_record(b'{"kind":"LEADER_CLAIM","leader_epoch":1,"leader":"p1"}').leader
    'p1'
    >>> str(read_record(b'{"kind":"TASK","leader_epoch":1,"task":"x","phase":"RUNNING","task_epoch":1}'))
    'field task: is not a task id, such as 0_1 (sub-topology, partition)'
    """
    return None if data is None else _DOOR.read(data)


def decode_record(data: bytes | None) -> AnyRecord | None:
    """Return the record in `data`; None for what readers of the log skip."""
    record = read_record(data)
    return None if isinstance(record, Rejection) else record


def _problem(record: AnyRecord) -> Rejection | None:
    """Return what is wrong between a record's fields."""
    match record:
        case LeaderClaim() if record.leader_epoch <= record.previous_epoch:
            return Rejection("leader_epoch", "is not above previous_epoch")
        case GroupRecord() if sum(record.partitions.values()) > PARTITIONS_MAX:
            return Rejection("partitions", f"has more than {PARTITIONS_MAX} partitions in all")
        case MemberRecord() if record.protocol[0] > record.protocol[1]:
            return Rejection("protocol", "ends before it begins")
        case TaskRecord() if (record.owner is None) is _HAS_OWNER[record.phase]:
            has = "no owner" if record.owner is None else "an owner"
            return Rejection("owner", f"a task that is {record.phase} can't have {has}")
        case TaskRecord() | StepRecord() | TargetRecord():
            return _counter_problem(record)
        case _:
            return None


def _counter_problem(record: TaskRecord | StepRecord | TargetRecord) -> Rejection | None:
    """Return which counter of a record no leader of its epoch can have counted to, or None."""
    match record:
        case TaskRecord():
            counters = [("task_epoch", record.task_epoch)]
        case TargetRecord():
            counters = [("group_epoch", record.group_epoch)]
        case StepRecord():
            counters = [("group_epoch", record.group_epoch), ("step_epoch", record.step_epoch)]
            counters += [("learners", each.learn_epoch) for each in record.learners.values()]
            counters += [
                ("standbys", each.learn_epoch)
                for copies in record.standbys.values()
                for each in copies
            ]
    limit = counter_max(record.leader_epoch)
    for field, counter in counters:
        if counter > limit:
            return Rejection(
                field, f"is far above what leader epoch {record.leader_epoch} counts to"
            )
    return None


#: Whether a task of a phase has an owner.
_HAS_OWNER: Final = {
    "UNOWNED": False,
    "RUNNING": True,
    "REVOKING": True,
    "FENCE_WAIT": True,
    "RELEASED": False,
}

_DOOR: Final[Door[AnyRecord]] = Door(
    AnyRecord,
    noun="record",
    bytes_max=RECORD_BYTES_MAX,
    version=RECORD_VERSION,
    check=_problem,
    texts={
        GroupRecord: ("held",),
        MemberRecord: ("reason", "shutdown"),
        TargetRecord: ("reason",),
        TaskRecord: ("reason",),
    },
)


def checksum(records: list[AnyRecord]) -> int:
    """Return the CRC-32 over the keys of some records, in their order.

    Not over what they say: a reader of an older version does not see every field, and has to agree all the same (N14).
    Kafka's own checksums guard the content.
    """
    crc = 0
    for record in records:
        crc = crc32(record_key(record), crc)
    return crc
