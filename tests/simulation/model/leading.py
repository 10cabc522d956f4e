"""The leader around the real `Coordinator`: claims, writes, fences, reads, assignor calls.

Order of a claim (H1): new producer of the leader's id, log read to its end, claim of the next
epoch, snapshot. A failed or unknown write ends the term.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

from tests.simulation.model.model_broker import BrokerError
from tests.simulation.model.world import Process, RequestTimedOut, World
from tests.simulation.workload import APP
from tidewheel.rebalance.assignors.task_assignor import AssignmentRequest
from tidewheel.rebalance.leader.coordinator import Coordinator
from tidewheel.rebalance.leader.decision import CoordinatorSettings, Decision, Fence
from tidewheel.rebalance.protocol import group as fold_rules
from tidewheel.rebalance.protocol.group import Group, apply, snapshot
from tidewheel.rebalance.protocol.messages import AnyMessage
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim

LEADER_ID = f"{APP}-leader"


class Control(Protocol):
    world: World
    settings: CoordinatorSettings
    state_log: str
    together_ms: int

    def fold(self) -> tuple[Group, int]: ...

    def publish(self, sender: Process, message: AnyMessage) -> None: ...

    def state_records(
        self, records: Sequence[AnyRecord], writer: Process
    ) -> list[tuple[str, Any, Any]]:
        """Return records as a process writes them to the group log."""

    def state_marked(self) -> None: ...

    def assign(self, request: AssignmentRequest) -> tuple[Any, str]:
        """Return the assignor's answer, or the reason why it failed."""

    def ends_asked(self, keys: Sequence[str]) -> dict[str, int]:
        """Return last stable offsets."""

    def fence_done(self, leader: str, fence: Fence) -> None: ...

    def decides(self, leading: "Leading") -> None: ...

    def takes_over(self, leading: "Leading") -> None: ...

    def observe(
        self, coordinator: Coordinator, message: AnyMessage, writing: Sequence[AnyRecord]
    ) -> None: ...

    def fence_begun(self, leader: str, count: int) -> None: ...


