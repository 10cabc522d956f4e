"""Rest of the simulated application: an operator whose steps come late, and are made once more.

Decisions and records are those of `tidewheel group rest`. Each step happens at one moment.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tests.simulation.host import Host
from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.model.leading import LEADER_ID
from tests.simulation.model.model_broker import TransactionState
from tests.simulation.model.world import World
from tests.simulation.workload import APP, TOPIC_ID, Workload
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.leader.resting import (
    end_rest,
    hold_at_rest,
    is_held_at_rest,
    order_rest,
)
from tidewheel.rebalance.model import TaskId, TopicPartition, position_key
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.messages import AnyMessage, Beat
from tidewheel.rebalance.protocol.records import AnyRecord
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.group.rest_plan import RestFacts, RestStep, plan_rest, unprocessed
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

#: Interval of the operator's looks, and the longest time between two runs of the command.
_LOOK_MS = 200
_LATE_MS = 1_500
#: Time after the last look in which bounds of time do not count.
_DISTURBED_MS = 3_000


class Lifetime(Protocol):
    world: World
    log: LogInvariants
    workload: Workload
    hosts: list[Host]
    state_log: str

    def fold(self) -> tuple[Group, int]: ...

    def disturb(self, length_ms: int) -> None: ...

    def state_records(self, records: Sequence[AnyRecord]) -> list[tuple[str, Any, Any]]: ...

    def state_marked(self) -> None: ...


class Resting:
    """The operator of one lifetime.

    Attributes:
        is_active: True from the order to rest until its end.
        cuts: Committed offsets by input, each time that the application was at rest.
        levelled: Number of orders to make shards level.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self.lifetime = lifetime
        self.world = lifetime.world
        self.is_active = False
        self.cuts: list[dict[str, int]] = []
        self.levelled = 0
        self._length_ms = 0
        self._statuses: dict[str, dict[TaskId, TaskStatus]] = {}

    def begin(self, length_ms: int) -> None:
        if not self.is_active:
            self.is_active, self._length_ms = True, length_ms
            self._look()

    def hear(self, message: AnyMessage) -> None:
        if isinstance(message, Beat):
            rows = self._statuses.setdefault(message.incarnation, {})
            if message.full:
                rows.clear()
            rows |= {TaskId.parse(row.task): row for row in message.tasks if row.role == "active"}

    def _look(self) -> None:
        self.lifetime.disturb(_DISTURBED_MS)
        group, _ = self.lifetime.fold()
        facts = self._facts(group)
        plan = plan_rest(facts)
        match plan.step:
            case RestStep.DONE:
                self._at_rest()
                return
            case RestStep.ORDER | RestStep.LEVEL if not group.about.held:
                until = {position_key(at): offset for at, offset in plan.until.items()}
                self.levelled += bool(until)
                self._write(order_rest(group, until, Claimant(leader="rest")))
            case RestStep.HOLD:
                self._hold(group)
            case _:
                pass
        late_ms = _LATE_MS if self.world.chance.random() < 0.2 else 0
        self.world.after(_LOOK_MS + int(self.world.chance.uniform(0, late_ms)), self._look)

    def _hold(self, group: Group) -> None:
        broker, now_ms = self.world.broker, self.world.wall_ms()
        ids = [each for record in group.members.values() for each in record.transactional_ids]
        for each in ids:
            broker.init(each, now_ms)
        self.lifetime.log.evidence.fenced_ids.update(ids)
        for names in self.lifetime.workload.names.values():
            for transaction in list(broker.pending.get(names.offset_key, ())):
                if transaction.state is not TransactionState.OPEN:
                    broker.complete(transaction, now_ms)
        left = unprocessed(self._facts(group))
        if left:
            self.world.trace_event(f"not at rest after the fences: {left}")
            return
        self.lifetime.log.release_all()
        self._write(hold_at_rest(group, APP, Claimant(leader="rest")))

    def _at_rest(self) -> None:
        cut = self._committed()
        self.world.trace_event("the application is at rest")
        by_partition: dict[TopicPartition, set[int]] = {}
        for names in self.lifetime.workload.names.values():
            by_partition.setdefault(names.input.whole, set()).add(cut.get(names.offset_key, 0))
        for partition, offsets in by_partition.items():
            if len(offsets) > 1:
                self.world.fail(f"rest: shards of {partition} are at {sorted(offsets)}")
        self.cuts.append(cut)
        self.world.after(self._length_ms, self._resume, cut)
        self._keep_quiet()

    def _keep_quiet(self) -> None:
        """Suspend time bounds while nothing runs, and let the group elect leaders."""
        if self.is_active:
            self.lifetime.disturb(_DISTURBED_MS)
            self.world.after(1_000, self._keep_quiet)

    def _resume(self, cut: dict[str, int]) -> None:
        if self._committed() != cut:
            self.world.fail(f"rest: {cut} was the cut, {self._committed()} is committed")
        group, _ = self.lifetime.fold()
        if not is_held_at_rest(group):
            self.world.fail(f"rest: the hold is gone: {group.about}")
        self._write(end_rest(group, Claimant(leader="resume")))
        self.world.trace_event("the application continues")
        self.is_active = False

    def _facts(self, group: Group) -> RestFacts:
        committed: dict[TopicPartition, CommittedOffset] = {}
        for names in self.lifetime.workload.names.values():
            found = self.world.broker.offsets.get(names.offset_key)
            offset = 0 if found is None else found.offset  # real tasks commit when they start
            progress = Progress(
                task_epoch=1,
                transactional_id="",
                topic_id=TOPIC_ID,
                topology_hash=bytes(8),
                vector=Vector.at(offset, names.task.shard.first_hash, names.task.shard.end_hash),
                shards=names.task.shard.of,
            )
            committed[names.input] = CommittedOffset(offset, progress.encode())
            committed.setdefault(names.input.whole, committed[names.input])
        live = tuple(host.settings.member for host in self.lifetime.hosts if host.worker.up)
        return RestFacts(
            application_id=APP,
            group=group,
            live_members=live,
            statuses=self._statuses,
            committed=committed,
        )

    def _committed(self) -> dict[str, int]:
        return {key: each.offset for key, each in self.world.broker.offsets.items()}

    def _write(self, records: Sequence[AnyRecord]) -> None:
        broker, now_ms = self.world.broker, self.world.wall_ms()
        self.world.trace_event("log", *(type(each).__name__ for each in records))
        epoch = broker.init(LEADER_ID, now_ms)
        broker.produce(LEADER_ID, epoch, self.lifetime.state_records(records), now_ms)
        transaction = broker.end(LEADER_ID, epoch, commit=True)
        assert transaction is not None, "its own"
        broker.complete(transaction, now_ms)
        self.lifetime.state_marked()
