"""A whole group in memory: log, leader, members, workers.

It only carries records and messages between real coordinator and members. Tests advance the time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidewheel.rebalance.assignors.builtin import resolve
from tidewheel.rebalance.leader.coordinator import Coordinator, CoordinatorSettings, Decision
from tidewheel.rebalance.leader.repair import repair_group
from tidewheel.rebalance.member.member import Member, MemberDecision
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group, apply, replay, snapshot
from tidewheel.rebalance.protocol.messages import AnyMessage, DiskCopy, JoinGroup, SeenTask
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    CopyReady,
    DropCopy,
    EndIncarnation,
    KeepCopy,
    ReleaseTask,
    RunTask,
    TaskReleased,
    TaskRunning,
    WorkerStatus,
)
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim, TaskRecord

APP = "shop"
HEARTBEAT_MS = 500
SESSION_MS = 3_000


def stateful(count: int, subtopology: int = 0) -> tuple[SeenTask, ...]:
    return tuple(
        SeenTask(task=f"{subtopology}_{n}", stateful=True, changelogs=(f"{APP}-counts-changelog",))
        for n in range(count)
    )


def join(name: str, life: int = 1, **given: Any) -> JoinGroup:
    incarnation = f"{name}-{life}"
    plain = JoinGroup(
        app=APP,
        member=name,
        incarnation=incarnation,
        transactional_ids=(f"{APP}-{incarnation}-0",),
        host=f"host-{name}",
        pid=1,
        process_id=f"process-{name}",
        tasks=stateful(4),
        partitions={"orders": 4},
    )
    return msgspec.structs.replace(plain, **given)


@dataclass
class Worker:
    """A worker that obeys immediately; its state is in the table's changelogs."""

    member: Member
    ends: Mapping[str, int]
    running: dict[str, int] = field(default_factory=dict[str, int])  # Task epochs by task.
    copies: dict[str, int] = field(default_factory=dict[str, int])  # Learn epochs by task.
    mute: set[str] = field(default_factory=set[str])  # Tasks without an answer.
    in_call: bool = False
    catches_up: bool = True
    alive: bool = True
    ended: EndIncarnation | None = None  # Its last order.
    told: list[AnyOrder] = field(default_factory=list[AnyOrder])

    def obey(self, order: AnyOrder, now_ms: int) -> None:
        self.told.append(order)
        task = getattr(order, "task", "")
        report: AnyReport | None = None
        match order:
            case RunTask():
                self.copies.pop(task, None)
                self.running[task] = order.task_epoch
                report = TaskRunning(task=task, task_epoch=order.task_epoch, input=order.input)
            case ReleaseTask():
                report = TaskReleased(
                    task=task,
                    task_epoch=order.task_epoch,
                    input={"orders-0": 7},
                    changelog_end={key: self.ends[key] for key in keys_of(task)},
                    kept=order.keep > 0,
                )
                if task not in self.mute:
                    self.running.pop(task, None)
                    if order.keep:
                        self.copies[task] = order.keep
            case KeepCopy():
                self.copies[task] = order.learn_epoch
                if self.catches_up:
                    report = self.ready(task)
            case DropCopy():
                self.copies.pop(task, None)
            case EndIncarnation():
                self.ended = order
                self.running.clear()
                self.copies.clear()
            case _:
                pass
        if report is not None and task not in self.mute:
            self.member.report(report, now_ms)

    def ready(self, task: str, behind: int = 0) -> CopyReady:
        """Return the READY of a copy this many records behind."""
        return CopyReady(
            task=task,
            learn_epoch=self.copies[task],
            store_uuid="store",
            positions={key: self.ends[key] - behind for key in keys_of(task)},
            ends=dict(self.ends),
        )


def keys_of(task: str) -> tuple[str, ...]:
    return (f"{APP}-counts-changelog-{TaskId.parse(task).partition}",)


