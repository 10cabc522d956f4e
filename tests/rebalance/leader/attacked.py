"""A group whose topics an attacker can write."""

from collections import Counter
from typing import Any

from tests.rebalance.leader.round_table import RoundTable, stateful
from tidewheel.rebalance.assignors.builtin import resolve
from tidewheel.rebalance.leader.decision import Decision
from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.protocol.group import snapshot
from tidewheel.rebalance.protocol.messages import LeaderBeat, SeenTask, decode_message
from tidewheel.rebalance.protocol.orders import MayClose
from tidewheel.rebalance.protocol.records import decode_record

#: Upper bound of a disturbance: a ghost's session and the wait for its return.
LIMIT_MS = 300_000


class Attacked(RoundTable):
    now_ms: int

    def __init__(self, *given: Any) -> None:
        #: Alarms from the leaders' beats.
        self.alarms: set[str] = set()
        super().__init__(*given)

    def forge(self, data: bytes) -> None:
        """Write to the log; the current leader decides without it."""
        record = decode_record(data)
        if record is not None:
            self._append(record)

    def receive_raw(self, data: bytes) -> None:
        message = decode_message(data)
        if message is not None:
            self.receive(message)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self._members_turn()
            self._leader_turn()
            self.now_ms += 500

    def restate(self) -> None:
        """Write the snapshot of a leader that found a foreign record."""
        for record in snapshot(self.coordinator.group, self.coordinator.group.leader_epoch):
            self._append(record)

    def _leader_turn(self) -> bool:
        decision: Decision = self.coordinator.decide(self.now_ms)
        for record in decision.records:
            self._append(record)
        self.coordinator.committed(decision.records, self.now_ms)
        self._carry_out(decision)
        return bool(decision.records)

    def _carry_out(self, decision: Decision) -> None:
        for message in decision.messages:
            if isinstance(message, LeaderBeat):
                self.alarms.update(message.alarms)
            self.receive(message)
        for fence in decision.fences:
            self.coordinator.fenced(fence.incarnation, self.now_ms)
        if decision.read_ends:
            ends = {key: self.ends.get(key, 0) for key in decision.read_ends}
            self.coordinator.ends_read(ends, self.now_ms, self.now_ms)
        if decision.assign is not None:
            answer = resolve("sticky").assign(decision.assign)
            self.coordinator.assigned(decision.assign, answer, "", self.now_ms)


class Supervised(Attacked):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lives = Counter({"a": 1, "b": 1})
        self.tasks: tuple[SeenTask, ...] = stateful(3)

    def until_settled(self) -> None:
        end_ms = self.now_ms + LIMIT_MS
        while not self.is_settled():
            assert self.now_ms < end_ms, (self.phases(), self.owners(), self.group.members)
            self._restart()
            self.turns(2)

    def is_settled(self) -> bool:
        group = self.coordinator.group
        if (
            group != self.group
            or group.live().keys() != self.workers.keys() != group.members.keys()
        ):
            return False
        running = {
            each
            for incarnation, worker in self.workers.items()
            for each, epoch in worker.running.items()
            if (state := group.states.get(TaskId.parse(each))) is not None
            and (state.owner, state.task_epoch) == (incarnation, epoch)
        }
        others = group.states.keys() - group.tasks.keys()
        return (
            {str(each) for each in group.tasks} == running == {each.task for each in self.tasks}
            and {group.phase_of(each) for each in group.tasks} == {TaskPhase.RUNNING}
            and not any(group.states[each].owner for each in others)
        )

    def _restart(self) -> None:
        for name in "ab":
            own = [each for each in self.workers if each.startswith(f"{name}-")]
            for incarnation in own:
                worker = self.workers[incarnation]
                if worker.ended is not None or any(
                    isinstance(each, MayClose) for each in worker.told
                ):
                    del self.workers[incarnation]
                    own.remove(incarnation)
            if not own:
                self.lives[name] += 1
                self.start(name, self.lives[name], tasks=self.tasks, partitions={"orders": 3})
