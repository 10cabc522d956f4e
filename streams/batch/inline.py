"""Inline batch run: all passes and partitions of a job in this process, in memory."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.streams.batch.job import BatchJob, JobProcess, TaskSettings
from tidewheel.streams.batch.local_tasks import OpenDatabase
from tidewheel.tasks.batch.batch_task import TaskEnd
from tidewheel.tasks.batch.blobs import Blob
from tidewheel.tasks.batch.merge import merged
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Records of each partition of the source topics, in order.
Columns = Mapping[TopicPartition, Sequence[SourceRecords]]


class InlineResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run.

    Attributes:
        outputs: Blobs for each partition of a topic that the topology only writes, by the task
            that made them.
        stores: Visible rows of each store, by partition.
        ends: Positions and times of each task.
    """

    outputs: dict[TopicPartition, dict[TaskId, list[Blob]]]
    stores: dict[str, dict[int, list[StoredRow]]]
    ends: dict[TaskId, TaskEnd]

    def records(self, topic: str) -> Iterator[SourceRecords]:
        """Yield the records for an output topic, by partition and in canonical order."""
        for at in sorted(self.outputs):
            if at.topic == topic:
                yield from merged_blobs(self.outputs[at])


def run_inline(
    job: BatchJob,
    columns: Columns,
    *,
    settings: TaskSettings = TaskSettings(),  # noqa: B008 - a frozen value
    open_database: OpenDatabase | None = None,
) -> InlineResult:
    """Run all passes of a job over the records of its source topics."""
    blobs: dict[TopicPartition, dict[TaskId, list[Blob]]] = {}
    result = InlineResult(outputs={}, stores={}, ends={})
    global_topics = {store.topic for store in job.plan.global_stores}
    with tempfile.TemporaryDirectory(prefix="tidewheel-batch-") as directory:
        process = JobProcess(
            job,
            Path(directory),
            global_records=(
                records
                for at in sorted(columns)
                if at.topic in global_topics
                for records in columns[at]
            ),
            settings=settings,
            open_database=open_database,
        )
        with process:
            for run in job.batch.passes:
                for task_id in job.tasks(run):
                    with process.task(run, task_id) as task:
                        inputs = {
                            at: merged_blobs(blobs.get(at, {}))
                            if at.topic in job.batch.written
                            else iter(columns.get(at, ()))
                            for at in job.plan.inputs(task_id)
                        }
                        for blob in task.process(inputs):
                            at = TopicPartition(blob.topic, blob.partition)
                            blobs.setdefault(at, {}).setdefault(task_id, []).append(blob)
                        if run.is_last:
                            result.ends[task_id] = task.end()
                            for store in task.stores:
                                rows = result.stores.setdefault(store, {})
                                rows[task_id.partition] = list(task.rows(store))
    result.outputs.update(
        (at, streams) for at, streams in blobs.items() if at.topic not in job.batch.written
    )
    return result


def merged_blobs(streams: Mapping[TaskId, Sequence[Blob]]) -> Iterator[SourceRecords]:
    return merged(streams[task_id] for task_id in sorted(streams))