class RoundTable:
    def __init__(self, settings: CoordinatorSettings | None = None) -> None:
        self.settings = settings or CoordinatorSettings(heartbeat_interval_ms=HEARTBEAT_MS)
        self.now_ms = 1_000
        self.log: list[AnyRecord] = []
        self.group = Group()
        self.ends: dict[str, int] = {f"{APP}-counts-changelog-{n}": 1_000 for n in range(1_000)}
        self.workers: dict[str, Worker] = {}
        self.said: list[AnyMessage] = []
        self.fenced: list[str] = []
        self.watchers: list[Callable[[AnyRecord], None]] = []
        self.slow_fences: set[str] = set()
        self.pending_fences: list[str] = []
        #: Delay of the log, in ms.
        self.write_ms: Callable[[Sequence[AnyRecord]], int] = lambda _: 0
        self.coordinator = self.lead("p0")

    def lead(self, leader: str) -> Coordinator:
        epoch = self.group.leader_epoch + 1
        self._append(LeaderClaim(leader_epoch=epoch, leader=leader, previous_epoch=epoch - 1))
        for record in snapshot(repair_group(self.group, app=APP).group, epoch):
            self._append(record)
        self.pending_fences.clear()
        self.coordinator = Coordinator(
            self.group, app=APP, leader=leader, settings=self.settings, now_ms=self.now_ms
        )
        return self.coordinator

    def start(self, name: str, life: int = 1, **given: Any) -> Worker:
        hello = join(name, life, **given)
        member = Member(
            hello,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=hello.session_timeout_ms,
            now_ms=self.now_ms,
        )
        worker = Worker(member, self.ends)
        self.workers[hello.incarnation] = worker
        return worker

    def kill(self, incarnation: str, *, seen: bool = True) -> None:
        """Kill a worker; with `seen`, its watchdog reports the death."""
        worker = self.workers[incarnation]
        if seen:
            worker.member.died("killed", self.now_ms)
        worker.alive = False
        worker.running.clear()
        worker.copies.clear()
        if not seen:
            del self.workers[incarnation]

    def run(self, for_ms: int = 0, *, step_ms: int = 50) -> None:
        """Exchange messages until none is left, then for `for_ms`."""
        end_ms = self.now_ms + for_ms
        while True:
            self.settle()
            if self.now_ms >= end_ms:
                return
            self.now_ms = min(self.now_ms + step_ms, end_ms)

    def settle(self) -> None:
        for _ in range(200):
            if not (self._members_turn() | self._leader_turn()):
                return
        raise AssertionError("the group does not come to rest")

    def receive(self, message: AnyMessage) -> None:
        self.said.append(message)
        self.coordinator.observe(message, self.now_ms)
        for worker in list(self.workers.values()):
            worker.member.receive(message, self.now_ms)

    def owners(self) -> dict[str, str]:
        return {str(task): state.owner or "" for task, state in sorted(self.group.states.items())}

    def phases(self) -> dict[str, str]:
        return {str(task): state.phase for task, state in sorted(self.group.states.items())}

    def events(self, task: str) -> list[str]:
        records = [each for each in self.log if isinstance(each, TaskRecord)]
        return [each.event for each in records if each.task == task]

    # -- turns --------------------------------------------------------------------------------------------------------

    def _members_turn(self) -> bool:
        moved = False
        for incarnation, worker in list(self.workers.items()):
            worker.member.follow(self.group, len(self.log), self.now_ms)
            worker.member.set_health(True, self.now_ms, in_call=worker.in_call)
            decision: MemberDecision = worker.member.decide(self.now_ms)
            for order in decision.orders:
                moved = True
                if worker.alive:
                    worker.obey(order, self.now_ms)
            for message in decision.messages:
                moved = True
                self.receive(message)
            if decision.over:
                del self.workers[incarnation]
        return moved

    def _leader_turn(self) -> bool:
        decision = self.coordinator.decide(self.now_ms)
        if decision.records:
            self.now_ms += self.write_ms(decision.records)
            for record in decision.records:
                self._append(record)
            self.coordinator.committed(decision.records, self.now_ms)
            assert self.coordinator.group == self.group
        self._carry_out(decision)
        return bool(decision.records or decision.fences or decision.read_ends or decision.assign)

    def _carry_out(self, decision: Decision) -> None:
        for message in decision.messages:
            self.receive(message)
        for fence in decision.fences:
            self.fenced.append(fence.incarnation)
            if fence.incarnation in self.slow_fences:
                self.pending_fences.append(fence.incarnation)
            else:
                self.coordinator.fenced(fence.incarnation, self.now_ms)
        if decision.read_ends:
            ends = {key: self.ends[key] for key in decision.read_ends}
            self.coordinator.ends_read(ends, self.now_ms, self.now_ms)
        if decision.assign is not None:
            answer = resolve(decision.assign.assignor).assign(decision.assign)
            self.coordinator.assigned(decision.assign, answer, "", self.now_ms)

    def _append(self, record: AnyRecord) -> None:
        self.log.append(record)
        self.group = apply(self.group, record)
        for watcher in self.watchers:
            watcher(record)


def with_settings(**given: Any) -> CoordinatorSettings:
    return CoordinatorSettings(heartbeat_interval_ms=HEARTBEAT_MS, **given)


def refolded(table: RoundTable) -> Group:
    return replay(table.log)


def status(worker: Worker, *rows: object) -> WorkerStatus:
    return WorkerStatus(tasks=tuple(rows))  # type: ignore[arg-type]  # rows are TaskStatus; kept short for tests


def on_disk(task: str, position: int) -> DiskCopy:
    return DiskCopy(task=task, positions=dict.fromkeys(keys_of(task), position))
