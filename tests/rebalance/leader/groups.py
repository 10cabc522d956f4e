"""Whole groups in one thread: runtimes on in-memory control topics with a fake clock."""

from dataclasses import dataclass, field

from tests.fakes.clock import FakeClock
from tests.fakes.group_log import (
    FakeControlTopics,
    FakeGroupAdmin,
    FakeLine,
    InlineExecutor,
)
from tidewheel.rebalance.assignors.builtin import resolve
from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.protocol.messages import AnyMessage, JoinGroup, SeenTask
from tidewheel.rebalance.protocol.orders import (
    CopyReady,
    EndIncarnation,
    KeepCopy,
    ReleaseTask,
    RunTask,
    TaskReleased,
    TaskRunning,
    Welcome,
)
from tidewheel.rebalance.runtime.leadership import Executors, LeaderPorts
from tidewheel.rebalance.runtime.runtime import GroupRuntime, RuntimeSettings

APP = "app"
HEARTBEAT_MS = 100
SESSION_MS = 600
STEP_MS = 5


@dataclass
class Worker:
    """A worker that obeys immediately and records its orders."""

    incarnation: str
    line: FakeLine = field(default_factory=FakeLine)
    seen: int = 0
    running: set[str] = field(default_factory=set)
    answers: bool = True
    #: Reason of its incarnation's end, or "".
    ended: str = ""


class Process:
    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self.name = name
        self.admin = FakeGroupAdmin()
        self.leader = InlineExecutor()
        self.fences = InlineExecutor()
        self.asks = InlineExecutor()
        self.workers: list[Worker] = []
        self.runtime = GroupRuntime(
            world.topics.log,
            ports=LeaderPorts(
                fencer=self.admin,
                ends=self.admin,
                assign=lambda request: resolve(request.assignor).assign(request),
                executors=Executors(leader=self.leader, fences=self.fences, asks=self.asks),
            ),
            settings=RuntimeSettings(
                app=APP,
                process_id=name,
                heartbeat_interval_ms=HEARTBEAT_MS,
                session_timeout_ms=SESSION_MS,
                coordinator=CoordinatorSettings(
                    heartbeat_interval_ms=HEARTBEAT_MS, first_join_quiet_ms=50, settling_ms=200
                ),
            ),
            clock=world.clock,
            was_used=self.admin.was_used,
        )

    def start_worker(
        self,
        member: str,
        *,
        tasks: int = 4,
        welcomed: bool = False,
        incarnation: str = "",
        max_call_ms: int | None = None,
    ) -> Worker:
        worker = Worker(incarnation or f"{member}-1")
        join = JoinGroup(
            app=APP,
            member=member,
            incarnation=worker.incarnation,
            transactional_ids=(f"{APP}-{worker.incarnation}-0",),
            host="h",
            pid=1,
            process_id=self.name,
            tasks=tuple(SeenTask(task=f"0_{each}") for each in range(tasks)),
            session_timeout_ms=SESSION_MS,
        )
        self.runtime.add(
            join,
            worker.line,
            heartbeat_interval_ms=HEARTBEAT_MS,
            hang_timeout_ms=400,
            max_call_ms=max_call_ms,
            welcomed=welcomed,
        )
        self.workers.append(worker)
        return worker

    def run_once(self) -> None:
        self.runtime.run_once()
        for worker in self.workers:
            self._work(worker)

    def _work(self, worker: Worker) -> None:
        orders, worker.seen = worker.line.orders[worker.seen :], len(worker.line.orders)
        for order in orders:
            if isinstance(order, EndIncarnation):
                worker.ended = order.reason
                worker.running.clear()
            if not worker.answers:
                continue
            match order:
                case RunTask():
                    worker.running.add(order.task)
                    self.runtime.report(
                        worker.incarnation,
                        TaskRunning(task=order.task, task_epoch=order.task_epoch, input={}),
                    )
                case ReleaseTask():
                    worker.running.discard(order.task)
                    self.runtime.report(
                        worker.incarnation,
                        TaskReleased(
                            task=order.task, task_epoch=order.task_epoch, input={}, changelog_end={}
                        ),
                    )
                case KeepCopy():
                    self.runtime.report(
                        worker.incarnation,
                        CopyReady(
                            task=order.task,
                            learn_epoch=order.learn_epoch,
                            store_uuid="u",
                            positions={},
                            ends={},
                        ),
                    )
                case _:
                    pass


class World:
    def __init__(self) -> None:
        self.topics = FakeControlTopics(APP)
        self.clock = FakeClock(1_000_000)
        self.processes: list[Process] = []

    def start(self, name: str) -> Process:
        process = Process(self, name)
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Stop a program without any message."""
        self.processes.remove(process)

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // STEP_MS):
            for process in self.processes:
                process.run_once()
            self.clock.advance(STEP_MS)

    def leaders(self) -> list[Process]:
        return [each for each in self.processes if each.runtime.is_leading]

    def messages(self, kind: type[AnyMessage]) -> list[AnyMessage]:
        return [each for each in self.topics.messages() if isinstance(each, kind)]


def welcomed(worker: Worker) -> bool:
    return any(isinstance(order, Welcome) for order in worker.line.orders)