class Leading:
    """One term."""

    def __init__(
        self, process: Process, control: Control, process_id: str, *, over: Callable[[], None]
    ) -> None:
        self.process = process
        self.control = control
        self.world = control.world
        self.process_id = process_id
        self.over = over
        self.epoch = -1
        self.leader_epoch = 0
        self.coordinator: Coordinator | None = None
        self.ended = False
        self._heard: list[AnyMessage] = []
        self._fencing: set[str] = set()
        self._writing = False
        #: Records of the decision being written.
        self._records: Sequence[AnyRecord] = ()
        self._wake_at = -1

    # The claim.

    def claim(self) -> None:
        self.world.trace_event(f"{self.process_id} wants to lead")
        broker = self.world.broker
        self._ask(lambda: broker.init(LEADER_ID, self.world.wall_ms()), self._inited)

    def _inited(self, epoch: int) -> None:
        self.epoch = epoch
        self._ask(self.control.fold, self._read)

    def _read(self, answer: tuple[Group, int]) -> None:
        group, _ = answer
        self.leader_epoch = group.leader_epoch + 1
        claim = LeaderClaim(
            leader_epoch=self.leader_epoch,
            leader=self.process_id,
            previous_epoch=group.leader_epoch,
        )
        claimed = apply(group, claim)
        records = [claim, *snapshot(claimed, self.leader_epoch)]
        self._write(records, lambda: self._leads(claimed))

    def _leads(self, group: Group) -> None:
        self.world.trace_event(f"{self.process_id} leads with epoch {self.leader_epoch}")
        self.coordinator = Coordinator(
            group,
            app=APP,
            leader=self.process_id,
            settings=self.control.settings,
            now_ms=self.world.now,
        )
        self.control.takes_over(self)
        heard, self._heard = self._heard, []
        self.observe(heard)
        self._soon()

    def end(self, why: str) -> None:
        if not self.ended:
            self.world.trace_event(f"{self.process_id} leads no more: {why}")
            self.ended, self.coordinator = True, None
            self.over()

    def resign(self) -> None:
        if self.coordinator is not None:
            self.control.publish(self.process, self.coordinator.resign(self.world.now))
        self.end("it resigns")

    # Requests.

    def _ask(
        self, action: Callable[[], Any], then: Callable[[Any], None], *, takes_ms: int = 0
    ) -> None:
        def answered(answer: Any) -> None:
            if self.ended:
                return
            if isinstance(answer, BrokerError | RequestTimedOut):
                self.end(str(answer) or "no answer")
            else:
                then(answer)

        self.world.request(self.process, action, answered, gives_up=True, takes_ms=takes_ms)

    def _write(self, records: Sequence[AnyRecord], then: Callable[[], None]) -> None:
        self._append(self.control.state_records(records, self.process), then)

    def _append(self, written: list[tuple[str, Any, Any]], then: Callable[[], None]) -> None:
        broker, world = self.world.broker, self.world

        def produce() -> None:
            if broker.busy(LEADER_ID):
                broker.complete(broker.transactions[LEADER_ID], world.wall_ms())
            broker.produce(LEADER_ID, self.epoch, written, world.wall_ms())

        def decide() -> None:
            transaction = broker.end(LEADER_ID, self.epoch, commit=True)
            if transaction is not None:
                broker.complete(transaction, world.wall_ms())
                self.control.state_marked()

        self._ask(produce, lambda _: self._ask(decide, lambda _: then()))

    def forget(self, keys: Sequence[str]) -> None:
        if self._writing or not keys:
            return
        self._writing = True

        def done() -> None:
            self._writing = False
            self._soon()

        self._append([(self.control.state_log, key.encode(), None) for key in keys], done)

    # Leading.

    def observe(self, messages: Sequence[AnyMessage]) -> None:
        if self.coordinator is None:
            self._heard += messages
            return
        for message in messages:
            self.control.observe(self.coordinator, message, self._records)
        self._soon()

    def _soon(self) -> None:
        self._wake(self.world.now + self.control.together_ms)

    def _wake(self, when_ms: int) -> None:
        if self._wake_at < 0 or when_ms < self._wake_at:
            self._wake_at = when_ms
            self.world.post(self.process, when_ms - self.world.now, self._woken, when_ms)

    def _woken(self, when_ms: int) -> None:
        if when_ms == self._wake_at and not self.ended:
            self._wake_at = -1
            self._decide()

    def _decide(self) -> None:
        if self._writing or self.coordinator is None:
            return
        self.control.decides(self)
        decision = self.coordinator.decide(self.world.now)
        if decision.records:
            self._writing, self._records = True, decision.records
            self._write(decision.records, lambda: self._written(decision))
        else:
            self._carry_out(decision)

    def _written(self, decision: Decision) -> None:
        self._writing, self._records = False, ()
        if self.coordinator is not None:
            self.coordinator.committed(decision.records, self.world.now)
            self.coordinator.state_offset = self.world.broker.log(self.control.state_log).end
            self._carry_out(decision)
            self._soon()

    def _carry_out(self, decision: Decision) -> None:
        for message in decision.messages:
            self.control.publish(self.process, message)
        for fence in decision.fences:
            self._fence(fence)
        if decision.read_ends:
            self._read_ends(decision.read_ends)
        if decision.assign is not None and self.coordinator is not None:
            answer, error = self.control.assign(decision.assign)
            self.coordinator.assigned(decision.assign, answer, error, self.world.now)
            self._soon()
        self._wake(max(decision.wake_ms, self.world.now + 1))

    def _fence(self, fence: Fence) -> None:
        broker, world = self.world.broker, self.world
        if fence.incarnation in self._fencing:
            return
        self._fencing.add(fence.incarnation)
        self.control.fence_begun(self.process_id, len(self._fencing))

        def take_over() -> None:
            for transactional_id in fence.transactional_ids:
                broker.init(transactional_id, world.wall_ms())
            self.control.fence_done(self.process_id, fence)

        def done(_: Any) -> None:
            self._fencing.discard(fence.incarnation)
            if self.coordinator is not None:
                self.coordinator.fenced(fence.incarnation, world.now)
                self._soon()

        self._ask(take_over, done, takes_ms=int(world.chance.uniform(50, 600)))

    def _read_ends(self, keys: Sequence[str]) -> None:
        asked_ms = self.world.now

        def done(ends: dict[str, int]) -> None:
            if self.coordinator is not None:
                self.coordinator.ends_read(ends, asked_ms, self.world.now)
                self._soon()

        self._ask(lambda: self.control.ends_asked(keys), done)


def twin(coordinator: Coordinator) -> Coordinator:
    """Return an independent coordinator with the same knowledge; immutable parts are shared."""
    seen = coordinator._observations
    frozen: list[object] = [coordinator.group, coordinator._settings, coordinator._refiner]
    frozen.append(fold_rules._NOTHING)  # a mapping proxy, which can't be copied
    for heard in seen.members.values():
        frozen += [heard.join, *heard.rows.values()]
    frozen += [each for copies in seen.announced.values() for each in copies.values()]
    return deepcopy(coordinator, {id(each): each for each in frozen})
