"""A whole group in one thread: real coordinator and members, log and inbox of encoded bytes.

Workers obey immediately and their copies catch up immediately, so only the group's own work is
measured. Time is simulated; the leader's work is timed by the processor's clock. A broker's I/O
comes on top.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidewheel.rebalance.assignors.builtin import resolve
from tidewheel.rebalance.leader.coordinator import Coordinator, CoordinatorSettings, Decision
from tidewheel.rebalance.member.member import Member
from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.group import Group, replay, snapshot
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    JoinGroup,
    LeaderBeat,
    SeenTask,
    encode_message,
    read_message,
)
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    CopyReady,
    DropCopy,
    KeepCopy,
    ReleaseTask,
    RunTask,
    TaskReleased,
    TaskRunning,
    WorkerStatus,
)
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LeaderClaim,
    decode_record,
    encode_record,
    record_keys,
)
from tidewheel.rebalance.protocol.task_status import TaskStatus

APP = "shop"
STEP_MS = 50
HEARTBEAT_MS = 500
SESSION_MS = 3_000
#: Simulated time after which an unsettled group fails the run.
REST_WITHIN_MS = 600_000
_RECORDS_AHEAD = 1_000
_T = TypeVar("_T")


@dataclass(slots=True)
class Costs:
    """Costs since the last reading; times in ms.

    Attributes:
        decide_ms: Each decision of the leader beyond a beat.
        apply_ms: Decoding and applying the records of a decision, as every process does.
        assign_ms: Each answer of the assignor, which runs concurrently with the leader.
        leader_ms: All work of the leader's thread, messages included.
        log_bytes: Keys and values written to the group's log.
        beat_bytes: Size of each member's beat.
        leader_beat_bytes: Size of each beat of the leader.
    """

    decide_ms: list[float] = field(default_factory=list[float])
    apply_ms: list[float] = field(default_factory=list[float])
    assign_ms: list[float] = field(default_factory=list[float])
    leader_ms: float = 0.0
    log_bytes: int = 0
    log_records: int = 0
    beat_bytes: list[int] = field(default_factory=list[int])
    leader_beat_bytes: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class _Worker:
    """A worker: its member, and the epochs of its tasks and copies."""

    member: Member
    running: dict[str, int] = field(default_factory=dict[str, int])
    copies: dict[str, int] = field(default_factory=dict[str, int])

    def obey(self, order: AnyOrder, now_ms: int) -> None:
        report: AnyReport | None = None
        match order:
            case RunTask():
                self.copies.pop(order.task, None)
                self.running[order.task] = order.task_epoch
                report = TaskRunning(
                    task=order.task, task_epoch=order.task_epoch, input=order.input
                )
            case ReleaseTask():
                self.running.pop(order.task, None)
                if order.keep:
                    self.copies[order.task] = order.keep
                report = TaskReleased(
                    task=order.task,
                    task_epoch=order.task_epoch,
                    input={_input_key(order.task): 7},
                    changelog_end={_changelog_key(order.task): _RECORDS_AHEAD},
                    kept=order.keep > 0,
                )
            case KeepCopy():
                self.copies[order.task] = order.learn_epoch
                positions = {_changelog_key(order.task): _RECORDS_AHEAD}
                report = CopyReady(
                    task=order.task,
                    learn_epoch=order.learn_epoch,
                    store_uuid="store",
                    positions=positions,
                    ends=positions,
                )
            case DropCopy():
                self.copies.pop(order.task, None)
            case _:
                pass
        if report is not None:
            self.member.report(report, now_ms)

    def status(self, now_ms: int) -> WorkerStatus:
        """Return the progress of all tasks; each one has changed, which makes the largest beats."""
        return WorkerStatus(
            tasks=tuple(
                TaskStatus(
                    task=task,
                    role="active",
                    epoch=epoch,
                    state="RUNNING",
                    input={_input_key(task): now_ms},
                    committed={_input_key(task): now_ms},
                    lag=0,
                    rate=1_000.0,
                )
                for task, epoch in self.running.items()
            )
        )


class SimulatedGroup:
    def __init__(self, *, tasks: int) -> None:
        self.costs = Costs()
        self._tasks = tuple(
            SeenTask(task=f"0_{n}", stateful=True, changelogs=(f"{APP}-counts-changelog",))
            for n in range(tasks)
        )
        self._now_ms = 1_000
        self._group = Group()
        self._log_end = 0
        self._workers: dict[str, _Worker] = {}
        self._append([LeaderClaim(leader_epoch=1, leader="p0")])
        self._coordinator = Coordinator(
            self._group,
            app=APP,
            leader="p0",
            settings=CoordinatorSettings(
                heartbeat_interval_ms=HEARTBEAT_MS,
                settling_ms=0,
            ),
            now_ms=self._now_ms,
        )

    @property
    def now_ms(self) -> int:
        return self._now_ms

    def take_costs(self) -> Costs:
        taken, self.costs = self.costs, Costs()
        return taken

    def snapshot_bytes(self) -> int:
        """Return the size of the whole state, which a new leader writes first."""
        records = snapshot(self._group, self._group.leader_epoch + 1)
        return sum(map(len, record_keys(records))) + sum(
            len(encode_record(record)) for record in records
        )

    def start(self, name: str) -> None:
        hello = JoinGroup(
            app=APP,
            member=name,
            incarnation=f"{name}-1",
            transactional_ids=(f"{APP}-{name}-1-0",),
            host=f"host-{name}",
            pid=1,
            process_id=f"process-{name}",
            tasks=self._tasks,
            partitions={"orders": len(self._tasks)},
            session_timeout_ms=SESSION_MS,
        )
        member = Member(
            hello,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            now_ms=self._now_ms,
        )
        self._workers[name] = _Worker(member)

    def kill(self, name: str) -> None:
        self._workers[name].running.clear()
        self._workers[name].copies.clear()
        self._workers[name].member.died("killed", self._now_ms)

    def run(self, for_ms: int) -> None:
        end_ms = self._now_ms + for_ms
        while self._now_ms < end_ms:
            self._step()

    def come_to_rest(self) -> None:
        """Run until each task is at its target and two seconds passed without a decision.

        Raises:
            TimeoutError: Not within ten simulated minutes.
        """
        deadline_ms = self._now_ms + REST_WITHIN_MS
        quiet_from_ms, before = self._now_ms, self._log_end
        while self._now_ms - quiet_from_ms < 2_000 or not self.is_balanced():
            self._step()
            if self._log_end != before:
                quiet_from_ms, before = self._now_ms, self._log_end
            if self._now_ms > deadline_ms:
                raise TimeoutError("the simulated group does not come to rest")

    def is_balanced(self) -> bool:
        group = self._group
        if not group.tasks or len(group.target.owners) != len(self._tasks):
            return False
        return all(
            group.phase_of(task) == TaskPhase.RUNNING
            and group.states[task].member == group.target.owners.get(task)
            for task in group.tasks
        )

    def loads(self) -> list[int]:
        return [len(worker.running) for worker in self._workers.values()]

    def _step(self) -> None:
        self._now_ms += STEP_MS
        said = self._members_turn()
        self._leader_turn(said)

    def _members_turn(self) -> list[bytes]:
        said: list[bytes] = []
        for name, worker in list(self._workers.items()):
            member = worker.member
            member.follow(self._group, self._log_end, self._now_ms)
            if self._now_ms % HEARTBEAT_MS == 0:
                member.report(worker.status(self._now_ms), self._now_ms)
            decision = member.decide(self._now_ms)
            for order in decision.orders:
                worker.obey(order, self._now_ms)
            said += (self._encoded(message) for message in decision.messages)
            if decision.over:
                del self._workers[name]
        return said

    def _encoded(self, message: AnyMessage) -> bytes:
        data = encode_message(message)
        match message:
            case Beat():
                self.costs.beat_bytes.append(len(data))
            case LeaderBeat():
                self.costs.leader_beat_bytes.append(len(data))
            case _:
                pass
        return data

    def _leader_turn(self, said: Sequence[bytes]) -> None:
        begun_s = time.perf_counter()
        for data in said:
            match read_message(data):
                case (None | Rejection()) as rejection:
                    raise RuntimeError(f"a message of {len(data)} bytes is refused: {rejection}")
                case message:
                    self._coordinator.observe(message, self._now_ms)
        decision = self._decide()
        self.costs.leader_ms += (time.perf_counter() - begun_s) * 1000
        for answer in decision.messages:
            self._encoded(answer)
            for worker in self._workers.values():
                worker.member.receive(answer, self._now_ms)
        for fence in decision.fences:
            self._coordinator.fenced(fence.incarnation, self._now_ms)
        if decision.read_ends:
            ends = dict.fromkeys(decision.read_ends, _RECORDS_AHEAD)
            self._coordinator.ends_read(ends, self._now_ms, self._now_ms)
        request = decision.assign
        if request is not None:
            assignor = resolve(request.assignor)
            answered, took_ms = _timed(lambda: assignor.assign(request))
            self.costs.assign_ms.append(took_ms)
            self._coordinator.assigned(request, answered, "", self._now_ms)

    def _decide(self) -> Decision:
        decision, took_ms = _timed(lambda: self._coordinator.decide(self._now_ms))
        if decision.records or decision.assign or decision.fences:
            self.costs.decide_ms.append(took_ms)
        if decision.records:
            self._append(decision.records)
            self._coordinator.committed(decision.records, self._now_ms)
        return decision

    def _append(self, records: Sequence[AnyRecord]) -> None:
        """Write one transaction, and apply it once, as every process would."""
        values = [encode_record(record) for record in records]
        self.costs.log_bytes += sum(map(len, values)) + sum(map(len, record_keys(records)))
        self.costs.log_records += len(values)
        self._log_end += len(values) + 1
        before = self._group
        self._group, took_ms = _timed(lambda: _read(values, before))
        self.costs.apply_ms.append(took_ms)


def _read(values: Sequence[bytes], group: Group) -> Group:
    found = [decode_record(value) for value in values]
    return replay([each for each in found if each is not None], group)


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    begun_s = time.perf_counter()
    result = work()
    return result, (time.perf_counter() - begun_s) * 1000


def _input_key(task: str) -> str:
    return f"orders-{TaskId.parse(task).partition}"


def _changelog_key(task: str) -> str:
    return f"{APP}-counts-changelog-{TaskId.parse(task).partition}"


__all__ = ["Costs", "SimulatedGroup"]
