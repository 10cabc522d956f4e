"""Batch task: runs one task without a broker; commits write its stores and nothing else."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.bulk_restore.content import StoredRow, stored_rows
from tidewheel.state_stores.layout.unfold import ChangelogColumns, unfold
from tidewheel.state_stores.spec import StoreKind
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.task import Task

#: Raw records of each input, in order.
Inputs = Mapping[TopicPartition, Iterator[SourceRecords]]

_LIMIT: Final = 10_000
_TOPIC_ID: Final = bytes(16)


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Positions and times of a task that has processed its inputs."""

    next_offsets: dict[TopicPartition, int]
    partition_times_ms: dict[TopicPartition, int]
    operator_times_ms: tuple[int, ...]


class BatchTask:
    """A task without a broker.

    Attributes:
        collector: Stages the outputs of this task, and of others only between their commits.
    """

    def __init__(
        self,
        task: Task,
        collector: OutputCollector,
        policy: ErrorPolicy,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self.task = task
        self.collector = collector
        self._policy = policy
        self._now_ms = now_ms

    def start(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Open the stores and initialise the processors; without offsets, inputs start at 0."""
        task = self.task
        task.life.cycle.move_to(TaskState.RESTORING)
        task.stores.open()
        task.stores.topic_ids = {partition.topic: _TOPIC_ID for partition in task.stores.changelogs}
        task.start(dict.fromkeys(task.inputs, 0) if offsets is None else offsets, {})

    def commit(self) -> list[OutputColumns]:
        """Write the changes to the stores and return the outputs since the last commit."""
        task = self.task
        if task.caches is not None:
            task.caches.flush()
        task.commit_requested = False
        self._policy.drops.report()
        drained = task.stores.drain()
        outputs = self.collector.pop_staged()
        task.stores.apply(drained, {}, now_ms=self._now_ms())
        return outputs

    def process(
        self,
        inputs: Inputs,
        *,
        uncommitted_bytes_max: int,
        limit: int = _LIMIT,
        run: Callable[[int], int] | None = None,
    ) -> Iterator[OutputColumns]:
        """Process all records and yield their outputs; commit where the memory for changes ends.

        The next record is the one with the lowest time of all inputs, so none may be empty before
        its end. Wall-clock punctuations are due by stream time. `run` processes the next records
        instead of the task's own method.
        """
        task, group = self.task, self.task.group
        open_inputs = dict(inputs)
        while True:
            for partition, chunks in list(open_inputs.items()):
                while not group.buffers[partition].records:
                    if (chunk := next(chunks, None)) is None:
                        del open_inputs[partition]
                        break
                    if len(chunk):
                        group.add(chunk)
            if not group.records:
                break
            has_schedules = task.next_wall_clock_ms() is not None
            (run or task.process)(1 if has_schedules else limit)
            if has_schedules:
                task.punctuate_wall_clock(self._now_ms())
            task.commit_requested = False
            yield from self.collector.pop_staged()
            if task.uncommitted_bytes > uncommitted_bytes_max:
                yield from self.commit()
        yield from self.commit()

    def end(self) -> TaskEnd:
        task = self.task
        return TaskEnd(
            next_offsets=dict(task.next_offsets),
            partition_times_ms=dict(task.partition_times_ms),
            operator_times_ms=task.operator_times_ms(),
        )

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the stores that have rows here; users' classes keep their own."""
        specs = self.task.stores.specs.values()
        return tuple(spec.name for spec in specs if spec.kind is not StoreKind.CUSTOM)

    def rows(self, store: str) -> Iterator[StoredRow]:
        """Yield the committed rows of a store that reads return, in the order of disk keys."""
        stores = self.task.stores
        database = stores.database(store)
        observed_ms, _ = read_store_time(database, store)
        return stored_rows(stores.specs[store], database.iterate(store, None, None), observed_ms)

    @property
    def changelog_stores(self) -> tuple[str, ...]:
        """Return the stores with a changelog that `changelog` can yield."""
        changelog = self.task.stores.changelog
        return tuple(store for store in self.stores if changelog(store) is not None)

    def changelog(self, store: str) -> Iterator[ChangelogColumns]:
        """Yield records from which a worker restores the committed rows of a store.

        No key comes twice, except in a versioned store, whose records are its versions. The store's
        time is that of the rows; `end` has later ones, of deleted rows.
        """
        stores = self.task.stores
        spec, database = stores.specs[store], stores.database(store)
        observed_ms, _ = read_store_time(database, store)
        rows = database.iterate(store, None, None, reverse=spec.kind is StoreKind.VERSIONED)
        return unfold(spec, rows, observed_ms=observed_ms)

    def close(self) -> None:
        self.task.life.close()
