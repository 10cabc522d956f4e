"""The trace of a real group, its log and its inbox, and the invariants that every trace keeps.

They are written from the protocol's text, and use no code of the leader or the members.
"""

from collections.abc import Container
from dataclasses import dataclass

from tests.integration.cluster import Cluster
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    GrantedOk,
    Revoked,
    decode_message,
)
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LeaderClaim,
    MemberRecord,
    SnapshotBegin,
    SnapshotEnd,
    TaskRecord,
    decode_record,
)
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic

#: Phases of a member that can no longer commit.
_OVER = ("FENCED", "GONE")
#: Leader in the claim of `group recover`, which has fenced all owners.
_RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """Records of the log and messages of the inbox, each in order; undecodable ones left out."""

    records: list[AnyRecord]
    messages: list[AnyMessage]

    def check(self) -> None:
        """Check the invariants; the message of an AssertionError has number and record.

        1. Leader epochs rise with each claim, and every record has the epoch of the last claim.
        2. Task epochs rise with each grant, and never fall; each has one owner.
        3. A task is granted only after its last owner said REVOKED, or was fenced.
        4. It is granted to an active member only.
        5. Only that member says GRANTED_OK.
        6. The input offsets below which no owner may start never fall.
        """
        law = _Law(
            {
                (each.task, each.task_epoch, each.incarnation)
                for each in self.messages
                if isinstance(each, Revoked)
            }
        )
        for record in self.records:
            law.record(record)
        for message in self.messages:
            if isinstance(message, GrantedOk):
                owner = law.granted.get((message.task, message.task_epoch), message.incarnation)
                assert message.incarnation == owner, f"5: {message}, granted to {owner}"

    def member_of(self, incarnation: str) -> str:
        """Return the lasting name of an incarnation's member."""
        records = (each for each in self.records if isinstance(each, MemberRecord))
        return next(each.member for each in records if each.incarnation == incarnation)

    def claim(self) -> LeaderClaim:
        return [each for each in self.records if isinstance(each, LeaderClaim)][-1]

    def decisions(self) -> list[AnyRecord]:
        """Return the records outside snapshots, without claims."""
        decisions: list[AnyRecord] = []
        in_snapshot = False
        for record in self.records:
            if isinstance(record, LeaderClaim | SnapshotEnd):
                in_snapshot = False
            elif isinstance(record, SnapshotBegin):
                in_snapshot = True
            elif not in_snapshot:
                decisions.append(record)
        return decisions

    def owners(self) -> set[str]:
        """Return the incarnations that own a task now."""
        last = {each.task: each.owner for each in self.records if isinstance(each, TaskRecord)}
        return {owner for owner in last.values() if owner is not None}

    def transactional_ids(self) -> dict[str, set[str]]:
        """Return the ids that each incarnation was given; the last is in use."""
        members = (each for each in self.records if isinstance(each, MemberRecord))
        return {each.incarnation: {*each.transactional_ids} for each in members}

    def ended(self) -> set[str]:
        """Return the incarnations that can no longer commit."""
        return self._in(*_OVER)

    def fenced(self) -> set[str]:
        return self._in("FENCED")

    def _in(self, *phases: str) -> set[str]:
        return {
            each.incarnation
            for each in self.records
            if isinstance(each, MemberRecord) and each.phase in phases
        }


class _Law:
    def __init__(self, revoked: set[tuple[str, int, str]]) -> None:
        self.granted: dict[tuple[str, int], str] = {}
        self._revoked = revoked
        self._leader_epoch, self._in_snapshot = 0, False
        self._members: dict[str, MemberRecord] = {}
        self._tasks: dict[str, TaskRecord] = {}
        #: Epoch and owner of the last grant.
        self._last: dict[str, tuple[int, str]] = {}

    def record(self, record: AnyRecord) -> None:
        if isinstance(record, LeaderClaim):
            assert record.leader_epoch > self._leader_epoch, f"1: {record}: {self._leader_epoch}"
            self._leader_epoch, self._in_snapshot = record.leader_epoch, False
            if record.leader == _RECOVERY:
                self._last.clear()
            return
        assert record.leader_epoch == self._leader_epoch, f"1: {record}: {self._leader_epoch}"
        match record:
            case SnapshotBegin():
                self._in_snapshot = True
            case SnapshotEnd():
                self._in_snapshot = False
            case MemberRecord():
                self._members[record.incarnation] = record
            case TaskRecord():
                self._task(record)
            case _:
                pass

    def _task(self, record: TaskRecord) -> None:
        before = self._tasks.get(record.task)
        self._tasks[record.task] = record
        if before is not None:
            assert record.task_epoch >= before.task_epoch, f"2: {record} after {before}"
            for key, offset in before.input.items():
                assert record.input.get(key, -1) >= offset, f"6: {record} after {before}"
        if record.owner is None or self._in_snapshot:
            return
        if before is None or record.task_epoch > before.task_epoch:
            self._grant(record, record.owner)
        owner = self.granted.get((record.task, record.task_epoch), record.owner)
        assert record.owner == owner, f"2: {record}, granted to {owner}"

    def _grant(self, record: TaskRecord, owner: str) -> None:
        if record.task in self._last:
            epoch, former = self._last[record.task]
            has_said = (record.task, epoch, former) in self._revoked
            assert has_said or self._phase(former) in _OVER, f"3: {record}: {self._phase(former)}"
        assert self._phase(owner) in ("ACTIVE", "LEAVING"), f"4: {record}: {self._phase(owner)}"
        self.granted[record.task, record.task_epoch] = owner
        self._last[record.task] = (record.task_epoch, owner)

    def _phase(self, incarnation: str) -> str:
        member = self._members.get(incarnation)
        return "unknown" if member is None else member.phase


def read_trace(cluster: Cluster, application_id: str, forged: Container[bytes] = ()) -> GroupTrace:
    records = (
        decode_record(each.value)
        for each in cluster.read(state_topic(application_id))
        if each.value not in forged
    )
    messages = (
        decode_message(each.value)
        for each in cluster.read(inbox_topic(application_id))
        if each.value is not None
    )
    return GroupTrace(
        [record for record in records if record is not None],
        [message for message in messages if message is not None],
    )
