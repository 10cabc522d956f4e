"""Handwritten group logs for tests of log readers."""

from tidewheel.rebalance.inspect.describe import LogEntry
from tidewheel.rebalance.leader.targets import basis_of
from tidewheel.rebalance.model import MemberPhase, TaskPhase
from tidewheel.rebalance.protocol.group import Group, replay, snapshot
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    Copy,
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
    TaskRow,
)

#: 2026-11-21T12:00:00Z.
T = 1_795_262_400_000

STATEFUL = TaskRow(stateful=True, changelogs=("shop-counts-changelog",))


def producer_id(name: str, life: int = 1, number: int = 0) -> str:
    return f"shop-{f'{name}-{life}'.encode().hex():0>32}-{number}"


class LogBook:
    """Records with times; the leader is `p1` at epoch 1 until `leader` is called."""

    def __init__(self, start_ms: int = T) -> None:
        self.entries: list[LogEntry] = []
        self.now_ms = start_ms
        self.leader_epoch = 0
        self.session_timeout_ms = 3_000
        self._epochs: dict[str, int] = {}
        self._group_epoch = 0
        self._step_epoch = 0

    @property
    def group(self) -> Group:
        return replay(entry.record for entry in self.entries)

    def after(self, milliseconds: int) -> "LogBook":
        self.now_ms += milliseconds
        return self

    def write(self, *records: AnyRecord) -> "LogBook":
        for record in records:
            self.entries.append(LogEntry(len(self.entries), self.now_ms, record))
        return self

    def leader(self, process: str, *, whole: bool = True) -> "LogBook":
        before = self.group
        self.leader_epoch += 1
        self.write(
            LeaderClaim(
                leader_epoch=self.leader_epoch,
                leader=process,
                previous_epoch=self.leader_epoch - 1,
            )
        )
        return self.write(*snapshot(before, self.leader_epoch)) if whole else self

    def about(
        self,
        *tasks: str,
        stateful: bool = True,
        held: str = "",
        partitions: dict[str, int] | None = None,
        topology_hash: str = "1f2e3d4c",
    ) -> "LogBook":
        row = STATEFUL if stateful else TaskRow()
        return self.write(
            GroupRecord(
                leader_epoch=self.leader_epoch,
                topology_hash=topology_hash,
                assignor="sticky",
                tasks=dict.fromkeys(tasks, row),
                partitions=partitions or {},
                held=held,
            )
        )

    def member(
        self,
        name: str,
        phase: MemberPhase = MemberPhase.ACTIVE,
        *,
        life: int = 1,
        reason: str = "",
        rejoin_ms: int = 0,
        drain_ms: int = 0,
        static: bool = False,
        endpoint: str | None = None,
    ) -> "LogBook":
        return self.write(
            MemberRecord(
                leader_epoch=self.leader_epoch,
                member=name,
                incarnation=f"{name}-{life}",
                phase=phase,
                transactional_ids=(producer_id(name, life),),
                host=f"h-{name}",
                process_id=f"p-{name}",
                endpoint=endpoint,
                static=static,
                session_timeout_ms=self.session_timeout_ms,
                reason=reason,
                rejoin_ms=rejoin_ms,
                drain_ms=drain_ms,
            )
        )

    def target(
        self,
        owners: dict[str, str],
        reason: str = "",
        standbys: dict[str, tuple[str, ...]] | None = None,
    ) -> "LogBook":
        self._group_epoch += 1
        return self.write(
            TargetRecord(
                leader_epoch=self.leader_epoch,
                group_epoch=self._group_epoch,
                owners=owners,
                standbys=standbys or {},
                basis=basis_of(self.group, 0),
                reason=reason,
            )
        )

    def step(
        self,
        learners: dict[str, tuple[str, int]] | None = None,
        standbys: dict[str, tuple[str, int]] | None = None,
        parked: tuple[str, ...] = (),
    ) -> "LogBook":
        self._step_epoch += 1
        return self.write(
            StepRecord(
                leader_epoch=self.leader_epoch,
                group_epoch=self._group_epoch,
                step_epoch=self._step_epoch,
                learners={
                    task: Copy(incarnation=incarnation, learn_epoch=epoch)
                    for task, (incarnation, epoch) in (learners or {}).items()
                },
                standbys={
                    task: (Copy(incarnation=incarnation, learn_epoch=epoch),)
                    for task, (incarnation, epoch) in (standbys or {}).items()
                },
                parked=parked,
            )
        )

    def grant(self, task: str, member: str, *, life: int = 1) -> "LogBook":
        self._epochs[task] = self._epochs.get(task, 0) + 1
        return self._task(task, TaskPhase.RUNNING, "GRANT", member, life)

    def revoke(
        self, task: str, member: str, next_member: str | None = None, *, life: int = 1
    ) -> "LogBook":
        return self._task(task, TaskPhase.REVOKING, "REVOKE", member, life, next_member=next_member)

    def fence_wait(self, task: str, member: str, *, life: int = 1) -> "LogBook":
        return self._task(task, TaskPhase.FENCE_WAIT, "FENCE_WAIT", member, life)

    def released(self, task: str, source: str = "ack", next_member: str | None = None) -> "LogBook":
        return self._task(
            task, TaskPhase.RELEASED, "RELEASED", None, 1, source=source, next_member=next_member
        )

    def _task(
        self,
        task: str,
        phase: TaskPhase,
        event: str,
        member: str | None,
        life: int,
        *,
        source: str = "",
        next_member: str | None = None,
    ) -> "LogBook":
        return self.write(
            TaskRecord(
                leader_epoch=self.leader_epoch,
                task=task,
                phase=phase,
                task_epoch=self._epochs.get(task, 0),
                owner=None if member is None else f"{member}-{life}",
                member=member,
                next_member=next_member,
                event=event,
                source=source,
            )
        )


def two_members(
    tasks: tuple[str, ...] = ("0_0", "0_1", "0_2", "0_3"), book: LogBook | None = None
) -> LogBook:
    """Settled group: `a` and `b` share the tasks, 1 s after `T`."""
    book = (book or LogBook()).leader("p1").about(*tasks)
    book.after(10).member("a").member("b")
    owners = {task: "ab"[index % 2] for index, task in enumerate(tasks)}
    book.after(300).target(owners, "a and b joined").step()
    for task, member in owners.items():
        book.grant(task, member)
    return book.after(690)


def scale_out(book: LogBook | None = None) -> LogBook:
    """`c` joins and gets task 0_1 from `b` after a learner of 4 s."""
    book = book or two_members()
    book.after(1_000).member("c")
    book.after(200).target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "b"}, "c joined")
    book.step({"0_1": ("c-1", 7)})
    book.after(4_000).revoke("0_1", "b", "c")
    book.after(12).step().released("0_1", next_member="c").grant("0_1", "c")
    return book
