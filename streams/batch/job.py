"""Batch job: a topology's plan for a batch run, and its tasks in one process."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Self

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.streams.batch.local_tasks import LocalTasks, OpenDatabase
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.batch.batch_task import BatchTask
from tidewheel.tasks.batch.blobs import BLOB_RECORDS, Outbox
from tidewheel.tasks.batch.pass_task import BATCH_RECORDS, PassTask
from tidewheel.tasks.batch.passes import BatchPlan, Pass, plan_passes
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.processing.api.topology_spec import TopologySpec
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """A topology, planned for a batch run; cloudpickle can send it to other processes.

    Attributes:
        batch: Its passes, in the order in which they run.
        outputs_partitions: Partition count of topics that the topology only writes.
        known_partitions: Partition counts of some of these topics instead.
        discards_outputs: Drop the records for them.
    """

    plan: ApplicationPlan
    batch: BatchPlan
    config: StreamsConfig
    outputs_partitions: int
    known_partitions: Mapping[str, int] = {}
    discards_outputs: bool = False

    @classmethod
    def of(
        cls, topology: Topology, config: StreamsConfig | None, topics: Mapping[str, int]
    ) -> "BatchJob":
        """Plan a run.

        Args:
            config: None for the defaults.
            topics: Partition count of each source topic.

        Raises:
            StreamsError: The topology can't run in batch, or a source topic is missing.
        """
        if config is None:
            config = StreamsConfig(application_id="batch", bootstrap_servers="unused:9092")
        # Each update is an output, and due results are not delayed.
        config = config.replace(statestore_cache_max_bytes=0, emit_interval_ms=0)
        spec = spec_of(topology, config)
        _refuse_external_sinks(spec)
        most = max(topics.values(), default=1)
        # A topic that the topology itself writes needs no records from elsewhere.
        written = {
            sink.topic: most
            for subtopology in spec.subtopologies
            for sink in subtopology.sinks
            if not sink.internal and isinstance(sink.topic, str)
        }
        plan = plan_application(spec, config.application_id, {**written, **topics})
        return cls(
            plan=plan,
            batch=plan_passes(plan, config.application_id),
            config=config,
            outputs_partitions=most,
        )

    def partition_count(self, topic: str) -> int:
        known = self.known_partitions.get(topic, self.outputs_partitions)
        return self.batch.partitions.get(topic, known)

    def tasks(self, run: Pass) -> tuple[TaskId, ...]:
        return self.plan.subtopologies[run.subtopology].tasks


def _refuse_external_sinks(spec: TopologySpec) -> None:
    for subtopology in spec.subtopologies:
        if (sink := subtopology.external_sink) is not None:
            raise StreamsError(
                f"a batch run can't write to {sink.name}, a sink outside Kafka; write its records to a topic, and the "
                "topic's output to the sink"
            )


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that bound a task's memory, and its speed; results do not depend on them.

    Attributes:
        uncommitted_bytes_max: None for the configuration's.
    """

    batch_records: int = BATCH_RECORDS
    blob_records: int = BLOB_RECORDS
    uncommitted_bytes_max: int | None = None


class JobProcess:
    """Runs tasks of a job in this process, one at a time; a context manager.

    Args:
        directory: Folder of the state of running tasks.
        global_records: All records of the topics of global stores.
    """

    def __init__(
        self,
        job: BatchJob,
        directory: Path,
        *,
        global_records: Iterable[SourceRecords] = (),
        settings: TaskSettings = TaskSettings(),  # noqa: B008 - a frozen value
        open_database: OpenDatabase | None = None,
        record_by_record: bool = False,
    ) -> None:
        self._job = job
        self._directory = directory
        self._settings = settings
        self._running: BatchTask | None = None
        self._local = LocalTasks(
            job.plan,
            job.config,
            directory=directory,
            now_ms=self._now_ms,
            partition_count=job.partition_count,
            open_database=open_database,
            record_by_record=record_by_record,
        )
        stores = self._local.global_stores
        for records in global_records:
            assert stores is not None, "only topics of global stores"
            stores.apply(records, known_ms=0)

    def _now_ms(self) -> int:
        """Return the running task's stream time: the wall clock of a batch run."""
        return 0 if self._running is None else max(self._running.task.stream_time_ms, 0)

    @contextmanager
    def task(self, run: Pass, task_id: TaskId) -> Iterator[PassTask]:
        """Start a task with empty stores; at the end its state is deleted."""
        assert self._running is None, "one task at a time"
        job, settings = self._job, self._settings
        state_directory = self._directory / str(task_id)
        rmtree(state_directory, ignore_errors=True)
        batch_task = self._local.start(task_id)
        self._running = batch_task
        outbox = Outbox(
            (task_id.subtopology, task_id.partition),
            partition_count=job.partition_count,
            partition_of=partition_of,
            blob_records=settings.blob_records,
        )
        bytes_max = settings.uncommitted_bytes_max
        try:
            yield PassTask(
                batch_task,
                run,
                job.batch,
                outbox,
                uncommitted_bytes_max=job.config.statestore_uncommitted_max_bytes
                if bytes_max is None
                else bytes_max,
                batch_records=settings.batch_records,
                keeps_outputs=not job.discards_outputs,
            )
        finally:
            self._running = None
            batch_task.close()
            rmtree(state_directory, ignore_errors=True)

    def close(self) -> None:
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
