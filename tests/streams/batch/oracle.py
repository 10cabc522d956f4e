"""Oracle of batch runs: one record at a time, in-memory stores, merged by `heapq`."""

import heapq
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.batch.local_tasks import LocalTasks
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.tasks.batch.batch_task import BatchTask, TaskEnd
from tidewheel.tasks.batch.passes import Pass
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Records between two commits.
_COMMIT_EVERY = 7


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


class Ordered(NamedTuple):
    order: int
    task: TaskId | None
    place: int
    row: Row


@dataclass
class Result:
    outputs: dict[TopicPartition, list[Row]] = field(
        default_factory=dict[TopicPartition, list[Row]]
    )
    stores: dict[str, dict[int, list[StoredRow]]] = field(
        default_factory=dict[str, dict[int, list[StoredRow]]]
    )
    ends: dict[TaskId, TaskEnd] = field(default_factory=dict[TaskId, TaskEnd])
    #: Records of each task in its last pass, in canonical order.
    inputs: dict[TaskId, list[SourceRecords]] = field(
        default_factory=dict[TaskId, list[SourceRecords]]
    )


Rows = Mapping[TopicPartition, Sequence[Row]]


def run_oracle(job: BatchJob, rows: Rows) -> Result:
    result = Result()
    streams: dict[TopicPartition, dict[TaskId, list[Ordered]]] = {}
    for run in job.batch.passes:
        for task_id in job.tasks(run):
            inputs = {
                at: _with_orders(rows.get(at, ()))
                if at.topic not in job.batch.written
                else list(heapq.merge(*streams.get(at, {}).values(), key=lambda each: each[:2]))
                for at in job.plan.inputs(task_id)
                if at.topic in run.reads
            }
            _run_task(job, run, task_id, inputs, rows, streams, result)
    for at, by_task in streams.items():
        if at.topic not in job.batch.written:
            merged = heapq.merge(*by_task.values(), key=lambda each: each[:2])
            result.outputs[at] = [each.row for each in merged]
    return result


def _with_orders(rows: Sequence[Row]) -> list[Ordered]:
    ordered: list[Ordered] = []
    latest = -1
    for place, row in enumerate(rows):
        latest = max(latest, row.timestamp)
        ordered.append(Ordered(latest, None, place, row))
    return ordered


def _run_task(
    job: BatchJob,
    run: Pass,
    task_id: TaskId,
    inputs: Mapping[TopicPartition, list[Ordered]],
    rows: Rows,
    streams: dict[TopicPartition, dict[TaskId, list[Ordered]]],
    result: Result,
) -> None:
    started: list[BatchTask] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalTasks(
            job.plan,
            job.config,
            directory=Path(directory),
            now_ms=lambda: max(started[0].task.stream_time_ms, 0) if started else 0,
            partition_count=job.partition_count,
            open_database=lambda _path, families: InMemoryDatabase(families),
            record_by_record=True,
        ) as local,
    ):
        fill_global_stores(local, rows)
        task = local.start(task_id)
        started.append(task)
        sent = Sent(job, run, task_id, streams)
        records = [
            (order, _single(at, place, row)) for order, at, place, row in _in_order(job, inputs)
        ]
        if run.is_last:
            result.inputs[task_id] = [record for _, record in records]
        for count, (order, record) in enumerate(records):
            task.task.group.add(record)
            while task.task.group.records:
                task.task.process(1)
            task.task.punctuate_wall_clock(max(task.task.stream_time_ms, 0))
            task.task.commit_requested = False
            sent.add(task.collector.pop_staged(), order)
            if count % _COMMIT_EVERY == 0:
                sent.add(task.commit(), order)
        sent.add(task.commit(), -1)
        if run.is_last:
            result.ends[task_id] = task.end()
            for store in task.stores:
                result.stores.setdefault(store, {})[task_id.partition] = list(task.rows(store))
        task.close()


def fill_global_stores(local: LocalTasks, rows: Rows) -> None:
    if local.global_stores is not None:
        for at in sorted(rows):
            if at.topic in local.global_stores.specs:
                for place, row in enumerate(rows[at]):
                    local.global_stores.apply(_single(at, place, row), known_ms=0)


def _in_order(
    job: BatchJob, inputs: Mapping[TopicPartition, list[Ordered]]
) -> Iterator[tuple[int, TopicPartition, int, Row]]:
    places = [
        [
            (each.order, job.batch.levels[at.topic], at, place, each.row)
            for place, each in enumerate(ordered)
        ]
        for at, ordered in inputs.items()
    ]
    for order, _, at, place, row in heapq.merge(*places, key=lambda each: each[:4]):
        yield order, at, place, row


def _single(at: TopicPartition, offset: int, row: Row) -> SourceRecords:
    headers = [row.headers] if row.headers else None
    return SourceRecords(
        at.topic, at.partition, [offset], [row.key], [row.value], [row.timestamp], headers
    )


class Sent:
    """Outputs of one task, by partition."""

    def __init__(
        self,
        job: BatchJob,
        run: Pass,
        task_id: TaskId,
        streams: dict[TopicPartition, dict[TaskId, list[Ordered]]],
    ) -> None:
        self._job = job
        self._run = run
        self._task_id = task_id
        self._streams = streams
        self._without_key: dict[str, int] = {}

    def add(self, outputs: list[OutputColumns], order: int) -> None:
        batch = self._job.batch
        for columns in outputs:
            kept = columns.topic in self._run.keeps or (
                self._run.is_last and columns.topic not in batch.written
            )
            for index in range(len(columns)) if kept else ():
                headers = () if columns.headers is None else columns.headers[index]
                row = Row(
                    columns.keys[index],
                    columns.values[index],
                    columns.timestamps[index],
                    tuple(headers),
                )
                at = TopicPartition(columns.topic, self._partition(columns, index))
                sent = self._streams.setdefault(at, {}).setdefault(self._task_id, [])
                own = order if columns.topic in batch.circular else row.timestamp
                latest = max(sent[-1].order if sent else -1, own)
                sent.append(Ordered(latest, self._task_id, len(sent), row))

    def _partition(self, columns: OutputColumns, index: int) -> int:
        chosen = columns.partitions
        if not isinstance(chosen, int):
            chosen = chosen[index]
        if chosen >= 0:
            return chosen
        count = self._job.partition_count(columns.topic)
        if (key := columns.keys[index]) is not None:
            return partition_of(key, count)
        turn = self._without_key.get(columns.topic, 0)
        self._without_key[columns.topic] = turn + 1
        return turn % count
