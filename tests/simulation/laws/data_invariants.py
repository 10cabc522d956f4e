"""Data invariants (11-15, 23): outputs, offsets, changelogs, stores.

Expected outputs are computed from the input alone. Each decided transaction must continue them:
every record once, in order, with the right count and matching offsets.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.laws.invariants import LogInvariants
from tests.simulation.model.model_broker import (
    GroupOffset,
    ModelBroker,
    Transaction,
    TransactionState,
)
from tests.simulation.model.model_tasks import ActiveTask, Disk
from tests.simulation.model.world import World
from tests.simulation.workload import TaskNames, Workload, counted, kept, key_of
from tidewheel.tasks.key_ranges.progress_vector import Progress


@dataclass(slots=True)
class Expected:
    """Committed state of one task, with its next input offset."""

    next_offset: int = 0
    store: dict[int, int] = field(default_factory=dict)
    committed_at_ms: int = 0


class DataInvariants:
    def __init__(
        self, world: World, workload: Workload, broker: ModelBroker, log: LogInvariants
    ) -> None:
        self.world = world
        self.workload = workload
        self.broker = broker
        self.log = log
        self.expected: dict[str, Expected] = {}
        self.commits = 0
        self._task_of_input: dict[str, str] = {}
        self._task_of_output: dict[str, str] = {}

    def fail(self, number: int, what: str) -> None:
        self.world.fail(f"invariant {number}: {what}")

    def of(self, task: str) -> Expected:
        found = self.expected.get(task)
        if found is None:
            names = self.workload.names[task]
            found = self.expected[task] = Expected()
            self._task_of_input[names.offset_key] = task
            self._task_of_output[names.output_key] = task
        return found

    def begin(self) -> None:
        for names in self.workload.names.values():
            expected = self.of(names.text)
            log = names.changelog_key
            for offset in range(self.workload.history):
                key = key_of(names.task, offset)
                if not names.is_own(key):
                    continue
                value = self._advance(names, expected, offset, key)
                if names.stateful:
                    self.broker.append(log, key, value, self.world.wall_ms())
            if self.workload.history:
                expected.next_offset = self.workload.history
                self.broker.offsets[names.offset_key] = GroupOffset(expected.next_offset, None)

    def _advance(self, names: TaskNames, expected: Expected, offset: int, key: int) -> int | None:
        count = counted(expected.store, {}, key)
        value = kept(count)
        if names.stateful:
            if value is None:
                expected.store.pop(key, None)
            else:
                expected.store[key] = value
        expected.next_offset = offset + 1
        return value

    # Transactions of workers.

    def decided(self, transaction: Transaction) -> None:
        if not transaction.committed:
            return
        self.commits += 1
        incarnation = transaction.transactional_id.removeprefix("shop-").rpartition("-")[0]
        for partition in transaction.offsets:
            self.of_input(partition)
        for log, _, value in transaction.records:
            task = self._task_of_output.get(log)
            if task is not None:
                self._output(task, value)
        seen = set()
        for partition, offset in transaction.offsets.items():
            task = self._task_of_input[partition]
            seen.add(task)
            self._offset(task, offset, incarnation)
        for log, _, _ in transaction.records:
            task = self._task_of_output.get(log)
            if task is not None and task not in seen:
                self.fail(
                    1, f"outputs of {task} are committed without their offsets: a torn commit"
                )

    def of_input(self, partition: str) -> str:
        task = self._task_of_input.get(partition)
        if task is None:
            names = self.workload.names.values()
            (task,) = (each.text for each in names if each.offset_key == partition)
            self.of(task)
        return task

    def _output(self, task: str, output: Any) -> None:
        key, count, offset = output
        names, expected = self.workload.names[task], self.expected[task]
        self._pass_foreign(names, expected, offset)
        if offset != expected.next_offset:
            kind = "is processed again" if offset < expected.next_offset else "comes too early"
            self.fail(
                13, f"record {offset} of {task} {kind}: {expected.next_offset} is the next one"
            )
        right = counted(expected.store, {}, key) if names.stateful else 0
        if (key, count) != (key_of(names.task, offset), right):
            self.fail(15, f"record {offset} of {task} gives key {key} count {count}, not {right}")
        self._advance(names, expected, offset, key)

    @staticmethod
    def _pass_foreign(names: TaskNames, expected: Expected, until: int) -> None:
        """Pass the records of other shards."""
        while expected.next_offset < until:
            if names.is_own(key_of(names.task, expected.next_offset)):
                return
            expected.next_offset += 1

    def _offset(self, task: str, offset: GroupOffset, incarnation: str) -> None:
        names, expected = self.workload.names[task], self.expected[task]
        committed = self.broker.offsets.get(names.offset_key)
        self._pass_foreign(names, expected, offset.offset)
        if committed is not None and offset.offset < committed.offset:
            self.fail(
                11, f"the offset of {task} goes back from {committed.offset} to {offset.offset}"
            )
        if offset.offset != expected.next_offset:
            self.fail(
                12,
                f"{task} commits offset {offset.offset}, its outputs end at {expected.next_offset}",
            )
        progress: Progress = offset.metadata
        self.log.committed(task, progress.task_epoch, incarnation)
        expected.committed_at_ms = self.world.now

    # Stores.

    def opened(self, incarnation: str, active: ActiveTask) -> None:
        """Check a store before its owner's first record.

        An owner that is fenced just then commits nothing and does no harm.
        """
        task = active.names.text
        expected = self.of(task)
        if incarnation not in self.log.live():
            return
        if active.position != expected.next_offset:
            self.fail(
                12,
                f"{incarnation} begins {task} at {active.position}, {expected.next_offset} is committed",
            )
        said = active.order.input.get(active.names.input_key)
        if said is not None and said > active.position:
            self.fail(12, f"{task} was left at {said} and begins at {active.position}")
        if active.names.stateful and active.disk.store != expected.store:
            self.fail(
                15,
                f"{incarnation} begins {task} with {active.disk.store}, not {expected.store} ({active.disk.position})",
            )

    def applied(self, incarnation: str, names: TaskNames, disk: Disk) -> None:
        """A store must not be ahead of decided transactions."""
        log = self.broker.log(names.changelog_key)
        if disk.offset > log.end:
            self.fail(14, f"{names.text} of {incarnation} is at {disk.offset}, beyond {log.end}")
        for transaction, first in log.open.items():
            own = any(
                name == names.changelog_key and names.is_own(key)
                for name, key, _ in transaction.records
            )
            if own and transaction.state is TransactionState.OPEN and first < disk.offset:
                self.fail(
                    14,
                    f"{names.text} of {incarnation} is at {disk.offset}, a transaction is open from {first}",
                )

    def same_state(self, incarnation: str, names: TaskNames, disk: Disk) -> None:
        """At the end, a fully restored store equals the expected state."""
        log = self.broker.log(names.changelog_key)
        if disk.offset >= log.last_stable_offset and disk.store != self.of(names.text).store:
            self.fail(
                15,
                f"{names.text} of {incarnation} has {disk.store}, not {self.of(names.text).store}",
            )

    def behind(self) -> str:
        """Return a task with unprocessed input, or "" (invariant 23)."""
        now = self.world.now
        for task in self.workload.names:
            end = self.workload.input_end(task, now)
            if self.of(task).next_offset < end:
                return f"{task} is processed up to {self.of(task).next_offset} of {end}"
        return ""
