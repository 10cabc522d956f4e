"""Deleted control topics (H24): members hold, and an operator recovers the group (24).

The recovery is `streams/group/recovery.py`, executed at one moment on the model broker. `Host`
models the hold as `rebalance/runtime/runtime.py` does.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, cast

from tests.simulation.host import Host
from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.model.leading import LEADER_ID
from tests.simulation.model.model_broker import TransactionState
from tests.simulation.model.world import Process, World
from tests.simulation.workload import (
    APP,
    ASSIGNOR,
    CHANGELOG,
    TOPOLOGY_HASH,
    Workload,
    offset_key_of,
)
from tidewheel.rebalance.model import TaskShape, TopicPartition
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.group import recovery
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import committed_inputs
from tidewheel.tasks.key_ranges.progress_vector import Progress


class Lifetime(Protocol):
    world: World
    log: LogInvariants
    workload: Workload
    hosts: list[Host]
    state_log: str

    def disturb(self, length_ms: int) -> None: ...

    def forget_log(self) -> None: ...

    def state_marked(self) -> None: ...


class SafeHold:
    """Control topics of one lifetime."""

    def __init__(self, lifetime: Lifetime) -> None:
        self.lifetime = lifetime
        self.world = lifetime.world
        self.life = 1  # Generation of the topics; 0 while deleted.
        self._lives = 1

    def lose(self, length_ms: int) -> None:
        """Delete the topics; recover later."""
        if not self.life:
            return
        self.world.trace_event("the control topics are deleted")
        self.life = 0
        self.world.broker.delete(self.lifetime.state_log, self.world.wall_ms())
        self.lifetime.disturb(length_ms + 10_000)
        for host in self.lifetime.hosts:
            delay_ms = int(self.world.chance.uniform(50, 1_500))
            self.world.post(host, delay_ms, host.check_control_topics)
        self.world.after(length_ms, self._recover)

    def check_input(self, worker: Process) -> None:
        """Invariant 24: without a lease, held members take no input."""
        for host in self.lifetime.hosts:
            if host.worker is worker and host.held_ms is not None:
                settings = host.settings
                lease_ms = settings.session_timeout_ms - settings.heartbeat_interval_ms
                held_ms = self.world.now - host.held_ms
                if held_ms > lease_ms:
                    self.world.fail(
                        f"invariant 24: {worker.name} takes input {held_ms} ms after SAFE_HOLD"
                    )

    def _recover(self) -> None:
        cluster: Any = _Operator(self.lifetime)
        workload = self.lifetime.workload
        names = list(workload.names.values())
        facts = recovery.RecoveryFacts(
            application_id=APP,
            tasks={
                each.task: TaskShape(
                    stateful=each.stateful, changelogs=(CHANGELOG,) if each.stateful else ()
                )
                for each in names
            },
            inputs={each.input: each.task for each in names},
            committed=committed_inputs(cluster, APP, [each.input for each in names], stable=True),
            partitions=workload.partitions(),
            program=recovery.GroupProgram(
                topology_hash=TOPOLOGY_HASH,
                assignor=ASSIGNOR,
                shards=cast("ShardCount", workload.shards),
            ),
        )
        plan = recovery.plan_recovery(facts)
        assert plan.needed, "whatever was committed, members hold still"
        self.life = self._lives = self._lives + 1
        self.world.broker.create(self.lifetime.state_log)
        epoch = recovery.execute_recovery(
            plan, facts, cluster, cluster, read_group=Group, replication_factor=1
        )
        self.world.trace_event(f"the group was set up again, with epoch {epoch}")
        self.lifetime.state_marked()


class _Operator:
    """The cluster as seen by a recovery: its `Admin` and `LogWriter`."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._world = lifetime.world
        self._broker = lifetime.world.broker
        self._epoch = -1

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"no recovery asks for {name}")

    def create_topics(self, topics: Sequence[Any]) -> None: ...

    def fence(self, transactional_ids: Sequence[str]) -> None:
        for each in transactional_ids:
            self._broker.init(each, self._world.wall_ms())
        self._lifetime.log.evidence.fenced_ids.update(transactional_ids)

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        assert stable, "what is pending counts"
        found: dict[TopicPartition, CommittedOffset] = {}
        for partition in partitions:
            key = offset_key_of(application_id, partition)
            self._decide(key)
            offset = self._broker.committed(key)
            if offset is not None:
                progress = offset.metadata
                text = progress.encode() if isinstance(progress, Progress) else ""
                found[partition] = CommittedOffset(offset.offset, text)
        return found

    def _decide(self, partition: str) -> None:
        """Finish pending transactions: write markers, or time out."""
        for transaction in list(self._broker.pending.get(partition, ())):
            if transaction.state is TransactionState.OPEN:
                self._broker.init(transaction.transactional_id, self._world.wall_ms())
            else:
                self._broker.complete(transaction, self._world.wall_ms())

    def describe_topics(self, names: Sequence[str]) -> Mapping[str, Any]:
        assert set(names) == {state_topic(APP), inbox_topic(APP)}
        return {name: SimpleNamespace(topic_id=bytes(16)) for name in names}

    def init(self) -> None:
        self._epoch = self._broker.init(LEADER_ID, self._world.wall_ms())

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        offsets = self._broker.offsets.values()
        epochs = [each.metadata.task_epoch for each in offsets if each.metadata is not None]
        self._lifetime.log.restart_after_loss(max(epochs, default=0))
        self._lifetime.forget_log()
        log = self._lifetime.state_log
        rows = [(log, key, value) for key, value in zip(keys, values, strict=True)]
        self._broker.produce(LEADER_ID, self._epoch, rows, self._world.wall_ms())
        transaction = self._broker.end(LEADER_ID, self._epoch, commit=True)
        assert transaction is not None, "its own"
        self._broker.complete(transaction, self._world.wall_ms())
