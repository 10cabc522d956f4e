"""Task of a pass: processes its inputs in canonical order and returns blobs and visible rows."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.layout.unfold import ChangelogColumns
from tidewheel.tasks.batch.batch_task import BatchTask, Inputs, TaskEnd
from tidewheel.tasks.batch.blobs import Blob, Outbox
from tidewheel.tasks.batch.passes import BatchPlan, Pass
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.partition_group import order_ms_of

#: Largest batch of records.
BATCH_RECORDS: Final = 10_000


class PassTask:
    """One task in one pass. All its records are processed by one call of `process`."""

    def __init__(
        self,
        task: BatchTask,
        run: Pass,
        batch: BatchPlan,
        outbox: Outbox,
        *,
        uncommitted_bytes_max: int,
        batch_records: int = BATCH_RECORDS,
        keeps_outputs: bool = True,
    ) -> None:
        self._task = task
        self._run = run
        self._batch = batch
        self._outbox = outbox
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._batch_records = batch_records
        self._keeps_outputs = keeps_outputs
        task.task.group.rank_topics(batch.levels)

    def process(self, inputs: Inputs) -> Iterator[Blob]:
        """Process all records of the pass's topics; each input has its records in their order.

        Raises:
            StreamsError: Also if a record is for a topic of the input.
        """
        is_circular = bool(self._run.keeps & self._batch.circular)
        active = self._task.task
        assert isinstance(active, ActiveTask), "sinks outside Kafka are refused"
        causes = _Causes(active) if is_circular else None
        read = {at: records for at, records in inputs.items() if at.topic in self._run.reads}
        for columns in self._task.process(
            read,
            uncommitted_bytes_max=self._uncommitted_bytes_max,
            limit=self._batch_records if causes is None else causes.limit(self._batch_records),
            run=None if causes is None else causes.process,
        ):
            if self._batch.levels.get(columns.topic) == 0:
                raise StreamsError(
                    f"a function chose topic {columns.topic} for a record, which the topology also reads: a batch run reads only "
                    "what was there before; use repartition() in between, or another topic"
                )
            if self._is_kept(columns.topic):
                orders = None
                if causes is not None and columns.topic in self._batch.circular:
                    orders = causes.orders_of(columns)
                yield from self._outbox.add(columns, orders)
        yield from self._outbox.flush()

    def _is_kept(self, topic: str) -> bool:
        if topic in self._run.keeps:
            return True
        return self._keeps_outputs and self._run.is_last and topic not in self._batch.written

    def end(self) -> TaskEnd:
        return self._task.end()

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the stores whose rows `rows` can read: all but those of users' classes."""
        return self._task.stores

    @property
    def changelog_stores(self) -> tuple[str, ...]:
        return self._task.changelog_stores

    @property
    def has_wall_clock_schedules(self) -> bool:
        return self._task.task.next_wall_clock_ms() is not None

    def rows(self, store: str) -> Iterator[StoredRow]:
        """Yield the rows of a store that reads return, in the order of its keys on disk."""
        return self._task.rows(store)

    def changelog(self, store: str) -> Iterator[ChangelogColumns]:
        """Yield records from which workers restore a store; see `BatchTask.changelog`."""
        return self._task.changelog(store)


class _Causes:
    """Order times of the records that a task processes, for the outputs that they cause."""

    def __init__(self, task: ActiveTask) -> None:
        self._task = task
        self._latest = -1
        self._topic = ""
        self._orders: dict[int, int] = {}

    def limit(self, batch_records: int) -> int:
        """Return the largest batch: punctuations between records have no cause to look up."""
        return batch_records if self._task.processing.graph.batched else 1

    def process(self, limit: int) -> int:
        records = self._task.group.pop(limit)
        if records is None:
            return 0
        orders = list(accumulate(order_ms_of(records), max, initial=self._latest))[1:]
        self._topic = records.topic
        self._orders = dict(zip(records.offsets, orders, strict=True))
        self._latest = orders[-1]
        return self._task.process_records(records)

    def orders_of(self, columns: OutputColumns) -> list[int]:
        return [self._order(*columns.input_of(index)) for index in range(len(columns))]

    def _order(self, topic: str | None, _partition: int | None, offset: int | None) -> int:
        if topic != self._topic or offset is None:
            return self._latest
        return self._orders.get(offset, self._latest)
